"""ONNX Runtime's C interface, as far as the compiled ops speak it: one struct, and a table of functions.

Nobody else knows an offset. Source: ``onnxruntime_c_api.h``, whose table only ever grows at its end: a function stays
where the release that brought it put it. All offsets are for 64-bit processes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import onnxruntime

from ... import versions

#: The version of the struct: of the oldest onnxruntime that the package stands on, 1.17, whose table has every function
#: below.
VERSION = 17

#: A status' code: ORT_INVALID_ARGUMENT.
INVALID_ARGUMENT = 2


class Function(NamedTuple):
    """Where in the table a function lies, in bytes, and the minor version of the 1.x release that brought it."""

    offset: int
    since: int


FUNCTIONS = {
    "CreateStatus": Function(0, 0),
    "GetErrorMessage": Function(16, 0),
    "GetTensorMutableData": Function(408, 0),
    "CreateTensorTypeAndShapeInfo": Function(456, 0),
    "SetTensorElementType": Function(464, 0),
    "SetDimensions": Function(472, 0),
    "GetTensorElementType": Function(480, 0),
    "GetDimensionsCount": Function(488, 0),
    "GetDimensions": Function(496, 0),
    "GetSymbolicDimensions": Function(504, 0),
    "GetTensorTypeAndShape": Function(520, 0),
    "KernelInfoGetAttribute_int64": Function(688, 0),
    "KernelInfoGetAttribute_string": Function(696, 0),
    "KernelContext_GetInput": Function(720, 0),
    "KernelContext_GetOutput": Function(728, 0),
    "ReleaseStatus": Function(744, 0),
    "ReleaseTensorTypeAndShapeInfo": Function(792, 0),
    "KernelInfo_GetNodeName": Function(1952, 14),
    "ShapeInferContext_GetInputTypeShape": Function(2144, 17),
    "ShapeInferContext_SetOutputTypeShape": Function(2160, 17),
    "SetSymbolicDimensions": Function(2168, 17),
    "KernelContext_ParallelFor": Function(2192, 17),
}

#: ``GetTensorElementTypeAndShapeDataReference``, which says a shape without making an object of it.
SHAPE_OF = Function(3312, 24)

#: The element types of :data:`ort_gridsample.spec.TYPES` by ``ONNXTensorElementDataType``.
ELEMENT_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7,
    "bool": 9, "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip

address, count = ctypes.c_void_p, ctypes.c_size_t
#: The kinds of functions in the struct.
Number = ctypes.CFUNCTYPE(ctypes.c_int, address)
NumberAt = ctypes.CFUNCTYPE(ctypes.c_int, address, count)
Size = ctypes.CFUNCTYPE(count, address)
Text = ctypes.CFUNCTYPE(address, address)
CreateKernel = ctypes.CFUNCTYPE(address, address, address, address, ctypes.POINTER(address))
InferShape = ctypes.CFUNCTYPE(address, address, address)


class OrtCustomOp(ctypes.Structure):
    """The struct by which ONNX Runtime knows an op; a field that is left out is null, and is not called."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("CreateKernel", address),
        ("GetName", Text),
        ("GetExecutionProviderType", Text),
        ("GetInputType", NumberAt),
        ("GetInputTypeCount", Size),
        ("GetOutputType", NumberAt),
        ("GetOutputTypeCount", Size),
        ("KernelCompute", address),
        ("KernelDestroy", address),
        ("GetInputCharacteristic", NumberAt),
        ("GetOutputCharacteristic", NumberAt),
        ("GetInputMemoryType", NumberAt),
        ("GetVariadicInputMinArity", Number),
        ("GetVariadicInputHomogeneity", Number),
        ("GetVariadicOutputMinArity", Number),
        ("GetVariadicOutputHomogeneity", Number),
        ("CreateKernelV2", CreateKernel),
        ("KernelComputeV2", address),
        ("InferOutputShapeFn", InferShape),
        ("GetStartVersion", Number),
        ("GetEndVersion", Number),
    )


class RefusedError(Exception):
    """A function of the table answered with a status; its text."""


