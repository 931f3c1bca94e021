"""The operators whose results NumPy computes at once if all inputs are constant."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import helper

from ..reference.arrays import Array

#: Operator -> a function that computes it.
COMPUTE: Mapping[str, Callable[..., Array]] = {
    "Abs": np.abs,
    "Add": np.add,
    "Cast": lambda x, to: x.astype(helper.tensor_dtype_to_np_dtype(to)),
    "Clip": np.clip,
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "Div": np.divide,
    "Equal": np.equal,
    "Expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))),
    "Floor": np.floor,
    "Gather": lambda x, indices, axis: np.take(x, indices, axis),
    "Less": np.less,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mod": lambda x, y, fmod: np.fmod(x, y),
    "Mul": np.multiply,
    "Range": np.arange,
    "ReduceSum": lambda x, axes, keepdims: x.sum(tuple(axes), keepdims=bool(keepdims)),
    "Reshape": lambda x, shape, **_: x.reshape(shape),
    "Round": np.rint,
    "Sin": np.sin,
    "Sub": np.subtract,
    "Transpose": lambda x, perm: x.transpose(perm),
    "Where": np.where,
}
