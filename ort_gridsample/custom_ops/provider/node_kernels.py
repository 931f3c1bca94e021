"""The kernel of a node: it is a kernel of the compiled op.

``OrtKernelInfo`` and ``OrtKernelContext`` are the same for kernels of providers and of custom ops.
"""

from numba.extending import register_jitable

from ...kernels.pointers import (
    address_of,
    array_at,
    c_string,
    call,
    free,
    local_record,
    malloc,
    memcpy,
    record_at,
    sizeof,
)
from ...kernels.structs import Address, RecordRef
from ..compiled_ops.api_functions import api_function, write_word
from ..compiled_ops.c_api import INVALID_ARGUMENT
from ..compiled_ops.creation import release_status
from ..compiled_ops.requests import Status
from ..compiled_ops.sentences import create_status
from ..compiled_ops.structs import OP
from .structs import FACTORY, NODE_KERNEL, OVERLOAD, WORD

_as_tensor_type = api_function("CastTypeInfoToTensorInfo", 1)
_get_element_type = api_function("GetTensorElementType", 1)
_get_input_type = api_function("KernelInfo_GetInputTypeInfo", 1)
_release_type = api_function("ReleaseTypeInfo")


# --- Types ---


@register_jitable
def find_overload(factory: RecordRef, first: int, second: int) -> int:
    """Return the address of the OVERLOAD for two ONNXTensorElementDataTypes; 0 if there is none."""
    overloads = array_at(factory.overloads, (factory.n_overloads,), OVERLOAD)
    for index in range(factory.n_overloads):
        overload = overloads[index]
        if overload.types[0] == first and overload.types[1] == second:
            return address_of(overload)
    return 0


@register_jitable
def element_type(api: Address, type_info: int) -> int:
    """Return the ONNXTensorElementDataType of an OrtTypeInfo; 0 if it is not that of a tensor."""
    result = 0
    status, tensor_type = _as_tensor_type(api, (type_info,))
    if status == 0 and tensor_type != 0:
        status, result = _get_element_type(api, (tensor_type,))
    if status != 0:
        release_status(api, (status,))
    return result


@register_jitable
def _input_type(api: Address, info: Address, index: int) -> int:
    """Return the ONNXTensorElementDataType of an input of an OrtKernelInfo; 0 if it is unknown."""
    status, type_info = _get_input_type(api, (info, index))
    if status != 0:
        release_status(api, (status,))
        return 0
    result = element_type(api, type_info)
    _release_type(api, (type_info,))
    return result


# --- Kernels ---


def create_kernel(factory_address: Address, info: Address, out: Address) -> Status:
    """Create the kernel of a node, as OrtKernelCreateFunc.

    Args:
        factory_address: the FACTORY.
        info: the OrtKernelInfo.
        out: the address for the kernel.
    """
    factory = record_at(factory_address, FACTORY)
    api = factory.api
    write_word(out, 0)
    overload_address = find_overload(factory, _input_type(api, info, 0), _input_type(api, info, 1))
    if overload_address == 0:  # GetCapability does not claim such a node
        message = c_string("there is no kernel for these types")
        return create_status(api, (INVALID_ARGUMENT, message))
    kernel_address = malloc(sizeof(NODE_KERNEL))
    if kernel_address == 0:
        message = c_string("not enough memory to create the kernel")
        return create_status(api, (INVALID_ARGUMENT, message))
    op_address = record_at(overload_address, OVERLOAD).op
    op = record_at(op_address, OP)
    state = local_record(WORD)
    status = call(op.CreateKernelV2, (op_address, api, info, address_of(state)))
    if status != 0:
        free(kernel_address)
        return status
    memcpy(kernel_address, factory.kernel_template, sizeof(NODE_KERNEL))
    kernel = record_at(kernel_address, NODE_KERNEL)
    kernel.state = state.value
    # Ops that are compiled on demand have these functions only after a kernel was created.
    kernel.compute = op.KernelComputeV2
    kernel.destroy = op.KernelDestroy
    write_word(out, kernel_address)
    return 0


def compute(kernel_address: Address, context: Address) -> Status:
    """Compute of OrtKernelImpl."""
    kernel = record_at(kernel_address, NODE_KERNEL)
    return call(kernel.compute, (kernel.state, context))


def release_kernel(kernel_address: Address) -> int:
    """Release of OrtKernelImpl."""
    kernel = record_at(kernel_address, NODE_KERNEL)
    call(kernel.destroy, (kernel.state,))
    free(kernel_address)
    return 0
