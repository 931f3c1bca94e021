"""A model with weights that are large enough to be read separately."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from support.models import parsed

SIDE = 300
COUNT = 60
SHAPES = {"m0": (1, 2, 8, SIDE), "grid": (1, 4, 5, 2)}
FEEDS = {
    name: np.random.default_rng(1).uniform(-1, 1, shape).astype("f")
    for name, shape in SHAPES.items()
}


def large_weights_model() -> onnx.ModelProto:
    """Return a model of 21 MB: a GridSample of 60 products with weights.

    One weight is also an input of the model, and one an output.
    """
    rng = np.random.default_rng(0)
    square = f"float[{SIDE},{SIDE}]"
    nodes = " ".join(f"m{i + 1} = MatMul (m{i}, w{i})" for i in range(COUNT))
    values = (
        f"(float[1,2,8,{SIDE}] m0, float[1,4,5,2] grid, {square} w0) => (float[] Y, {square} w1)"
    )
    model = parsed(f"g {values} {{ {nodes} Y = GridSample (m{COUNT}, grid) }}", 17)
    arrays = (rng.standard_normal((SIDE, SIDE), np.float32) / SIDE**0.5 for _ in range(COUNT))
    model.graph.initializer.extend(
        numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(arrays)
    )
    return model


def save(model: onnx.ModelProto, folder: Path) -> str:
    """Write ``model`` to a file in ``folder``; return its path."""
    path = str(folder / "large.onnx")
    onnx.save(model, path)
    return path
