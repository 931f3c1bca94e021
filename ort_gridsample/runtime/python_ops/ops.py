"""The operators as Python-defined ops of ONNX Runtime, in the domain ``ort_gridsample``.

An op does no arithmetic: it passes its arrays to the function of the same name, and an exception to ``failures``: one
that left the op would abort the process. All ops are registered here together, once: a later registration in the same
domain would crash sessions that exist. Importing this module is an ImportError without onnxruntime-extensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from ... import spec
from ...core import memory
from ...core.arrays import Array
from ...core.threads import ops_limit
from ...errors import where
from ...functions import affine_grid, grid_sample
from ...model.dialects import DOMAIN
from ...spec import ModeName, PaddingModeName
from .. import extensions
from . import exits, failures

_ocos = extensions.load()
PyCustomOpDef, onnx_op = _ocos.PyCustomOpDef, _ocos.Opdef.declare
library_path: str = _ocos.get_library_path()


class Output:
    """An op's output, in a form that onnxruntime-extensions copies in one piece instead of number by number.

    The extensions call ``.shape`` and ``.flatten().tolist()``, and take an array of the right item size for the list.
    """

    __slots__ = ("array", "shape")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape = array.shape

    def flatten(self) -> Output:
        return self

    def tolist(self) -> Array | list[str]:
        # Strings do need a list.
        return list(self.array.ravel()) if self.array.dtype.kind == "O" else self.array


#: The second output where the failure cannot even be recorded.
_LOST = Output(np.array([[failures.LOST]], np.int64))
_NOTHING = {np.dtype(kind): Output(np.empty(0, kind)) for kind in "?bBhHiIlLqQfdO"}
Outputs = tuple[Output, Output]


def _guarded(
    operator: str, function: Callable[..., Array], *arguments: Any, align_corners: int, node: str, num_threads: int
) -> Outputs:
    """Y of ``function`` and the positions along its first axis, or an empty Y and the number of the failure."""
    exits.hold()
    try:
        here, threads = where(operator, node), num_threads or None
        with ops_limit:
            array = function(*arguments, align_corners=bool(align_corners), where=here, num_threads=threads)
        # onnxruntime's copy and the guard's need as much again each, and without memory would end the process.
        memory.probe(2 * memory.copied_bytes(array))
        return Output(array), Output(np.arange(len(array), dtype=np.int64)[:, None])
    except BaseException as failure:  # also KeyboardInterrupt and SystemExit: none may leave an op
        nothing = _NOTHING.get(arguments[0].dtype, _NOTHING[np.dtype(object)])
        try:
            return nothing, Output(np.array([[failures.record(failure)]], np.int64))
        except BaseException:  # no memory or no stack
            return nothing, _LOST


def _grid_sample_op(X: Array, grid: Array, *, mode: ModeName, padding_mode: PaddingModeName, **others: Any) -> Outputs:
    return _guarded("GridSample", grid_sample, X, grid, mode, padding_mode, **others)


def _affine_grid_op(theta: Array, size: Array, **others: Any) -> Outputs:
    return _guarded("AffineGrid", affine_grid, theta, size, **others)


_INTEGER, _STRING = PyCustomOpDef.dt_int64, PyCustomOpDef.dt_string

#: Attributes beside the operators' own: the node's name for errors, and a number of threads (0: the default).
_EXTRA_ATTRIBUTES = {"node": _STRING, "num_threads": _INTEGER}
_ATTRIBUTES = {
    operator: {
        name: _STRING if isinstance(attribute.default, str) else _INTEGER
        for name, attribute in spec.newest(operator).attributes.items()
    }
    | _EXTRA_ATTRIBUTES
    for operator in spec.OPERATORS
}


def _op_type(type_name: str) -> int:
    """onnxruntime-extensions' number for a type of :data:`ort_gridsample.spec.TYPES`."""
    return int(getattr(PyCustomOpDef, f"dt_{spec.TYPES[type_name].onnx}"))


_INTEGERS = {name for attributes in _ATTRIBUTES.values() for name, kind in attributes.items() if kind == _INTEGER}


def _cast_attributes(attributes: dict[str, str]) -> dict[str, str | int]:
    return {name: int(value) if name in _INTEGERS else value for name, value in attributes.items()}


def transport_types(types: Sequence[str]) -> list[str]:
    """The transport types of ``types``, each once."""
    return list(dict.fromkeys(c for c in (spec.TYPES[name].transport for name in types) if c is not None))


def _register_all() -> None:
    for operator, function in (("GridSample", _grid_sample_op), ("AffineGrid", _affine_grid_op)):
        for types in product(*map(transport_types, spec.newest(operator).types.values())):
            inputs = [_op_type(name) for name in types]
            op = onnx_op(
                op_type=f"{DOMAIN}::{operator}",
                inputs=inputs,
                outputs=[inputs[0], _INTEGER],
                attrs=_ATTRIBUTES[operator],
            )(function)
            # The original asks the C++ side for each attribute's type at each call: 10 times as slow.
            op.cast_attributes = _cast_attributes


if "_ort_gridsample_ops" not in vars(_ocos):  # else another copy of this module was imported before
    vars(_ocos)["_ort_gridsample_ops"] = True
    _register_all()
