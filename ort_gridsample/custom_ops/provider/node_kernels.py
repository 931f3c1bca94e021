"""The kernel of a node: it is a kernel of the compiled op.

``OrtKernelInfo`` and ``OrtKernelContext`` are the same for kernels of providers and of custom ops.
"""

from ...kernels.pointers import address, allocate, call, chars, copy, free, local, sizeof, struct
from ..compiled_ops.c_api import INVALID_ARGUMENT
from ..compiled_ops.sentences import create_status
from ..compiled_ops.structs import LIBRARY, OP
from .calls import write_word
from .structs import DEFINITION, KERNEL, POINTER


def create_kernel(definition_address: int, info: int, out: int) -> int:
    """Create the kernel of a node, as OrtKernelCreateFunc.

    Args:
        definition_address: the DEFINITION.
        info: the OrtKernelInfo.
        out: the address for the kernel.
    """
    definition = struct(definition_address, DEFINITION)
    op = struct(definition.op, OP)
    api = struct(op.library, LIBRARY).api
    write_word(out, 0)
    kernel_address = allocate(sizeof(KERNEL))
    if kernel_address == 0:
        message = chars("there is no memory for a kernel")
        return create_status(api, (INVALID_ARGUMENT, message))
    copy(kernel_address, definition.kernel, sizeof(KERNEL))
    kernel = struct(kernel_address, KERNEL)
    state = local(POINTER)
    status = call(op.CreateKernelV2, (definition.op, api, info, address(state)))
    if status != 0:
        free(kernel_address)
        return status
    # Ops that are compiled on demand have these functions only after a kernel was created.
    kernel.state = state.value
    kernel.compute = op.KernelComputeV2
    kernel.destroy = op.KernelDestroy
    write_word(out, kernel_address)
    return 0


def compute(kernel_address: int, context: int) -> int:
    """Compute of OrtKernelImpl."""
    kernel = struct(kernel_address, KERNEL)
    return call(kernel.compute, (kernel.state, context))


def release_kernel(kernel_address: int) -> int:
    """Release of OrtKernelImpl."""
    kernel = struct(kernel_address, KERNEL)
    call(kernel.destroy, (kernel.state,))
    free(kernel_address)
    return 0
