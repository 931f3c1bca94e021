"""Add modes and a padding to the tables of the package, and sample with them in every way.

The rows are added before any other module of the package is imported, as if they were written in
its source. Compiled kernels contain them, so NUMBA_CACHE_DIR must be a folder of this program
alone, and no other process may compile kernels for it. Prints a line of JSON for each result: its
way, mode and padding, and its largest difference from a formula; or of the two cores' outputs from
each other, for types and shapes that kernels sum in other ways.
"""

import json
import math
from itertools import product

import numpy as np

from support.early_rows import before_the_package_is_imported

#: Modes and a padding that no table of the package has. The second mode has an odd number of taps.
MODE = "hermite"
ODD_MODE = "quadratic"
PADDING = "closed"


def hermite_weights(xp, t):
    """Return the weights of a cubic Hermite spline without slopes at the pixels, of two taps."""
    second = t * t * (3 - t * 2)
    return xp.concatenate([1 - second, second], axis=-2)


def quadratic_weights(xp, t):
    """Return the weights of a quadratic B-spline, of three taps around the nearest pixel."""
    before = 0.5 - t
    after = t + 0.5
    return xp.concatenate([before * before * 0.5, 0.75 - t * t, after * after * 0.5], axis=-2)


def close_once(xp, x, axis):
    """Repeat the pixels, with the first one once more at the end: 0 1 2 0 | 0 1 2 0 | …"""
    period = axis.length + 1
    x = xp.where(xp.less(x, 0), x + period, x)
    x = xp.where(xp.less(x, period), x, x - period)
    return xp.where(xp.less(x, axis.length), x, x - axis.length)


def add_rows():
    with before_the_package_is_imported() as (coordinates, taps):
        coordinates.PADDING_RULES[PADDING] = coordinates.Padding(
            close_once, period=lambda axis: axis.length + 1, pads_taps=True
        )
        taps.MODE_RULES[MODE] = taps.Mode(
            lambda xp, x: xp.floor(x), (0, 1), hermite_weights, pads_taps=False
        )
        taps.MODE_RULES[ODD_MODE] = taps.Mode(
            lambda xp, x: xp.rint(x), (-1, 0, 1), quadratic_weights, pads_taps=True
        )


def pad(tap, length, padding):
    """Return the pixel that a tap reads, or None for 0."""
    if padding == "zeros":
        return tap if 0 <= tap < length else None
    if padding == "border":
        return min(max(tap, 0), length - 1)
    if padding == PADDING:
        return tap % (length + 1) % length
    raise ValueError(padding)


def quadratic_taps(x, length, padding):
    """Return (pixel, weight) of each tap of a quadratic B-spline."""
    base = int(np.rint(x))
    t = x - base
    weights = (0.5 - t) ** 2 / 2, 0.75 - t * t, (0.5 + t) ** 2 / 2
    return [
        (pad(base + offset, length, padding), weight)
        for offset, weight in zip((-1, 0, 1), weights, strict=True)
    ]


def axis_taps(g, length, mode, padding):
    """Return (pixel, weight) of each tap of a finite coordinate of corners that are not aligned."""
    x = ((g + 1) * length - 1) / 2
    if mode == ODD_MODE and padding != PADDING:  # only the indices of the taps are padded
        return quadratic_taps(x, length, padding)
    if padding == "border":
        x = min(max(x, 0), length - 1)
    if padding == PADDING:
        x %= length + 1
        x = x if x < length else x - length
    if mode == "nearest":
        return [(pad(int(np.rint(x)), length, padding), 1.0)]
    if mode == ODD_MODE:
        return quadratic_taps(x, length, padding)
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


#: Types and shapes of X, with the number of positions: X is read through a table, because it is
#: packed, or has one axis or integers.
TABLES = [
    ("float32", (1, 2, 9), 300),
    ("float16", (1, 3, 9), 300),
    ("uint8", (1, 3, 9, 8), 300),
    ("float32", (1, 7, 6, 6), 2000),
    ("float32", (1, 37, 6, 6), 2000),
]


def difference_of_cores(mode, padding):
    """Return the largest difference of the two cores' outputs, relative to a rounding error."""
    from support.extension_ways import WAYS

    rng = np.random.default_rng(1)
    largest = 0.0
    for X_type, shape, positions in TABLES:
        X = (rng.random(shape) * 200).astype(X_type)
        r = len(shape) - 2
        for width in (0.5, 2.5):  # inside, and in part outside
            grid = rng.uniform(-width, width, (1, positions, *(1,) * (r - 1), r)).astype("f4")
            by_core = [
                WAYS[way](X, grid, mode, padding).astype("f8")
                for way in ("function, numpy", "function, jit")
            ]
            step = {"float32": 1e-4, "float16": 0.25, "uint8": 1.0}[X_type]
            largest = max(largest, float(np.abs(by_core[0] - by_core[1]).max()) / step)
    return largest


def main():
    add_rows()
    from ort_gridsample.kernels import compilation
    from support.cases import Attributes
    from support.extension_ways import FLOAT_WAYS, WAYS, recognized_attributes

    compilation.available_cpus = lambda: 1  # other processes do not have the rows
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2, 3, 5, 7)).astype("float32")
    grid = rng.uniform(-2.5, 2.5, (2, 6, 11, 2)).astype("float32")
    modes = ("nearest", "linear", MODE, ODD_MODE)
    for mode, padding in product(modes, ("zeros", "border", PADDING)):
        if mode not in (MODE, ODD_MODE) and padding != PADDING:
            continue
        expected = formula(X, grid, mode, padding)
        for way, sample in {**WAYS, **FLOAT_WAYS}.items():
            difference = float(np.abs(sample(X, grid, mode, padding) - expected).max())
            print(json.dumps([way, mode, padding, difference]), flush=True)
        is_equal = difference_of_cores(mode, padding) <= 1
        print(json.dumps(["tables", mode, padding, float(not is_equal)]), flush=True)
        attributes = Attributes(mode, padding, False)
        is_recognized = recognized_attributes(attributes, 2) == attributes
        print(json.dumps(["recognition", mode, padding, float(not is_recognized)]), flush=True)


if __name__ == "__main__":
    main()
