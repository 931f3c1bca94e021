"""ONNX Runtime's C API: the functions that this package calls, and the struct of a custom op.

The functions are those of the function tables OrtApi and OrtEpApi. All offsets are for 64-bit
processes. Sources: ``onnxruntime_c_api.h`` and ``onnxruntime_ep_c_api.h``. The tables only grow at
their ends, so a function keeps its offset in all later releases. A test compares offsets and
numbers of arguments with the declarations there.

:mod:`.api_functions` has the same functions for compiled code. The structs of an execution provider
are in :mod:`ort_gridsample.custom_ops.provider.ep_api`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import onnxruntime

from ..signals import NeverRaising

#: The version of OrtCustomOp and of the OrtApi that the compiled ops use: that of onnxruntime 1.17,
#: the oldest release that this package supports.
VERSION = 17
#: The error code of an OrtStatus: ORT_INVALID_ARGUMENT.
INVALID_ARGUMENT = 2
#: The type of an attribute that is a text, an OrtOpAttrType.
STRING_ATTRIBUTE = 5


class Function(NamedTuple):
    """A function of a function table.

    Attributes:
        struct: the table, a C struct.
        name: the name of the function.
        offset: its offset in the struct, in bytes.
        n_arguments: the number of its arguments.
        since: the minor version of the 1.x release that introduced the function, or
            :data:`VERSION` if an older release did.
    """

    struct: str
    name: str
    offset: int
    n_arguments: int
    since: int


#: The functions that this package calls. Python calls them with :func:`call`, and compiled code
#: with :func:`.api_functions.api_function`.
FUNCTIONS: Mapping[str, Function] = {
    function.name: function
    for function in (
        # struct, name, offset, n_arguments, since
        Function("OrtApi", "CreateStatus", 0, 2, 17),
        Function("OrtApi", "GetErrorMessage", 16, 1, 17),
        Function("OrtApi", "CreateCustomOpDomain", 208, 2, 17),
        Function("OrtApi", "CustomOpDomain_Add", 216, 2, 17),
        Function("OrtApi", "AddCustomOpDomain", 224, 2, 17),
        Function("OrtApi", "GetTensorMutableData", 408, 2, 17),
        Function("OrtApi", "CastTypeInfoToTensorInfo", 440, 2, 17),
        Function("OrtApi", "CreateTensorTypeAndShapeInfo", 456, 1, 17),
        Function("OrtApi", "SetTensorElementType", 464, 2, 17),
        Function("OrtApi", "SetDimensions", 472, 3, 17),
        Function("OrtApi", "GetTensorElementType", 480, 2, 17),
        Function("OrtApi", "GetDimensionsCount", 488, 2, 17),
        Function("OrtApi", "GetDimensions", 496, 3, 17),
        Function("OrtApi", "GetSymbolicDimensions", 504, 3, 17),
        Function("OrtApi", "GetTensorTypeAndShape", 520, 2, 17),
        Function("OrtApi", "KernelInfoGetAttribute_int64", 688, 3, 17),
        Function("OrtApi", "KernelInfoGetAttribute_string", 696, 4, 17),
        Function("OrtApi", "KernelContext_GetInput", 720, 3, 17),
        Function("OrtApi", "KernelContext_GetOutput", 728, 5, 17),
        Function("OrtApi", "ReleaseStatus", 744, 1, 17),
        Function("OrtApi", "ReleaseTypeInfo", 784, 1, 17),
        Function("OrtApi", "ReleaseTensorTypeAndShapeInfo", 792, 1, 17),
        Function("OrtApi", "ReleaseCustomOpDomain", 808, 1, 17),
        Function("OrtApi", "KernelInfoGetAttributeArray_int64", 1304, 4, 17),
        Function("OrtApi", "KernelInfo_GetInputTypeInfo", 1872, 3, 17),
        Function("OrtApi", "GetSessionConfigEntry", 1904, 4, 17),
        Function("OrtApi", "KernelInfo_GetNodeName", 1952, 3, 17),
        Function("OrtApi", "ShapeInferContext_GetInputTypeShape", 2144, 3, 17),
        Function("OrtApi", "ShapeInferContext_GetAttribute", 2152, 3, 17),
        Function("OrtApi", "ShapeInferContext_SetOutputTypeShape", 2160, 3, 17),
        Function("OrtApi", "SetSymbolicDimensions", 2168, 3, 17),
        Function("OrtApi", "ReadOpAttr", 2176, 5, 17),
        Function("OrtApi", "KernelContext_ParallelFor", 2192, 5, 17),
        Function("OrtApi", "GetValueInfoName", 2312, 2, 22),
        Function("OrtApi", "GetValueInfoTypeInfo", 2320, 2, 22),
        Function("OrtApi", "GetKeyValuePairs", 2384, 4, 22),
        Function("OrtApi", "ReleaseKeyValuePairs", 2400, 1, 22),
        Function("OrtApi", "HardwareDevice_Type", 2456, 1, 22),
        Function("OrtApi", "GetEpApi", 2536, 0, 22),
        Function("OrtApi", "ValueInfo_GetValueProducer", 2584, 3, 23),
        Function("OrtApi", "ValueInfo_GetInitializerValue", 2608, 2, 23),
        Function("OrtApi", "ValueInfo_IsConstantInitializer", 2648, 2, 23),
        Function("OrtApi", "Graph_GetOnnxIRVersion", 2680, 2, 23),
        Function("OrtApi", "Graph_GetNumOperatorSets", 2688, 2, 23),
        Function("OrtApi", "Graph_GetOperatorSets", 2696, 4, 23),
        Function("OrtApi", "Graph_GetNumOutputs", 2720, 2, 23),
        Function("OrtApi", "Graph_GetOutputs", 2728, 3, 23),
        Function("OrtApi", "Graph_GetNumNodes", 2752, 2, 23),
        Function("OrtApi", "Graph_GetNodes", 2760, 3, 23),
        Function("OrtApi", "Graph_GetParentNode", 2768, 2, 23),
        Function("OrtApi", "Node_GetName", 2792, 2, 23),
        Function("OrtApi", "Node_GetOperatorType", 2800, 2, 23),
        Function("OrtApi", "Node_GetDomain", 2808, 2, 23),
        Function("OrtApi", "Node_GetNumInputs", 2824, 2, 23),
        Function("OrtApi", "Node_GetInputs", 2832, 3, 23),
        Function("OrtApi", "Node_GetNumOutputs", 2840, 2, 23),
        Function("OrtApi", "Node_GetOutputs", 2848, 3, 23),
        Function("OrtApi", "Node_GetNumImplicitInputs", 2856, 2, 23),
        Function("OrtApi", "Node_GetImplicitInputs", 2864, 3, 23),
        Function("OrtApi", "Node_GetNumAttributes", 2872, 2, 23),
        Function("OrtApi", "Node_GetAttributes", 2880, 3, 23),
        Function("OrtApi", "Node_GetAttributeByName", 2888, 3, 23),
        Function("OrtApi", "OpAttr_GetType", 2904, 2, 23),
        Function("OrtApi", "OpAttr_GetName", 2912, 2, 23),
        Function("OrtApi", "Node_GetEpName", 2944, 2, 23),
        Function("OrtApi", "GetSessionOptionsConfigEntries", 3032, 2, 23),
        Function("OrtApi", "TensorTypeAndShape_HasShape", 3120, 1, 24),
        Function("OrtApi", "GetTensorElementTypeAndShapeDataReference", 3312, 4, 24),
        Function("OrtEpApi", "CreateEpDevice", 0, 5, 22),
        Function("OrtEpApi", "EpGraphSupportInfo_AddNodesToFuse", 16, 4, 23),
        Function("OrtEpApi", "EpGraphSupportInfo_AddSingleNode", 24, 2, 23),
        Function("OrtEpApi", "CreateKernelRegistry", 144, 1, 24),
        Function("OrtEpApi", "ReleaseKernelRegistry", 152, 1, 24),
        Function("OrtEpApi", "KernelRegistry_AddKernel", 160, 4, 24),
        Function("OrtEpApi", "CreateKernelDefBuilder", 168, 1, 24),
        Function("OrtEpApi", "ReleaseKernelDefBuilder", 176, 1, 24),
        Function("OrtEpApi", "KernelDefBuilder_SetOperatorType", 184, 2, 24),
        Function("OrtEpApi", "KernelDefBuilder_SetDomain", 192, 2, 24),
        Function("OrtEpApi", "KernelDefBuilder_SetSinceVersion", 200, 3, 24),
        Function("OrtEpApi", "KernelDefBuilder_SetExecutionProvider", 208, 2, 24),
        Function("OrtEpApi", "KernelDefBuilder_AddTypeConstraint", 232, 4, 24),
        Function("OrtEpApi", "KernelDefBuilder_Build", 256, 2, 24),
        Function("OrtEpApi", "ReleaseKernelDef", 264, 1, 24),
        Function("OrtEpApi", "GetTensorDataType", 320, 2, 24),
        Function("OrtEpApi", "EpGraphSupportInfo_LookUpKernel", 328, 3, 24),
    )
}

#: The function that returns a shape without creating an object for it. It is the only function that
#: a supported release may lack.
SHAPE_REFERENCE = "GetTensorElementTypeAndShapeDataReference"

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
        failure: returns the result if ``function`` raises, from the exception and the arguments.
    """
    return function_type(n_arguments)(NeverRaising(function, failure))


