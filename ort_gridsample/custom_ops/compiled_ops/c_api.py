"""The parts of ONNX Runtime's C API that the compiled ops use: the struct OrtCustomOp and the function table OrtApi.

All offsets are defined in this module, for 64-bit processes. Source: ``onnxruntime_c_api.h``. OrtApi only grows at its
end, so a function keeps its offset in all later releases. A test compares the offsets with the declarations there.
"""

from __future__ import annotations

import ctypes
from typing import Any

import onnxruntime

from ... import versions

#: The version of the struct: of the oldest onnxruntime that the package stands on, 1.17, whose table has every function
#: below.
VERSION = 17
#: A status' code: ORT_INVALID_ARGUMENT.
INVALID_ARGUMENT = 2

#: Where in the table a function lies, in bytes.
FUNCTIONS = {
    "CreateStatus": 0, "GetErrorMessage": 16, "CreateCustomOpDomain": 208, "CustomOpDomain_Add": 216,
    "AddCustomOpDomain": 224,
    "GetTensorMutableData": 408, "CreateTensorTypeAndShapeInfo": 456, "SetTensorElementType": 464, "SetDimensions": 472,
    "GetTensorElementType": 480, "GetDimensionsCount": 488, "GetDimensions": 496, "GetSymbolicDimensions": 504,
    "GetTensorTypeAndShape": 520, "KernelInfoGetAttribute_int64": 688, "KernelInfoGetAttribute_string": 696,
    "KernelContext_GetInput": 720, "KernelContext_GetOutput": 728, "ReleaseStatus": 744,
    "ReleaseTensorTypeAndShapeInfo": 792, "ReleaseCustomOpDomain": 808, "KernelInfoGetAttributeArray_int64": 1304,
    "KernelInfo_GetNodeName": 1952, "ShapeInferContext_GetInputTypeShape": 2144,
    "ShapeInferContext_SetOutputTypeShape": 2160, "SetSymbolicDimensions": 2168, "KernelContext_ParallelFor": 2192,
}  # fmt: skip

#: ``GetTensorElementTypeAndShapeDataReference``, which says a shape without making an object of it, and the minor
#: version of the 1.x release that brought it.
SHAPE_OF, SHAPE_OF_SINCE = 3312, 24
#: The element types of :data:`ort_gridsample.spec.TYPES` by ``ONNXTensorElementDataType``.
ELEMENT_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7,
    "bool": 9, "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip

#: The fields of ``OrtCustomOp``, the struct by which ONNX Runtime knows an op: its version, then functions. One that is
#: left out is null, and is not called.
FIELDS = """
version CreateKernel GetName GetExecutionProviderType GetInputType GetInputTypeCount GetOutputType GetOutputTypeCount
KernelCompute KernelDestroy GetInputCharacteristic GetOutputCharacteristic GetInputMemoryType GetVariadicInputMinArity
GetVariadicInputHomogeneity GetVariadicOutputMinArity GetVariadicOutputHomogeneity CreateKernelV2 KernelComputeV2
InferOutputShapeFn GetStartVersion GetEndVersion
"""

#: What functions of the interface take and answer with, each in a register: an address, a size or a small number.
word = ctypes.c_int64


def kind(n_arguments: int) -> Any:
    """The ctypes type of a function with so many arguments."""
    return ctypes.CFUNCTYPE(word, *[word] * n_arguments)


def function(address: int, n_arguments: int) -> Any:
    """The C function at ``address``, to be called from Python."""
    return kind(n_arguments)(address)


def call(table: int, name: str, *arguments: int) -> int:
    """Call a function of the OrtApi at ``table``. The result is an OrtStatus*, 0 for success."""
    return function(word.from_address(table + FUNCTIONS[name]).value, len(arguments))(*arguments)


def get_api(base: int, version: int) -> int:
    """The OrtApi of an OrtApiBase; 0 where this onnxruntime is older than ``version``."""
    return function(word.from_address(base).value, 1)(version)


def status(table: int, text: str) -> int:
    """A new OrtStatus with this message, which the caller owns."""
    create = ctypes.PYFUNCTYPE(word, ctypes.c_int, ctypes.c_char_p)
    return create(word.from_address(table + FUNCTIONS["CreateStatus"]).value)(INVALID_ARGUMENT, text.encode())


def shape_of(table: int) -> int:
    """The address of the function at :data:`SHAPE_OF`; 0 where this onnxruntime does not have it."""
    # A build from the development branch has the number of the next release, and may still lack the function.
    has_it = versions.is_at_least(onnxruntime.__version__, f"1.{SHAPE_OF_SINCE + 1}")
    return word.from_address(table + SHAPE_OF).value if has_it else 0