class Api:
    """The table of functions at ``table``, for Python: what runs when a session is made, never what runs in a run."""

    def __init__(self, table: int) -> None:
        self.table = table

    @property
    def shape_of(self) -> int:
        """The address of :data:`SHAPE_OF`; 0 where this onnxruntime has no such function."""
        # A build on the way to a release is named after it, and need not have it yet.
        if not versions.at_least(onnxruntime.__version__, f"1.{SHAPE_OF.since + 1}"):
            return 0
        return _address_at(self.table + SHAPE_OF.offset)

    def _function(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        return _function_of(self.table, name, result, *map(type, arguments))

    def ask(self, name: str, *arguments: Any) -> None:
        """Call the function ``name``, of ctypes' ``arguments``, which answers with a status.

        Raises:
            RefusedError: the status is none of success.
        """
        status = self._function(name, address, arguments)(*arguments)
        if status is not None:
            text = self._function("GetErrorMessage", ctypes.c_char_p, (address(status),))(status)
            self.release("ReleaseStatus", status)
            raise RefusedError(text.decode(errors="replace"))

    def release(self, name: str, at: int) -> None:
        """Call the function ``name`` that gives back what lies ``at``."""
        self._function(name, None, (address(at),))(at)

    def status(self, text: str) -> int:
        """A new status that says ``text``; whoever gets it owns it."""
        arguments = ctypes.c_int(INVALID_ARGUMENT), ctypes.c_char_p(text.encode())
        return int(self._function("CreateStatus", address, arguments)(*arguments))

    def integer(self, info: int, name: str) -> int:
        """The integer attribute ``name`` of the node of ``info``."""
        value = ctypes.c_int64()
        self.ask("KernelInfoGetAttribute_int64", address(info), _chars(name), address(ctypes.addressof(value)))
        return value.value

    def text(self, info: int, name: str) -> str:
        """The string attribute ``name`` of the node of ``info``."""
        return self._text("KernelInfoGetAttribute_string", address(info), _chars(name))

    def node_name(self, info: int) -> str:
        """The name of the node of ``info``; empty where it has none."""
        return self._text("KernelInfo_GetNodeName", address(info))

    def _text(self, name: str, *arguments: Any) -> str:
        """The text that a function writes where it is told to, once it has said how long it is."""
        size = count(0)
        at_size = address(ctypes.addressof(size))
        self.ask(name, *arguments, address(None), at_size)
        buffer = ctypes.create_string_buffer(size.value)
        self.ask(name, *arguments, address(ctypes.addressof(buffer)), at_size)
        return buffer.value.decode(errors="replace")

    def input_type(self, context: int, index: int) -> tuple[int, list[int | str | None]]:
        """An input's element type and shape while shapes are inferred; no axes also where nothing is known of them."""
        info, element_type = address(), ctypes.c_int()
        self.ask("ShapeInferContext_GetInputTypeShape", address(context), count(index), _at(info))
        self.ask("GetTensorElementType", info, _at(element_type))
        axes = count()
        self.ask("GetDimensionsCount", info, _at(axes))
        lengths, names = (ctypes.c_int64 * axes.value)(), (ctypes.c_char_p * axes.value)()
        self.ask("GetDimensions", info, _at(lengths), axes)
        if min(lengths, default=0) < 0:
            self.ask("GetSymbolicDimensions", info, _at(names), axes)
        return element_type.value, [
            length if length >= 0 else name.decode(errors="replace") if name else None
            for length, name in zip(lengths, names, strict=True)
        ]

    def set_output_type(self, context: int, element_type: int, shape: list[int | str]) -> None:
        """Say that the output has this type and ``shape``, while shapes are inferred."""
        info, axes = address(), count(len(shape))
        self.ask("CreateTensorTypeAndShapeInfo", _at(info))
        assert info.value is not None
        try:
            lengths = (ctypes.c_int64 * len(shape))(*(d if isinstance(d, int) else -1 for d in shape))
            names = (ctypes.c_char_p * len(shape))(*(b"" if isinstance(d, int) else d.encode() for d in shape))
            self.ask("SetTensorElementType", info, ctypes.c_int(element_type))
            self.ask("SetDimensions", info, _at(lengths), axes)
            if min(lengths, default=0) < 0:
                self.ask("SetSymbolicDimensions", info, _at(names), axes)
            self.ask("ShapeInferContext_SetOutputTypeShape", address(context), count(0), info)
        finally:
            self.release("ReleaseTensorTypeAndShapeInfo", info.value)


@cache
def _function_of(table: int, name: str, result: Any, *kinds: Any) -> Callable[..., Any]:
    return ctypes.PYFUNCTYPE(result, *kinds)(_address_at(table + FUNCTIONS[name].offset))


def _address_at(place: int) -> int:
    """The address that lies at this one."""
    return ctypes.c_int64.from_address(place).value


def _at(value: Any) -> ctypes.c_void_p:
    return address(ctypes.addressof(value))


def _chars(text: str) -> ctypes.c_char_p:
    return ctypes.c_char_p(text.encode())


def why_not() -> str:
    """Why ONNX Runtime cannot be spoken to in this way; empty where it can."""
    return "" if ctypes.sizeof(address) == 8 else "this Python is not a 64-bit one"
