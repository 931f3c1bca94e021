"""ONNX Runtime's C interface, as far as the compiled ops speak it: one struct, and a table of functions.

Nobody else knows an offset. Source: ``onnxruntime_c_api.h``, whose table only ever grows at its end: a function stays
where the release that brought it put it. All offsets are for 64-bit processes.
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
    "CreateStatus": 0, "CreateCustomOpDomain": 208, "CustomOpDomain_Add": 216, "AddCustomOpDomain": 224,
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


def status(table: int, text: str) -> int:
    """A new status that says ``text``; whoever gets it owns it."""
    create = ctypes.PYFUNCTYPE(word, ctypes.c_int, ctypes.c_char_p)
    return create(word.from_address(table + FUNCTIONS["CreateStatus"]).value)(INVALID_ARGUMENT, text.encode())


def shape_of(table: int) -> int:
    """The address of :data:`SHAPE_OF`; 0 where this onnxruntime has no such function."""
    # A build on the way to a release is named after it, and need not have it yet.
    has_it = versions.at_least(onnxruntime.__version__, f"1.{SHAPE_OF_SINCE + 1}")
    return word.from_address(table + SHAPE_OF).value if has_it else 0