def address_of_callback(callback: Any) -> int:
    """Return the address of a C function of ctypes."""
    return ctypes.cast(callback, ctypes.c_void_p).value or 0


@cache
def _c_function(table: int, name: str) -> Any:
    """Return the function ``name`` of :data:`FUNCTIONS` as a Python callable.

    Args:
        table: the address of the struct that has the function.
        name: its name.
    """
    row = FUNCTIONS[name]
    return function(word.from_address(table + row.offset).value, row.n_arguments)


def call(table: int, name: str, *arguments: int) -> int:
    """Call the function ``name`` of the struct at ``table``, and return its result."""
    return int(_c_function(table, name)(*arguments))


def get(api: int, name: str, *arguments: int) -> int:
    """Call a function of the OrtApi whose last argument points to a result, and return that result.

    Raises:
        RuntimeError: the function returned an OrtStatus.
    """
    result = word()
    check(api, call(api, name, *arguments, ctypes.addressof(result)))
    return result.value


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
    address = word.from_address(api + FUNCTIONS["CreateStatus"].offset).value
    return create(address)(INVALID_ARGUMENT, message.encode(errors="backslashreplace"))


def status_of(api: int, error: BaseException) -> int:
    """Return a new OrtStatus* for an exception. The caller owns it."""
    return create_status(api, f"{type(error).__name__}: {error}")


def has_function(minor_version: int, since: int) -> bool:
    """Whether onnxruntime 1.``minor_version`` has a function that 1.``since`` introduced.

    Compiled code calls this as well.
    """
    # A build from the development branch has the number of the next release, and may still lack the
    # function.
    return minor_version > since


def shape_reference(api: int) -> int:
    """Return the address of the function :data:`SHAPE_REFERENCE`; 0 if it does not exist."""
    row = FUNCTIONS[SHAPE_REFERENCE]
    minor_version = int(onnxruntime.__version__.split(".")[1])
    if not has_function(minor_version, row.since):
        return 0
    return word.from_address(api + row.offset).value
