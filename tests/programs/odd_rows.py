"""Add odd modes and paddings to the tables of the package, and sample random arrays with them.

As in ``new_rows.py``, NUMBA_CACHE_DIR must be a folder of this program alone. Prints a line of JSON
for each way, mode, padding and type of X: the largest difference from a formula, relative to the
tolerance. X has 1 to 9 pixels on each axis; some coordinates are far outside, or not finite.
"""

import itertools
import json
import math
import sys

import numpy as np

from support.early_rows import before_the_package_is_imported


def floor(xp, x):
    return xp.floor(x)


def mirror_once(xp, x, axis):
    """Reflect at the centers of the outer pixels: 0 1 2 3 | 2 1 | 0 1 …"""
    x = xp.where(xp.less(0, x), x, x * -1)
    return xp.clip(xp.minimum(x, axis.last * 2 - x), 0, axis.last)


def pingpong_once(xp, x, axis):
    """Repeat the pixels backwards, and the taps between: 0 1 2 | 2 1 0 | 0 1 2 | …"""
    period = axis.length * 2
    x = xp.where(xp.less(x, 0), x + period, x)
    x = xp.where(xp.less(x, period), x, x - period)
    return xp.where(xp.less(x, axis.length), x, xp.maximum(period - 1 - x, 0))


def left_weights(xp, t):
    return xp.concatenate([(1 - t) * 0.5, (t + 1) * 0.5], axis=-2)


def spline_weights(xp, t):
    """Return the weights of Catmull and Rom, of four taps."""
    parts = (
        ((2 - t) * t - 1) * t * 0.5,
        (t * t * (t * 3 - 5) + 2) * 0.5,
        ((4 - t * 3) * t + 1) * t * 0.5,
        (t - 1) * t * t * 0.5,
    )
    return xp.concatenate(parts, axis=-2)


def wide_weights(xp, t):
    """Return the squares of eight parabolas, which are 0 at a distance of 4 pixels."""
    weights = []
    for offset in range(-3, 5):
        distance = (t - offset) * 0.25
        bump = 1 - distance * distance
        weights.append(bump * bump)
    total = weights[0]
    for weight in weights[1:]:
        total = total + weight
    return xp.concatenate([weight / total for weight in weights], axis=-2)


#: Mode -> its offsets, its weights, and whether taps are padded. The base is the pixel before.
MODES = {
    "below": ((0,), None, False),
    "left": ((-1, 0), left_weights, False),
    "spline": ((-1, 0, 1, 2), spline_weights, False),
    "wide": (tuple(range(-3, 5)), wide_weights, True),
}
#: Padding -> whether taps are padded in every mode.
PADDINGS = {"mirror": False, "pingpong": True, "edges": True}


def add_rows():
    with before_the_package_is_imported() as (coordinates, taps):
        coordinates.PADDING_RULES["mirror"] = coordinates.Padding(
            mirror_once, period=lambda axis: axis.maximum(axis.last * 2, 1)
        )
        coordinates.PADDING_RULES["pingpong"] = coordinates.Padding(
            pingpong_once, period=lambda axis: axis.length * 2, pads_taps=True
        )
        coordinates.PADDING_RULES["edges"] = coordinates.Padding(
            lambda xp, x, axis: xp.clip(x, 0, axis.last), pads_taps=True, pad_handles_infinity=True
        )
        for name, (offsets, weights, pads_taps) in MODES.items():
            taps.MODE_RULES[name] = taps.Mode(
                floor, offsets, weights, pads_taps=pads_taps, largest_term=3
            )


def pad(x, length, padding):
    if padding == "zeros":
        return x
    if padding in ("border", "edges"):
        return min(max(x, 0), length - 1)
    if padding == "mirror":
        x = abs(math.fmod(x, max(2 * length - 2, 1)))
        return min(x, 2 * (length - 1) - x) if length > 1 else 0
    x = x % (2 * length)
    return x if x < length else max(2 * length - 1 - x, 0)


