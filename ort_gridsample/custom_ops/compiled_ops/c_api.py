"""The parts of ONNX Runtime's C API that the compiled ops use.

These are the struct OrtCustomOp and the function table OrtApi.
All offsets are defined in this module, for 64-bit processes. Source: ``onnxruntime_c_api.h``.
OrtApi only grows at its end, so a function keeps its offset in all later releases. A test compares
the offsets with the declarations there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import onnxruntime

from ... import versions
from ..signals import NeverRaising

#: The version of the struct and of the table: that of onnxruntime 1.17, the oldest release that
#: this package supports. Its table has all functions of :data:`FUNCTION_OFFSETS`.
VERSION = 17
#: The error code of an OrtStatus: ORT_INVALID_ARGUMENT.
INVALID_ARGUMENT = 2

#: The offsets of functions in OrtApi, in bytes.
FUNCTION_OFFSETS = {
    "CreateStatus": 0,
    "GetErrorMessage": 16,
    "CreateCustomOpDomain": 208,
    "CustomOpDomain_Add": 216,
    "AddCustomOpDomain": 224,
    "GetTensorMutableData": 408,
    "CreateTensorTypeAndShapeInfo": 456,
    "SetTensorElementType": 464,
    "SetDimensions": 472,
    "GetTensorElementType": 480,
    "GetDimensionsCount": 488,
    "GetDimensions": 496,
    "GetSymbolicDimensions": 504,
    "GetTensorTypeAndShape": 520,
    "KernelInfoGetAttribute_int64": 688,
    "KernelInfoGetAttribute_string": 696,
    "KernelContext_GetInput": 720,
    "KernelContext_GetOutput": 728,
    "ReleaseStatus": 744,
    "ReleaseTensorTypeAndShapeInfo": 792,
    "ReleaseCustomOpDomain": 808,
    "KernelInfoGetAttributeArray_int64": 1304,
    "KernelInfo_GetNodeName": 1952,
    "ShapeInferContext_GetInputTypeShape": 2144,
    "ShapeInferContext_SetOutputTypeShape": 2160,
    "SetSymbolicDimensions": 2168,
    "KernelContext_ParallelFor": 2192,
}

#: The offset of ``GetTensorElementTypeAndShapeDataReference``, which returns a shape without
#: creating an object for it.
SHAPE_REFERENCE = 3312
#: The minor version of the 1.x release that introduced this function.
SHAPE_REFERENCE_SINCE = 24

#: The element types of :data:`ort_gridsample.spec.TYPES` by ``ONNXTensorElementDataType``.
ELEMENT_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
}

#: The fields of ``OrtCustomOp``: the version of the struct, then functions. ONNX Runtime does not
#: call functions that are null.
FIELDS = """
version CreateKernel GetName GetExecutionProviderType GetInputType GetInputTypeCount
GetOutputType GetOutputTypeCount KernelCompute KernelDestroy GetInputCharacteristic
GetOutputCharacteristic GetInputMemoryType GetVariadicInputMinArity GetVariadicInputHomogeneity
GetVariadicOutputMinArity GetVariadicOutputHomogeneity CreateKernelV2 KernelComputeV2
InferOutputShapeFn GetStartVersion GetEndVersion
"""

#: The type of all arguments and results: an address, a size or a small number, each in one
#: register.
word = ctypes.c_int64


def function_type(n_arguments: int) -> Any:
    """Return the ctypes type of a C function with ``n_arguments`` arguments."""
    return ctypes.CFUNCTYPE(word, *[word] * n_arguments)


def function(address: int, n_arguments: int) -> Any:
    """Return the C function at ``address`` as a Python callable."""
    return function_type(n_arguments)(address)


def callback(n_arguments: int, function: Callable[..., int], failure: Callable[..., int]) -> Any:
    """Return a C function that calls a Python function and never raises.

    Args:
        n_arguments: the number of its arguments.
        function: the Python function.
        failure: returns the result if ``function`` raises, from the exception and the arguments.
    """
    return function_type(n_arguments)(NeverRaising(function, failure))


def address_of_callback(callback: Any) -> int:
    """Return the address of a C function of ctypes."""
    return ctypes.cast(callback, ctypes.c_void_p).value or 0


def call(api: int, name: str, *arguments: int) -> int:
    """Call the function ``name`` of the OrtApi at ``api``, and return its OrtStatus*."""
    address = word.from_address(api + FUNCTION_OFFSETS[name]).value
    return function(address, len(arguments))(*arguments)


def get_api(base: int, version: int) -> int:
    """Return the OrtApi of an OrtApiBase; 0 if this onnxruntime is older than ``version``."""
    return function(word.from_address(base).value, 1)(version)


def check(api: int, status: int) -> None:
    """Release an OrtStatus*, and raise RuntimeError with its message unless it is null."""
    if status:
        message = ctypes.string_at(call(api, "GetErrorMessage", status)).decode()
        call(api, "ReleaseStatus", status)
        raise RuntimeError(message)


def create_status(api: int, message: str) -> int:
    """Return a new OrtStatus* with this message. The caller owns it.

    Characters that UTF-8 does not encode, as of a path, are escaped.
    """
    create = ctypes.PYFUNCTYPE(word, ctypes.c_int, ctypes.c_char_p)
    address = word.from_address(api + FUNCTION_OFFSETS["CreateStatus"]).value
    return create(address)(INVALID_ARGUMENT, message.encode(errors="backslashreplace"))


def status_of(api: int, error: BaseException) -> int:
    """Return a new OrtStatus* for an exception. The caller owns it."""
    return create_status(api, f"{type(error).__name__}: {error}")


def shape_reference(api: int) -> int:
    """Return the address of the function at :data:`SHAPE_REFERENCE`; 0 if it does not exist."""
    # A build from the development branch has the number of the next release, and may still lack the
    # function.
    if not versions.is_at_least(onnxruntime.__version__, f"1.{SHAPE_REFERENCE_SINCE + 1}"):
        return 0
    return word.from_address(api + SHAPE_REFERENCE).value
