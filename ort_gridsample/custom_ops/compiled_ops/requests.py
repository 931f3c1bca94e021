"""Inputs, outputs and memory of the compiled ops: calls of ONNX Runtime's C API in compiled code.

``owner`` is a REQUEST or a NODE.
"""

from typing import TypeAlias

import numpy as np
from numba.extending import register_jitable

from ...kernels.pointers import (
    address_of,
    array_at,
    free,
    local_record,
    malloc,
    record_at,
    returns_array,
    sizeof,
)
from ...kernels.structs import Address, ArrayRef, RecordRef
from .api_functions import api_function, get_shape_reference
from .structs import BLOCK, REQUEST, STATUS_SHAPE

#: The result of compiled functions that may fail: an OrtStatus*, 0 for success.
Status: TypeAlias = int


get_input = api_function("KernelContext_GetInput", 1)
get_output = api_function("KernelContext_GetOutput", 1)
get_data = api_function("GetTensorMutableData", 1)
get_info = api_function("GetTensorTypeAndShape", 1)
get_n_axes = api_function("GetDimensionsCount", 1)
get_lengths = api_function("GetDimensions")
release_info = api_function("ReleaseTensorTypeAndShapeInfo")
#: Call a function with a launch and each number below a count, on ONNX Runtime's threads. The
#: arguments are the OrtKernelContext, the function, the count, a number of batches (0: ONNX
#: Runtime chooses it), and the launch.
parallel_for = api_function("KernelContext_ParallelFor")


@register_jitable
def open_request(request: RecordRef, state: RecordRef, context: Address, n_inputs: int) -> Status:
    """Initialize ``request`` with the inputs of a call.

    Args:
        request: a REQUEST.
        context: the OrtKernelContext of the call.
        n_inputs: the number of inputs to read.
    """
    request.api = state.api
    request.context = context
    request.blocks = 0
    request.lacks_memory = 0
    for index in range(n_inputs):
        status = read_input(request, state, index, request.inputs[index])
        if status != 0:
            return status
    return 0


@register_jitable
def read_input(request: RecordRef, state: RecordRef, index: int, tensor: RecordRef) -> Status:
    """Set ``tensor``, an INPUT of ``request``, to the input ``index`` of a call.

    Args:
        request: a REQUEST that :func:`open_request` initialized.
        index: the index of the input in ONNX Runtime's node.
        tensor: an INPUT.
    """
    api = request.api
    tensor.n_axes = -1
    status, value = get_input(api, (request.context, index))
    if status == 0 and value != 0:
        status, tensor.data = get_data(api, (value,))
        if status == 0 and state.get_shape_reference != 0:
            function = state.get_shape_reference
            status, _, tensor.shape, tensor.n_axes = get_shape_reference(function, (value,))
        elif status == 0:
            status = _copy_shape(request, tensor, value)
    return status


@register_jitable
def _copy_shape(request: RecordRef, tensor: RecordRef, value: int) -> Status:
    """Set the shape of ``tensor`` to a copy of the shape of the OrtValue ``value``."""
    status, info = get_info(request.api, (value,))
    if status != 0:
        return status
    status, n_axes = get_n_axes(request.api, (info,))
    tensor.shape = alloc(request, 8 * n_axes)
    tensor.n_axes = n_axes if tensor.shape != 0 else 0  # every op refuses a shape without axes
    status = status or get_lengths(request.api, (info, tensor.shape, tensor.n_axes))
    release_info(request.api, (info,))
    return status


@returns_array
def shape_of(tensor: RecordRef) -> ArrayRef:
    """Return the lengths (n_axes,) of an INPUT. An input that the node omits has no axes."""
    return array_at(tensor.shape, (max(tensor.n_axes, 0),), np.int64)


@register_jitable
def count_elements(lengths: ArrayRef) -> int:
    """Return the number of elements of an array with these lengths."""
    n_elements = 1
    for length in lengths:
        n_elements *= length
    return n_elements


@register_jitable
def set_shape(tensor: RecordRef, lengths: ArrayRef) -> None:
    """Set the shape of an INPUT to ``lengths``, an array that stays until the request ends."""
    tensor.shape = np.int64(lengths.ctypes.data)
    tensor.n_axes = len(lengths)


@register_jitable
def copy_input(to: RecordRef, source: RecordRef) -> None:
    """Copy an INPUT. Its elements and its shape are not copied."""
    to.data = source.data
    to.shape = source.shape
    to.n_axes = source.n_axes


@register_jitable
def alloc(owner: RecordRef, nbytes: int) -> Address:
    """Allocate memory that is freed with ``owner``, and return its address.

    Without memory, set ``owner.lacks_memory`` and return 0.
    """
    block_address = malloc(sizeof(BLOCK) + nbytes)
    if block_address == 0:
        owner.lacks_memory = 1
        return 0
    record_at(block_address, BLOCK).next = owner.blocks
    owner.blocks = block_address
    return block_address + sizeof(BLOCK)


@returns_array
def alloc_int64s(owner: RecordRef, count: int) -> ArrayRef:
    """Return an array (count,) of int64 from :func:`alloc`; an empty one without memory."""
    memory = alloc(owner, 8 * count)
    return array_at(memory, (count if memory != 0 else 0,), np.int64)


@register_jitable
def free_blocks(block_address: Address) -> None:
    """Free a BLOCK, and all blocks that its owner allocated before it."""
    while block_address != 0:
        next_address = record_at(block_address, BLOCK).next
        free(block_address)
        block_address = next_address


@register_jitable
def make_output(request: RecordRef, lengths: ArrayRef) -> tuple[Status, Address]:
    """Create the first output with the shape ``lengths``.

    Returns:
        The status, and the address of the output's elements.
    """
    lengths_address = np.int64(lengths.ctypes.data)
    status, value = get_output(request.api, (request.context, 0, lengths_address, len(lengths)))
    return get_data(request.api, (value,)) if status == 0 else (status, 0)


@register_jitable
def write_status_output(state: RecordRef, context: Address) -> Status:
    """Create and fill the second output of an op that replaces a Python op.

    It contains the positions along the first axis, as an int64 array (N, 1). N is the length of
    the first axis of the first input and of the first output.
    """
    request = local_record(REQUEST)
    status = open_request(request, state, context, 1)
    count = 0
    if status == 0 and request.inputs[0].n_axes > 0:
        count = shape_of(request.inputs[0])[0]
    free_blocks(request.blocks)
    lengths = local_record(STATUS_SHAPE)
    lengths.rows = count
    lengths.columns = 1
    if status == 0:
        status, value = get_output(state.api, (context, 1, address_of(lengths), 2))
    if status == 0:
        status, data = get_data(state.api, (value,))
        if status == 0:
            positions = array_at(data, (count,), np.int64)
            for i in range(count):
                positions[i] = i
    return status
