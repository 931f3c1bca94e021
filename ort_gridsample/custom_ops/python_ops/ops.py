"""The operators as Python ops of ONNX Runtime, in the domain ``ort_gridsample``.

An op passes its arrays to the function of the same name. It stores an exception in
:mod:`.failures`, as an exception that leaves an op aborts the process. All ops are registered here
together, once: a later registration in the same domain would crash existing sessions. Importing
this module raises ImportError if onnxruntime-extensions is missing.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ... import spec
from ...dialects.table import DOMAIN
from ...errors import where_node
from ...functions.operators import function_of
from ...functions.validation import memory_error
from ...reference.arrays import Array
from ...system import memory
from ...system.concurrency import ops_limit
from . import extensions, failures, shutdown

_ocos = extensions.load()
shutdown.run_first_at_exit()
PyCustomOpDef = _ocos.PyCustomOpDef
onnx_op = _ocos.Opdef.declare
library_path: str = _ocos.get_library_path()

_INTEGER = PyCustomOpDef.dt_int64
_STRING = PyCustomOpDef.dt_string


class Output(np.ndarray[Any, Any]):
    """A view of an output that onnxruntime-extensions copies in one piece, not element by element.

    The extensions read ``.shape`` and call ``.flatten().tolist()``. Instead of the list they accept
    an array with the right item size.
    """

    def flatten(self, *_: object) -> Any:
        return self

    def tolist(self) -> Any:
        return list(self.ravel()) if self.dtype.kind == "O" else self  # strings need a list


#: The status output if an exception cannot be stored.
_LOST_STATUS = np.array([[failures.LOST]], np.int64).view(Output)
#: An empty Y for each type, which the op returns after an exception.
_EMPTY = {np.dtype(kind): np.empty(0, kind).view(Output) for kind in "?bBhHiIlLqQfdO"}


def _as_op(operator: str) -> Callable[..., tuple[Output, Output]]:
    """Return the function of an operator as an op.

    The op returns Y and the positions along its first axis; or, after an exception, an empty Y and
    the number of the exception.
    """

    def op(
        *inputs: Array,
        align_corners: int,
        node: str,
        num_threads: int,
        **words: str,
    ) -> tuple[Output, Output]:
        shutdown.block_if_exiting()
        try:
            with ops_limit:
                Y = function_of(operator)(
                    *inputs,
                    align_corners=bool(align_corners),
                    **words,
                    where=where_node(operator, node),
                    num_threads=num_threads or None,
                )
            # onnxruntime and the guard copy Y. Without memory for that, the process would end.
            try:
                memory.check_allocatable(2 * memory.copied_bytes(Y))
                positions = np.arange(len(Y), dtype=np.int64)[:, None]
            except MemoryError as error:
                raise memory_error(where_node(operator, node), error) from error
            return Y.view(Output), positions.view(Output)
        except BaseException as failure:  # none may leave an op, nor KeyboardInterrupt
            empty = _EMPTY.get(inputs[0].dtype, _EMPTY[np.dtype(object)])
            try:
                return empty, np.array([[failures.record(failure)]], np.int64).view(Output)
            except BaseException:  # no memory, or no stack
                return empty, _LOST_STATUS

    return op


def _cast_attributes(kinds: dict[str, Any], attributes: dict[str, str]) -> dict[str, str | int]:
    """Convert the attributes of a node from strings to their types."""
    values: dict[str, str | int] = {}
    for name, value in attributes.items():
        values[name] = value if kinds[name] == _STRING else int(value)
    return values


def _attribute_kinds(version: spec.Version) -> dict[str, Any]:
    """Return the types of an op's attributes by name."""
    defaults: dict[str, Any] = {name: row.default for name, row in version.attributes.items()}
    defaults["node"] = ""  # the name of the node, for errors
    defaults["num_threads"] = 0  # 0: the default
    kinds = {}
    for name, default in defaults.items():
        kinds[name] = _STRING if isinstance(default, str) else _INTEGER
    return kinds


def _input_types(version: spec.Version) -> Iterator[list[int]]:
    """Yield all combinations of the types of an op's inputs, by onnxruntime-extensions' numbers."""
    alternatives = []
    for names in version.types.values():
        transports = dict.fromkeys(spec.TYPES[name].transport for name in names)
        alternatives.append([name for name in transports if name])
    for combination in product(*alternatives):
        yield [int(getattr(PyCustomOpDef, f"dt_{spec.TYPES[name].onnx}")) for name in combination]


def _register_all() -> None:  # pragma: no mutate block
    for operator in spec.OP_SPECS:
        version = spec.newest(operator)
        kinds = _attribute_kinds(version)
        for inputs in _input_types(version):
            declare = onnx_op(
                op_type=f"{DOMAIN}::{operator}",
                inputs=inputs,
                outputs=[inputs[0], _INTEGER],
                attrs=kinds,
            )
            op = declare(_as_op(operator))
            # The original calls C++ for each attribute's type at each call: 10 times as slow.
            op.cast_attributes = partial(_cast_attributes, kinds)


# Unless another copy of this module registered them before.
if "_ort_gridsample_ops" not in vars(_ocos):
    vars(_ocos)["_ort_gridsample_ops"] = True
    _register_all()
