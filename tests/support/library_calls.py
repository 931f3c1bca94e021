"""Calls of the functions for which the library of the tests has kernels, and of some others."""

import itertools

import numpy as np

import ort_gridsample as ogs
from support.attention_models import operands

Arrays = dict[str, np.ndarray]

#: Types of X and the grid, and modes. The library has kernels for the first ones.
IN_LIBRARY = [("float32", "float32", mode) for mode in ("linear", "nearest")] + [
    ("uint8", "float32", "linear")
]
NOT_IN_LIBRARY = [
    ("float32", "float32", "cubic"),
    ("float64", "float64", "linear"),
    ("int16", "float32", "nearest"),
    ("complex64", "float32", "linear"),
]
PADDINGS = ("zeros", "border", "reflection")
#: The numbers of spatial axes, channels and positions. Several threads sample the last ones.
SIZES = [(1, 3, 50), (2, 1, 7), (2, 9, 60_000), (3, 4, 200)]
_SAMPLES = list(itertools.product([*IN_LIBRARY, *NOT_IN_LIBRARY], PADDINGS, (False, True), SIZES))


def inputs_of_calls() -> Arrays:
    """Return random inputs of all calls, by name."""
    generator = np.random.default_rng(5)
    inputs = {}
    for axes, channels, positions in SIZES:
        shape = (2, channels, *range(11, 11 + axes))
        grid = generator.uniform(-1.4, 1.4, (2, positions, *[1] * (axes - 1), axes))
        grid.reshape(-1)[::101] = np.nan
        grid.reshape(-1)[50::101] = np.inf
        inputs[f"X {axes} {channels}"] = generator.uniform(0, 250, shape)
        inputs[f"grid {axes} {channels}"] = grid
    levels = np.array([[2, 3, 4], [2, 2, 2]])
    inputs["levels"] = levels[:, 1:]
    value, locations, weights = operands(levels, q=700)
    inputs["value"] = value
    inputs["locations"] = locations.reshape(*locations.shape[:3], 2, 2, 2)
    inputs["weights"] = weights.reshape(*weights.shape[:3], 2, 2)
    return inputs


def outputs_of(inputs: Arrays) -> Arrays:
    """Return the outputs of all calls, by name."""
    outputs = {}
    for (X_type, grid_type, mode), padding, align, (axes, channels, _) in _SAMPLES:
        outputs[f"{X_type} {grid_type} {mode} {padding} {align} {axes} {channels}"] = (
            ogs.grid_sample(
                inputs[f"X {axes} {channels}"].astype(X_type),
                inputs[f"grid {axes} {channels}"].astype(grid_type),
                mode,  # type: ignore[arg-type]
                padding,  # type: ignore[arg-type]
                align,
                num_threads=3,
            )
        )
    operands = (inputs[name] for name in ("value", "levels", "locations", "weights"))
    outputs["attention"] = ogs.deformable_attention(*operands, num_threads=3)
    return outputs


def is_in_library(name: str) -> bool:
    """Whether the library has a kernel for the call that :func:`outputs_of` names ``name``."""
    return name.startswith(("attention", *(" ".join(words) for words in IN_LIBRARY)))