def axis_taps(g, length, align_corners, mode, padding):
    """Return (pixel, weight) of each tap, and a number: how far the next jump is, in pixels."""
    g = g.dtype.type(-1) if np.isnan(g) else g
    number = g.dtype.type
    if align_corners:
        x = (g + number(1)) * number((length - 1) / 2)
    else:
        x = (g + number(1)) * number(length / 2) - number(0.5)
    x = float(x)
    if not math.isfinite(x):
        edge = float(g > 0) * (length - 1)
        x = edge if padding in ("mirror", "pingpong") else math.copysign(length + 99, g)
    offsets, weights, pads_taps = MODES[mode]
    pads_taps = pads_taps or PADDINGS.get(padding, False)
    if PADDINGS.get(padding, False) or not pads_taps:
        x = pad(x, length, padding)
    base = math.floor(x)
    t = np.array([[x - base]])
    by_tap = [1.0] if weights is None else weights(np, t)[:, 0]
    result = []
    for offset, weight in zip(offsets, by_tap, strict=True):
        pixel = base + offset
        if pads_taps:
            pixel = round(pad(pixel, length, padding))
        inside = min(max(pixel, 0), length - 1)
        result.append((None if padding == "zeros" and inside != pixel else inside, weight))
    return result, abs(x - round(x)) if weights is None else math.inf


def formula(X, grid, mode, padding, align_corners):
    """Sample in plain loops. The result is NaN where rounding decides which pixel is copied."""
    Y = np.zeros((*X.shape[:2], *grid.shape[1:-1]))
    for batch, *position in np.ndindex(len(X), *grid.shape[1:-1]):
        taps = [
            axis_taps(g, length, align_corners, mode, padding)
            for g, length in zip(grid[(batch, *position)][::-1], X.shape[2:], strict=True)
        ]
        for combination in itertools.product(*(axis for axis, _ in taps)):
            pixel = [index for index, _ in combination]
            weight = math.prod(weight for _, weight in combination)
            if None not in pixel:
                Y[(batch, slice(None), *position)] += X[(batch, slice(None), *pixel)] * weight
        if any(0 < distance < 1e-3 for _, distance in taps):
            Y[(batch, slice(None), *position)] = np.nan
    return Y


#: The largest rounding error of a value of up to 100.
TOLERANCES = {"float32": 5e-3, "float64": 1e-9, "float16": 0.3, "uint8": 1.01}


def random_case(rng, X_type):
    """Return X and a grid."""
    rank = int(rng.integers(1, 4))
    lengths = rng.integers(1, 10, rank)
    X = rng.uniform(0, 100, (int(rng.integers(1, 3)), int(rng.integers(1, 6)), *lengths))
    shape = (len(X), int(rng.choice([1, 7, 20])), *rng.integers(1, 3, rank - 1), rank)
    grid = rng.uniform(-1, 1, shape) * rng.choice([0.5, 1, 1.5, 5, 40], shape)
    halves = rng.integers(-20, 30, shape) / 2
    grid = np.where(rng.random(shape) < 0.2, (2 * halves + 1) / lengths[::-1] - 1, grid)
    far = rng.choice([np.nan, np.inf, -np.inf, 1e30, -1e30, 3e38], shape)
    grid = np.where(rng.random(shape) < 0.05, far, grid)
    return X.astype(X_type), grid.astype("float64" if X_type == "float64" else "float32")


def main(X_types):
    add_rows()
    from ort_gridsample.kernels import compilation
    from support.extension_ways import WAYS

    compilation.available_cpus = lambda: 1  # other processes do not have the rows
    rng = np.random.default_rng(0)
    combinations = itertools.product(X_types, MODES, ("zeros", "border", *PADDINGS))
    for X_type, mode, padding in combinations:
        differences = dict.fromkeys(WAYS, 0.0)
        for case in range(8):
            X, grid = random_case(rng, X_type)
            while mode == "wide" and X.ndim > 4:
                X, grid = random_case(rng, X_type)
            align_corners = bool(rng.integers(2))
            with np.errstate(over="ignore", invalid="ignore"):
                expected = formula(X, grid, mode, padding, align_corners)
            if X_type == "uint8":
                expected = np.clip(expected, 0, 255)
            for way, sample in WAYS.items():
                if case > 1 and not way.startswith("function"):
                    continue  # a session takes longer
                Y = sample(X, grid, mode, padding, align_corners).astype(float)
                assert np.isfinite(Y).all()
                difference = float(np.nanmax(abs(Y - expected), initial=0))
                differences[way] = max(differences[way], difference / TOLERANCES[X_type])
        for way, difference in differences.items():
            print(json.dumps([way, mode, padding, X_type, difference]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
