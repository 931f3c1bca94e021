"""The computation of a fused GridSample, as a function of OrtNodeComputeInfo.

ONNX Runtime has replaced a GridSample and the nodes that compute its grid by one node, whose inputs
are all values that these nodes read. Those that the compiled op reads are among them, except the
scalars of programs.
"""

import numpy as np
from numba.extending import register_jitable

from ...kernels.pointers import array_at, local_record, memcpy, record_at
from ...kernels.structs import Address, RecordRef
from ..compiled_ops.program_grids import NOT_SCALAR_INDEX
from ..compiled_ops.requests import (
    Status,
    alloc,
    alloc_int64s,
    count_elements,
    free_blocks,
    open_request,
    read_input,
    set_shape,
    shape_of,
)
from ..compiled_ops.sampling import sample
from ..compiled_ops.sentences import error_status, no_memory, shape_argument
from ..compiled_ops.structs import GRID_SAMPLE_STATE, INPUT, REQUEST
from .structs import COMPUTE_INFO, FUSED_GRID

#: The index of the scalars among a REQUEST's inputs.
_SCALARS = 1


def compute_grid_sample(info_address: Address, state_address: Address, context: Address) -> Status:
    """Compute of OrtNodeComputeInfo."""
    fused = record_at(record_at(info_address, COMPUTE_INFO).grid, FUSED_GRID)
    state = record_at(state_address, GRID_SAMPLE_STATE)
    request = local_record(REQUEST)
    request.launch.kernel = state_address
    status = open_request(request, state, context, 0)
    op_inputs = array_at(fused.op_inputs, (state.n_inputs,), np.int64)
    for index in range(state.n_inputs):
        if status == 0 and op_inputs[index] >= 0:
            status = read_input(request, state, op_inputs[index], request.inputs[index])
    if status == 0 and fused.scalar_size > 0:
        status = _set_scalars(state, fused, request)
    status = status or sample(state, request)
    free_blocks(request.blocks)
    return status


@register_jitable
def _set_scalars(state: RecordRef, fused: RecordRef, request: RecordRef) -> Status:
    """Set the scalars (n_scalars,) of the programs."""
    programs = state.programs
    size = fused.scalar_size
    nbytes = size * programs.n_scalars
    lengths = alloc_int64s(request, 1)
    memory = alloc(request, nbytes)
    if request.lacks_memory != 0:
        return no_memory(request.api, state.errors, 8 + nbytes)
    memcpy(memory, fused.scalars, nbytes)
    scalar_inputs = array_at(fused.scalar_inputs, (programs.n_scalars,), np.int64)
    tensor = local_record(INPUT)
    for index in range(programs.n_scalars):
        if scalar_inputs[index] >= 0:
            status = read_input(request, state, scalar_inputs[index], tensor)
            if status != 0:
                return status
            if count_elements(shape_of(tensor)) != 1:
                arguments = (shape_argument(shape_of(tensor)),)
                return error_status(request.api, state.errors, NOT_SCALAR_INDEX, arguments)
            memcpy(memory + size * index, tensor.data, size)
    lengths[0] = programs.n_scalars
    scalars = request.inputs[_SCALARS]
    scalars.data = memory
    set_shape(scalars, lengths)
    return 0
