"""The operators as Python-defined ops of ONNX Runtime, in the domain ``ort_gridsample``.

An op does no arithmetic: it passes its arrays to the function of the same name, and an exception to ``failures``: one
that left the op would abort the process. All ops are registered here together, once: a later registration in the same
domain would crash sessions that exist. Importing this module is an ImportError without onnxruntime-extensions.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ... import spec
from ...dialects.table import ATTENTION, DOMAIN
from ...errors import node_label
from ...functions.affine import affine_grid
from ...functions.attention import attend
from ...functions.sampling import grid_sample
from ...reference import memory
from ...reference.arrays import Array
from ...reference.threads import ops_limit
from . import extensions, failures, shutdown

_ocos = extensions.load()
shutdown.run_first_at_exit()
PyCustomOpDef, onnx_op = _ocos.PyCustomOpDef, _ocos.Opdef.declare
library_path: str = _ocos.get_library_path()


class Output(np.ndarray[Any, Any]):
    """An op's output, as a view that onnxruntime-extensions copy in one piece instead of number by number.

    The extensions call ``.shape`` and ``.flatten().tolist()``, and take an array of the right item size for the list.
    """

    def flatten(self, *_: object) -> Any:
        return self

    def tolist(self) -> Any:
        return list(self.ravel()) if self.dtype.kind == "O" else self  # strings do need a list


#: The second output where the failure cannot even be recorded.
_LOST = np.array([[failures.LOST]], np.int64).view(Output)
_NOTHING = {np.dtype(kind): np.empty(0, kind).view(Output) for kind in "?bBhHiIlLqQfdO"}


def _guarded(operator: str, function: Callable[..., Array]) -> Callable[..., tuple[Output, Output]]:
    """An op of ``function``: Y and the positions along its first axis, or an empty Y and the number of the failure."""

    def op(*inputs: Array, align_corners: int, node: str, num_threads: int, **words: str) -> tuple[Output, Output]:
        shutdown.hold()
        try:
            here, threads = node_label(operator, node), num_threads or None
            with ops_limit:
                array = function(*inputs, align_corners=bool(align_corners), **words, where=here, num_threads=threads)
            # onnxruntime's copy and the guard's need as much again each, and without memory would end the process.
            memory.probe(2 * memory.copied_bytes(array))
            return array.view(Output), np.arange(len(array), dtype=np.int64)[:, None].view(Output)
        except BaseException as failure:  # also KeyboardInterrupt and SystemExit: none may leave an op
            nothing = _NOTHING.get(inputs[0].dtype, _NOTHING[np.dtype(object)])
            try:
                return nothing, np.array([[failures.record(failure)]], np.int64).view(Output)
            except BaseException:  # no memory or no stack
                return nothing, _LOST

    return op


_INTEGER, _STRING = PyCustomOpDef.dt_int64, PyCustomOpDef.dt_string


def _cast_attributes(kinds: dict[str, Any], attributes: dict[str, str]) -> dict[str, str | int]:
    return {name: value if kinds[name] == _STRING else int(value) for name, value in attributes.items()}


def _register_all() -> None:  # pragma: no mutate block
    functions: dict[str, Callable[..., Array]] = {
        "GridSample": lambda *a, **k: grid_sample(*a, **k),
        "AffineGrid": lambda *a, **k: affine_grid(*a, **k),
        ATTENTION: lambda *a, **k: attend(*a, **k),
    }
    for operator, function in functions.items():
        version = spec.newest(operator)
        # Its own attributes, the node's name for errors, and a number of threads (0: the default).
        defaults = {**{name: each.default for name, each in version.attributes.items()}, "node": "", "num_threads": 0}
        attributes = {name: _STRING if isinstance(each, str) else _INTEGER for name, each in defaults.items()}
        alternatives = (dict.fromkeys(spec.TYPES[t].transport for t in each) for each in version.types.values())
        for types in product(*(filter(None, each) for each in alternatives)):
            inputs = [int(getattr(PyCustomOpDef, f"dt_{spec.TYPES[name].onnx}")) for name in types]
            outputs, name = [inputs[0], _INTEGER], f"{DOMAIN}::{operator}"
            declared = onnx_op(op_type=name, inputs=inputs, outputs=outputs, attrs=attributes)
            op = declared(_guarded(operator, function))
            # The original asks the C++ side for each attribute's type at each call: 10 times as slow.
            op.cast_attributes = partial(_cast_attributes, attributes)


if "_ort_gridsample_ops" not in vars(_ocos):  # else another copy of this module was imported before
    vars(_ocos)["_ort_gridsample_ops"] = True
    _register_all()
