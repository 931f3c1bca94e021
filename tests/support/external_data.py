"""Models with external data."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from support.models import parsed

X = np.random.default_rng(0).standard_normal((1, 3, 6, 7)).astype(np.float32)


GRID = np.random.default_rng(1).uniform(-1.2, 1.2, (1, 4, 5, 2)).astype(np.float32)


WRONG_GRID = np.zeros((2, 4, 5, 2), np.float32)


def external_model(folder: Path) -> Path:
    model = parsed("""g (float[N, C, H, W] X) => (float[N, C, h, w] Z) {
            Y = GridSample (X, grid) m = ReduceMax <keepdims = 0> (weight) Z = Mul (Y, m) }""")
    for name, value in (("grid", GRID), ("weight", np.ones((1000, 1000), np.float32))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def cached_model(folder: Path) -> Path:
    """:func:`external_model` as a hub's cache holds it: links in one folder to files in another, of other names."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for i, file in enumerate([external_model(blobs), blobs / "weights.bin"]):
        file.rename(blobs / str(i))
        (snapshot / file.name).symlink_to(f"../../blobs/{i}")
    return snapshot / "model.onnx"
