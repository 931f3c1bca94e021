"""The ways to compute a GridSample of any mode and padding that a table of the package has.

Each is a function of X, a grid and the attributes. Standard nodes have no way for a mode that no
specification has; so the nodes are of this package's domain.
"""

from collections.abc import Callable, Mapping

import numpy as np
import onnx

import ort_gridsample as ogs
from support import paths
from support.cases import Attributes
from support.models import grid_sample_model

Way = Callable[..., np.ndarray]


def _function(core: str) -> Way:
    """Return the function on a core."""

    def sample(X: np.ndarray, grid: np.ndarray, *attributes: str | bool) -> np.ndarray:
        before = ogs.get_core()
        ogs.set_core(core)
        try:
            return ogs.grid_sample(X, grid, *attributes)  # type: ignore[arg-type]
        finally:
            ogs.set_core(before)

    return sample


def _lowered(X: np.ndarray, grid: np.ndarray, *attributes: str | bool) -> np.ndarray:
    """Run basic operators, in onnxruntime."""
    rank = X.ndim - 2
    model = grid_sample_model(X.dtype.name, grid.dtype.name, rank, [Attributes(*attributes)])
    patched = ogs.patch_model(model, target="primitives")
    return paths.run(paths.open_native(patched), X.dtype, X, grid)[0]


def _without_gather(X: np.ndarray, grid: np.ndarray, *attributes: str | bool) -> np.ndarray:
    """Run matrix products in onnxruntime, for which the shapes must be known."""
    rank = X.ndim - 2
    model = grid_sample_model(X.dtype.name, grid.dtype.name, rank, [Attributes(*attributes)])
    for value, array in zip(model.graph.input, (X, grid), strict=True):
        del value.type.tensor_type.shape.dim[:]
        for length in array.shape:
            value.type.tensor_type.shape.dim.add().dim_value = length
    patched = ogs.patch_model(model, target="primitives", for_runtime="gather-free")
    return paths.run(paths.open_native(patched), X.dtype, X, grid)[0]


def recognized_attributes(attributes: Attributes, rank: int) -> Attributes | None:
    """Return the attributes that trial runs find for basic operators; None if they find none."""
    model = grid_sample_model("float32", "float32", rank, [attributes])
    lowered: onnx.ModelProto = ogs.patch_model(model, target="primitives")
    records = ogs.inspect_model(lowered)
    if not records:
        return None
    (record,) = records
    return Attributes(str(record.mode), str(record.padding_mode), bool(record.align_corners))


#: The ways that take X of floats and finite coordinates only.
FLOAT_WAYS: Mapping[str, Way] = {"matrix products": _without_gather}
WAYS: Mapping[str, Way] = {
    **{f"function, {core}": _function(core) for core in paths.INSTALLED_CORES},
    "basic operators": _lowered,
    **{
        name: path.grid_sample
        for name, path in paths.PATHS.items()
        if name not in ("function", "provider")
    },
}
