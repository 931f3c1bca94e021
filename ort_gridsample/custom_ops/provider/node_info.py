"""An OrtKernelInfo of this package, for nodes that replace a subgraph.

ONNX Runtime has no attributes of such a node. An op reads attributes through functions of the
OrtApi, so these functions are replaced in a copy of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence

from ..compiled_ops import c_api
from ..compiled_ops.catalog import Op
from ..compiled_ops.registry import compiled_ops
from ..compiled_ops.structs import BASIC_STATE

#: The value of an attribute.
Attribute = int | str | Sequence[int]


def create_state(
    op: Op, types: tuple[str, ...], attributes: Mapping[str, Attribute], api: int
) -> int:
    """Return the address of the state that an op creates for a node. Its KernelDestroy frees it.

    Args:
        op: the op.
        types: the types of its inputs.
        attributes: the attributes of the node. ``node`` is its name in errors.
        api: the address of the OrtApi.

    Raises:
        RuntimeError: the op refuses the attributes.
    """
    info = _NodeInfo(attributes, api)
    state = compiled_ops().create_state(op, types, info.api, info=0)
    _, offset, *_ = BASIC_STATE.fields["api"]  # type: ignore[index]
    c_api.word.from_address(state + offset).value = api  # every state has it at this offset
    return state


class _NodeInfo:
    """A copy of an OrtApi whose functions for an OrtKernelInfo return the attributes of a node.

    Args:
        attributes: the attributes.
        api: the address of the OrtApi.

    Attributes:
        api: the address of the copy. It exists as long as this object.
    """

    def __init__(self, attributes: Mapping[str, Attribute], api: int) -> None:
        self._attributes = attributes
        self._original_api = api
        nbytes = max(c_api.FUNCTION_OFFSETS.values()) + ctypes.sizeof(c_api.word)
        self._table = ctypes.create_string_buffer(ctypes.string_at(api, nbytes), nbytes)
        self.api = ctypes.addressof(self._table)
        self._callbacks = [
            self._replace("KernelInfoGetAttribute_int64", 3, self._read_integer),
            self._replace("KernelInfoGetAttribute_string", 4, self._read_text),
            self._replace("KernelInfoGetAttributeArray_int64", 4, self._read_integers),
        ]

    def _replace(self, name: str, n_arguments: int, function: Callable[..., int]) -> object:
        """Replace a function of the copy; return the C function, which must be kept."""
        callback = c_api.callback(n_arguments, function, self._failure)
        place = c_api.word.from_address(self.api + c_api.FUNCTION_OFFSETS[name])
        place.value = c_api.address_of_callback(callback)
        return callback

    def _failure(self, error: BaseException, *_: int) -> int:
        return c_api.status_of(self._original_api, error)

    def _attribute(self, name: int) -> Attribute:
        return self._attributes[ctypes.string_at(name).decode()]

    def _read_integer(self, info: int, name: int, out: int) -> int:
        value = self._attribute(name)
        assert isinstance(value, int)
        c_api.word.from_address(out).value = value
        return 0

    def _read_text(self, info: int, name: int, out: int, size: int) -> int:
        """Write the size of a text with its terminating 0, and the text if there is memory."""
        value = self._attribute(name)
        assert isinstance(value, str)
        text = value.encode() + b"\0"
        c_api.word.from_address(size).value = len(text)
        if out:
            ctypes.memmove(out, text, len(text))
        return 0

    def _read_integers(self, info: int, name: int, out: int, size: int) -> int:
        """Write the number of integers, and the integers if there is memory."""
        value = self._attribute(name)
        assert isinstance(value, Sequence)
        c_api.word.from_address(size).value = len(value)
        if out:
            integers = (c_api.word * len(value))(*map(int, value))
            ctypes.memmove(out, integers, ctypes.sizeof(integers))
        return 0
