"""Models with external data."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from support.models import parsed

X = np.random.default_rng(0).standard_normal((1, 3, 6, 7)).astype(np.float32)
GRID = np.random.default_rng(1).uniform(-1.2, 1.2, (1, 4, 5, 2)).astype(np.float32)
#: A grid of two images, where X is one.
WRONG_GRID = np.zeros((2, 4, 5, 2), np.float32)


def external_model(folder: Path) -> Path:
    """Save a model with external data; return its path.

    Z is the output of a GridSample times the maximum of a large weight, which is 1.
    """
    model = parsed("""g (float[N, C, H, W] X) => (float[N, C, h, w] Z) {
        Y = GridSample (X, grid)
        maximum = ReduceMax <keepdims = 0> (weight)
        Z = Mul (Y, maximum) }""")
    for name, value in (("grid", GRID), ("weight", np.ones((1000, 1000), np.float32))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def cached_model(folder: Path) -> Path:
    """Save :func:`external_model` as the cache of a model hub does; return the path of the model.

    Its files are links to files with other names in another folder.
    """
    blobs = folder / "blobs"
    snapshot = folder / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for index, file in enumerate([external_model(blobs), blobs / "weights.bin"]):
        file.rename(blobs / str(index))
        (snapshot / file.name).symlink_to(f"../../blobs/{index}")
    return snapshot / "model.onnx"
