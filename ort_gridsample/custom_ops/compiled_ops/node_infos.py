"""States of nodes that ONNX Runtime does not have.

The execution provider runs several nodes as one, for which ONNX Runtime has no OrtKernelInfo.
CreateKernelV2 of the op then gets a copy of the OrtApi. Its functions of an OrtKernelInfo read an
onnx.NodeProto, so that the op makes the state of every node in the same way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import count

import onnx

from ...system.process import keep_forever
from . import c_api
from .c_api import FUNCTIONS, word

#: CreateKernelV2 of an op, in Python: it gets addresses, and returns an OrtStatus*.
Create = Callable[[int, int, int, int], int]


class NodeInfos:
    """Nodes in place of OrtKernelInfos.

    Args:
        api: the address of the OrtApi.
    """

    def __init__(self, api: int) -> None:
        self._api = api
        #: The numbers that functions of the OrtApi get as OrtKernelInfo* -> the nodes.
        self._nodes: dict[int, onnx.NodeProto] = {}
        self._numbers = count(1)
        last = max(
            function.offset for function in FUNCTIONS.values() if function.struct == "OrtApi"
        )
        size = last + ctypes.sizeof(word)
        self._table = ctypes.create_string_buffer(ctypes.string_at(api, size), size)
        replacements: dict[str, Callable[..., int]] = {
            "KernelInfoGetAttribute_int64": self._get_integer,
            "KernelInfoGetAttribute_string": self._get_text,
            "KernelInfoGetAttributeArray_int64": self._get_integers,
            "KernelInfo_GetNodeName": self._get_name,
        }
        callbacks = []
        for name, function in replacements.items():
            row = FUNCTIONS[name]
            callbacks.append(c_api.callback(row.n_arguments, function, self._failure))
            address = ctypes.addressof(self._table) + row.offset
            word.from_address(address).value = c_api.address_of_callback(callbacks[-1])
        # The states refer to the table.
        keep_forever((self._table, callbacks))

    def create_state(self, create: Create, op_address: int, node: onnx.NodeProto) -> int:
        """Return the address of the state that an op creates for a node.

        Args:
            create: CreateKernelV2 of the op.
            op_address: its OrtCustomOp.
            node: a node of the op.

        Raises:
            RuntimeError: the op refuses the node.
        """
        number = next(self._numbers)
        self._nodes[number] = node
        state = word()
        try:
            table = ctypes.addressof(self._table)
            c_api.check(self._api, create(op_address, table, number, ctypes.addressof(state)))
        finally:
            del self._nodes[number]
        return state.value

    def _attribute(self, number: int, name: int) -> onnx.AttributeProto:
        """Return the attribute ``name``, the address of a text.

        Raises:
            KeyError: the node has no such attribute.
        """
        text = ctypes.string_at(name).decode()
        for attribute in self._nodes[number].attribute:
            if attribute.name == text:
                return attribute
        raise KeyError(text)

    def _get_integer(self, number: int, name: int, out: int) -> int:
        """KernelInfoGetAttribute_int64."""
        word.from_address(out).value = self._attribute(number, name).i
        return 0

    def _get_integers(self, number: int, name: int, out: int, size: int) -> int:
        """KernelInfoGetAttributeArray_int64: without ``out``, it only sets the size."""
        values = self._attribute(number, name).ints
        if out:
            (word * len(values)).from_address(out)[:] = values
        word.from_address(size).value = len(values)
        return 0

    def _get_text(self, number: int, name: int, out: int, size: int) -> int:
        """KernelInfoGetAttribute_string."""
        return _copy_text(self._attribute(number, name).s, out, size)

    def _get_name(self, number: int, out: int, size: int) -> int:
        """KernelInfo_GetNodeName."""
        return _copy_text(self._nodes[number].name.encode(), out, size)

    def _failure(self, error: BaseException, *_: int) -> int:
        return c_api.status_of(self._api, error)


def _copy_text(text: bytes, out: int, size: int) -> int:
    """Copy a text to ``out`` unless that is 0, and set ``size``. Both have the terminating 0."""
    if out:
        ctypes.memmove(out, text + b"\0", len(text) + 1)
    word.from_address(size).value = len(text) + 1
    return 0
