"""Requests: how every op takes its inputs from ONNX Runtime, and frees its memory."""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ...kernels.pointers import address, allocate, array, caller, free, local, sizeof, struct
from .c_api import FUNCTIONS
from .structs import BLOCK, REQUEST, STATUS_SHAPE


def function(name: str, n_answers: int = 0) -> Any:
    """ONNX Runtime's function ``name``, of the table's address and its arguments, as a :func:`.caller`; a status."""
    return caller(n_answers, FUNCTIONS[name])


get_input = function("KernelContext_GetInput", 1)
get_output = function("KernelContext_GetOutput", 1)
get_data = function("GetTensorMutableData", 1)
get_info = function("GetTensorTypeAndShape", 1)
get_axes = function("GetDimensionsCount", 1)
get_lengths = function("GetDimensions")
release_info = function("ReleaseTensorTypeAndShapeInfo")
#: Given the context, calls a function with a launch and each number below a count; and in between 0: as it likes.
parallel_for = function("KernelContext_ParallelFor")
#: For a value: its element type, the address of its lengths, and their number.
shape_of = caller(3)


@register_jitable
def open_request(request: Any, op: Any, context: int, count: int) -> int:
    """Begin a ``request`` of ``count`` inputs of an ``op``, its state; returns a status."""
    api = op.api
    request.api, request.context, request.blocks, request.lacks_memory = api, context, 0, 0
    for index in range(count):
        this = request.inputs[index]
        this.axes = -1
        status, value = get_input(api, (context, index))
        if status == 0 and value != 0:
            status, this.data = get_data(api, (value,))
            if status == 0 and op.shape_of != 0:
                status, _, this.shape, this.axes = shape_of(op.shape_of, (value,))
            elif status == 0:
                status = _copy_shape(request, this, value)
        if status != 0:
            return status
    return 0


@register_jitable
def _copy_shape(request: Any, this: Any, value: int) -> int:
    """Copy the shape of a ``value`` from an object that is made of it; returns a status."""
    status, info = get_info(request.api, (value,))
    if status != 0:
        return status
    status, axes = get_axes(request.api, (info,))
    this.shape = reserve(request, 8 * axes)
    this.axes = axes if this.shape != 0 else 0  # no op takes such a shape
    status = status or get_lengths(request.api, (info, this.shape, this.axes))
    release_info(request.api, (info,))
    return status


@register_jitable
def shape(this: Any) -> Any:
    """The lengths (axes,) of an input."""
    return array(this.shape, (this.axes,), np.int64)


@register_jitable
def reserve(request: Any, nbytes: int) -> int:
    """The address of so many bytes, freed with the request; 0 where there is no memory, which it knows then."""
    at = allocate(sizeof(BLOCK) + nbytes)
    if at == 0:
        request.lacks_memory = 1
        return 0
    struct(at, BLOCK).next, request.blocks = request.blocks, at
    return at + sizeof(BLOCK)


@register_jitable
def keep(request: Any, count: int) -> Any:
    """An array of ``count`` int64, as :func:`reserve` has it; empty where there is no memory."""
    at = reserve(request, 8 * count)
    return array(at, (count if at != 0 else 0,), np.int64)


@register_jitable
def free_blocks(at: int) -> None:
    """Free the block ``at`` an address, and those that were kept before it."""
    while at != 0:
        following = struct(at, BLOCK).next
        free(at)
        at = following


@register_jitable
def make_output(request: Any, lengths: Any) -> tuple[int, int]:
    """A status, and the address of the output's elements, which is of the shape ``lengths``."""
    status, value = get_output(request.api, (request.context, 0, np.int64(lengths.ctypes.data), len(lengths)))
    return get_data(request.api, (value,)) if status == 0 else (status, 0)


@register_jitable
def write_status_output(op: Any, context: int) -> int:
    """Write the second output of an op that stands in for a Python op: the positions along the first axis, (N, 1).

    N is the length of the first input's first axis, as of the first output's. Returns a status.
    """
    request, lengths = local(REQUEST), local(STATUS_SHAPE)
    status = open_request(request, op, context, 1)
    count = 0
    if status == 0 and request.inputs[0].axes > 0:
        count = shape(request.inputs[0])[0]
    free_blocks(request.blocks)
    lengths.rows, lengths.columns = count, 1
    if status == 0:
        status, value = get_output(op.api, (context, 1, address(lengths), 2))
    if status == 0:
        status, data = get_data(op.api, (value,))
        if status == 0:
            positions = array(data, (count,), np.int64)
            for i in range(count):
                positions[i] = i
    return status
