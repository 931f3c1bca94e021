"""Add a mode and a padding to the tables of the package, and sample with them in every way.

The rows are added before any other module of the package is imported, as if they were written in
its source. Compiled kernels contain them, so NUMBA_CACHE_DIR must be a folder of this program
alone, and no other process may compile kernels for it. Prints a line of JSON for each result: its
way, mode and padding, and its largest difference from a formula.
"""

import importlib.util
import json
import math
import sys
import types
from itertools import product
from pathlib import Path

import numpy as np

PACKAGE = "ort_gridsample"
#: A mode and a padding that no table of the package has.
MODE = "hermite"
PADDING = "closed"


def hermite_weights(xp, t):
    """Return the weights of a cubic Hermite spline without slopes at the pixels, of two taps."""
    second = t * t * (3 - t * 2)
    return xp.concatenate([1 - second, second], axis=-2)


def close_once(xp, x, axis):
    """Repeat the pixels, with the first one once more at the end: 0 1 2 0 | 0 1 2 0 | …"""
    period = axis.length + 1
    x = xp.where(xp.less(x, 0), x + period, x)
    x = xp.where(xp.less(x, period), x, x - period)
    return xp.where(xp.less(x, axis.length), x, x - axis.length)


def add_rows():
    """Add the rows to the tables, while the rest of the package is not imported."""
    stub = types.ModuleType(PACKAGE)
    stub.__path__ = [str(Path(importlib.util.find_spec(PACKAGE).origin).parent)]
    sys.modules[PACKAGE] = stub
    coordinates = importlib.import_module(f"{PACKAGE}.reference.coordinates")
    taps = importlib.import_module(f"{PACKAGE}.reference.taps")
    coordinates.PADDING_RULES[PADDING] = coordinates.Padding(
        close_once, period=lambda axis: axis.length + 1, pads_taps=True
    )
    taps.MODE_RULES[MODE] = taps.Mode(
        lambda xp, x: xp.floor(x), (0, 1), hermite_weights, pads_taps=False
    )
    del sys.modules[PACKAGE]


def pad(tap, length, padding):
    """Return the pixel that a tap reads, or None for 0."""
    if padding == "zeros":
        return tap if 0 <= tap < length else None
    if padding == "border":
        return min(max(tap, 0), length - 1)
    if padding == PADDING:
        return tap % (length + 1) % length
    raise ValueError(padding)


def axis_taps(g, length, mode, padding):
    """Return (pixel, weight) of each tap of a finite coordinate of corners that are not aligned."""
    x = ((g + 1) * length - 1) / 2
    if padding == "border":
        x = min(max(x, 0), length - 1)
    if padding == PADDING:
        x %= length + 1
        x = x if x < length else x - length
    if mode == "nearest":
        return [(pad(int(np.rint(x)), length, padding), 1.0)]
    base = math.floor(x)
    t = x - base
    second = t * t * (3 - 2 * t) if mode == MODE else t
    return [
        (pad(base, length, padding), 1 - second),
        (pad(base + 1, length, padding), second),
    ]


def formula(X, grid, mode, padding):
    """Sample in plain loops."""
    n, c, height, width = X.shape
    Y = np.zeros((n, c, *grid.shape[1:3]))
    for batch, i, j in np.ndindex(n, *grid.shape[1:3]):
        gx, gy = map(float, grid[batch, i, j])
        for row, row_weight in axis_taps(gy, height, mode, padding):
            for column, weight in axis_taps(gx, width, mode, padding):
                if row is not None and column is not None:
                    Y[batch, :, i, j] += X[batch, :, row, column] * row_weight * weight
    return Y


def main():
    add_rows()
    from ort_gridsample.kernels import compilation
    from support.cases import Attributes
    from support.extension_ways import WAYS, recognized_attributes

    compilation.available_cpus = lambda: 1  # other processes do not have the rows
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2, 3, 5, 7)).astype("float32")
    grid = rng.uniform(-2.5, 2.5, (2, 6, 11, 2)).astype("float32")
    for mode, padding in product(("nearest", "linear", MODE), ("zeros", "border", PADDING)):
        if MODE not in (mode, padding) and PADDING not in (mode, padding):
            continue
        expected = formula(X, grid, mode, padding)
        for way, sample in WAYS.items():
            difference = float(np.abs(sample(X, grid, mode, padding) - expected).max())
            print(json.dumps([way, mode, padding, difference]), flush=True)
        attributes = Attributes(mode, padding, False)
        is_recognized = recognized_attributes(attributes, 2) == attributes
        print(json.dumps(["recognition", mode, padding, float(not is_recognized)]), flush=True)


if __name__ == "__main__":
    main()
