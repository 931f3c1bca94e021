"""The computation of a fused deformable attention, as a function of OrtNodeComputeInfo.

ONNX Runtime has replaced the nodes of a deformable attention by one node, whose inputs are all
values that these nodes read. The operands of the compiled op are among them, or are computed from
some of them in each run.
"""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ...functions.validation import ErrorTemplate
from ...kernels.halves import stored_dtype_of, widened
from ...kernels.pointers import array_at, local_record, memcpy, record_at
from ...kernels.structs import ATTENTION_LAUNCH, Address, ArrayRef, RecordRef
from ..compiled_ops import attention
from ..compiled_ops.c_api import ELEMENT_TYPES
from ..compiled_ops.requests import (
    Status,
    alloc,
    alloc_int64s,
    free_blocks,
    open_request,
    read_input,
    set_shape,
    shape_of,
)
from ..compiled_ops.sentences import (
    NO_MEMORY_INDEX,
    SentenceTable,
    encode,
    error_with_number,
    error_with_shape,
    error_with_shapes,
)
from ..compiled_ops.structs import BASIC_STATE, REQUEST
from .structs import FUSED_ATTENTION, LEVEL

#: A model may declare another number of axes than an image has in a run, and onnxruntime does not
#: check it.
IMAGE_AXES_MISMATCH = ErrorTemplate(
    "levels",
    "made of an image of shape {levels}",
    "{number} axes, as the model declares",
)
#: The error messages of a fused deformable attention: the op's, and one more.
_TABLE = SentenceTable(
    {"IMAGE_AXES_MISMATCH": encode(IMAGE_AXES_MISMATCH)}, after=attention.SENTENCES
)
ATTENTION_SENTENCES = _TABLE.encoded
IMAGE_AXES_MISMATCH_INDEX = _TABLE.index("IMAGE_AXES_MISMATCH")

#: The indices of the operands among a REQUEST's inputs.
_VALUE = 0
_LEVELS = 1
_LOCATIONS = 2
_WEIGHTS = 3
#: The index of the input that an operand is computed from.
_OTHER = 4
#: The element types of grids that are not float32.
_FLOAT64 = ELEMENT_TYPES["float64"]
_FLOAT16 = ELEMENT_TYPES["float16"]
_BFLOAT16 = ELEMENT_TYPES["bfloat16"]
#: The types of the bits of halves.
_FLOAT16_BITS = stored_dtype_of("float16")
_BFLOAT16_BITS = stored_dtype_of("bfloat16")


def compute_attention(info_address: Address, state_address: Address, context: Address) -> Status:
    """Compute of OrtNodeComputeInfo."""
    state = record_at(state_address, BASIC_STATE)
    fused = record_at(state_address, FUSED_ATTENTION)
    request = local_record(REQUEST)
    status = open_request(request, state, context, 0)
    status = status or _set_value(state, fused, request)
    status = status or _set_levels(state, fused, request)
    if fused.locations >= 0:
        tensor = request.inputs[_LOCATIONS]
        status = status or read_input(request, state, fused.locations, tensor)
    else:
        status = status or _set_locations(state, fused, request)
    status = status or _set_weights(state, fused, request)
    status = status or attention.attend(state, request, local_record(ATTENTION_LAUNCH), 3)
    free_blocks(request.blocks)
    return status


@register_jitable
def _no_memory(state: RecordRef, request: RecordRef, nbytes: int) -> Status:
    return error_with_number(request.api, state.errors, NO_MEMORY_INDEX, nbytes)


@register_jitable
def _set_value(state: RecordRef, fused: RecordRef, request: RecordRef) -> Status:
    """Set the value (B, S, H, D)."""
    tensor = request.inputs[_VALUE]
    status = read_input(request, state, fused.value, tensor)
    if status != 0:
        return status
    lengths = shape_of(tensor)
    has_shape = len(lengths) == fused.n_value_axes
    if has_shape and len(lengths) == 3:
        has_shape = lengths[2] == fused.heads * fused.channels
    if not has_shape:
        return error_with_shape(
            request.api, state.errors, attention.VALUE_SHAPE_INVALID_INDEX, lengths
        )
    if len(lengths) == 4:
        return 0
    split_lengths = alloc_int64s(request, 4)
    if len(split_lengths) == 0:
        return _no_memory(state, request, 32)
    split_lengths[0] = lengths[0]
    split_lengths[1] = lengths[1]
    split_lengths[2] = fused.heads
    split_lengths[3] = fused.channels
    set_shape(tensor, split_lengths)
    return 0


@register_jitable
def _set_levels(state: RecordRef, fused: RecordRef, request: RecordRef) -> Status:
    """Set the levels (L, 1 + r)."""
    n_columns = 1 + fused.r
    nbytes = 8 * fused.n_levels * n_columns
    memory = alloc(request, nbytes)
    levels_shape = alloc_int64s(request, 2)
    if memory == 0 or len(levels_shape) == 0:
        return _no_memory(state, request, nbytes)
    rows = array_at(memory, (fused.n_levels, n_columns), np.int64)
    levels = array_at(fused.levels, (fused.n_levels,), LEVEL)
    for index in range(fused.n_levels):
        level = levels[index]
        status, lengths = _find_lengths(state, fused, request, level)
        if status != 0:
            return status
        rows[index, 0] = level.points
        level_lengths = array_at(lengths, (fused.r,), np.int64)
        for axis in range(fused.r):  # an assignment of an array needs reference counts
            rows[index, 1 + axis] = level_lengths[axis]
    levels_shape[0] = fused.n_levels
    levels_shape[1] = n_columns
    request.inputs[_LEVELS].data = memory
    set_shape(request.inputs[_LEVELS], levels_shape)
    return 0


@register_jitable
def _find_lengths(
    state: RecordRef, fused: RecordRef, request: RecordRef, level: RecordRef
) -> tuple[Status, Address]:
    """Return an OrtStatus*, and the address of the lengths (r,) of a LEVEL."""
    if level.shape_input < 0:
        return 0, level.lengths
    tensor = request.inputs[_OTHER]
    status = read_input(request, state, level.shape_input, tensor)
    if status != 0:
        return status, 0
    n_axes = _product(shape_of(tensor))
    if n_axes != 2 + fused.r:
        image_shape = array_at(tensor.data, (n_axes,), np.int64)
        sentence_index = IMAGE_AXES_MISMATCH_INDEX
        status = error_with_shape(
            request.api, state.errors, sentence_index, image_shape, 2 + fused.r
        )
        return status, 0
    return 0, tensor.data + 2 * 8


@register_jitable
def _set_weights(state: RecordRef, fused: RecordRef, request: RecordRef) -> Status:
    """Set the weights (B, Q, H, P). If Q is 1, all queries have the same weights."""
    tensor = request.inputs[_WEIGHTS]
    status = read_input(request, state, fused.weights, tensor)
    if status != 0:
        return status
    if fused.has_weights_by_head == 0:
        return _move_heads_inward(state, fused, request)
    lengths = shape_of(tensor)
    if len(lengths) == 5:
        # With an axis of levels, the op does not apply the weights of one query to all queries.
        merged_lengths = alloc_int64s(request, 4)
        if len(merged_lengths) == 0:
            return _no_memory(state, request, 32)
        for axis in range(3):
            merged_lengths[axis] = lengths[axis]
        merged_lengths[3] = lengths[3] * lengths[4]
        set_shape(tensor, merged_lengths)
    return 0


@register_jitable
def _move_heads_inward(state: RecordRef, fused: RecordRef, request: RecordRef) -> Status:
    """Replace weights (B·H, 1, Q, P) by weights (B, Q, H, P)."""
    tensor = request.inputs[_WEIGHTS]
    lengths = shape_of(tensor)
    if len(lengths) != 4 or lengths[0] % fused.heads != 0 or lengths[1] != 1:
        locations = shape_of(request.inputs[_LOCATIONS])
        sentence_index = attention.WEIGHTS_SHAPE_MISMATCH_INDEX
        return error_with_shapes(request.api, state.errors, sentence_index, lengths, locations)
    new_lengths = alloc_int64s(request, 4)
    if len(new_lengths) == 0:
        return _no_memory(state, request, 32)
    new_lengths[0] = lengths[0] // fused.heads
    new_lengths[1] = lengths[2]
    new_lengths[2] = fused.heads
    new_lengths[3] = lengths[3]
    size = state.kernel.X_size
    nbytes = size * lengths[0] * lengths[2] * lengths[3]
    memory = alloc(request, nbytes)
    if memory == 0:
        return _no_memory(state, request, nbytes)
    _copy_queries_first(memory, tensor.data, new_lengths, size)
    tensor.data = memory
    set_shape(tensor, new_lengths)
    return 0


@register_jitable
def _copy_queries_first(to: int, source: int, lengths: ArrayRef, size: int) -> None:
    """Copy an array (B, H, Q, P) as (B, Q, H, P).

    Args:
        to: the address of the new array.
        source: the address of the array.
        lengths: the shape of the new array.
        size: the size of an element.
    """
    n, queries, heads, points = lengths
    nbytes = size * points
    for row in range(n * heads):
        batch = row // heads
        head = row % heads
        for query in range(queries):
            target = (batch * queries + query) * heads + head
            memcpy(to + nbytes * target, source + nbytes * (row * queries + query), nbytes)


@register_jitable
def _set_locations(state: RecordRef, fused: RecordRef, request: RecordRef) -> Status:
    """Set the locations (B, Q, H, P, r), in [0, 1], from the grids of the levels."""
    lengths = alloc_int64s(request, 5)
    if len(lengths) == 0:
        return _no_memory(state, request, 40)
    value_shape = shape_of(request.inputs[_VALUE])  # (B, S, H, D): _set_value() checked it
    levels = array_at(fused.levels, (fused.n_levels,), LEVEL)
    n_points = 0
    for index in range(fused.n_levels):
        n_points += levels[index].points
    lengths[0] = value_shape[0]
    lengths[2] = fused.heads
    lengths[3] = n_points
    lengths[4] = fused.r
    memory = 0
    first_point = 0
    for index in range(fused.n_levels):
        level = levels[index]
        tensor = request.inputs[_OTHER]
        status = read_input(request, state, level.grid_input, tensor)
        if status != 0:
            return status
        grid_shape = shape_of(tensor)
        batch_heads = value_shape[0] * fused.heads
        queries = _count_queries(grid_shape, batch_heads, level.points, fused.r)
        if index == 0:
            lengths[1] = max(queries, 0)
            nbytes = (8 if fused.grid_type == _FLOAT64 else 4) * _product(lengths)
            memory = alloc(request, nbytes)
            if memory == 0:
                return _no_memory(state, request, nbytes)
        if queries != lengths[1]:
            sentence_index = attention.LOCATIONS_SHAPE_MISMATCH_INDEX
            return error_with_shapes(
                request.api, state.errors, sentence_index, value_shape, grid_shape, fused.n_levels
            )
        _copy_grid(memory, tensor.data, fused.grid_type, lengths, first_point, level.points)
        first_point += level.points
    tensor = request.inputs[_LOCATIONS]
    tensor.data = memory
    set_shape(tensor, lengths)
    return 0


@register_jitable
def _product(lengths: ArrayRef) -> int:
    result = 1
    for length in lengths:
        result *= length
    return result


@register_jitable
def _count_queries(grid_shape: ArrayRef, batch_heads: int, points: int, r: int) -> int:
    """Return Q of a grid of the shape (B·H, …, r) with Q·points positions; -1 for other shapes."""
    n_axes = len(grid_shape)
    if n_axes < 3 or grid_shape[0] != batch_heads or grid_shape[n_axes - 1] != r or points == 0:
        return -1
    positions = _product(grid_shape[1 : n_axes - 1])
    return positions // points if positions % points == 0 else -1


@register_jitable
def _copy_grid(
    to: int,
    source: int,
    grid_type: int,
    lengths: ArrayRef,
    first_point: int,
    points: int,
) -> None:
    """Copy the grid of a level to the locations of all levels.

    Args:
        to: the address of the locations.
        source: the address of the grid (B·H, Q, points, r), in [-1, 1].
        grid_type: the ONNXTensorElementDataType of the grid. The locations are of type float64 if
            the grid is, otherwise float32.
        lengths: the shape (B, Q, H, P, r) of the locations.
        first_point: the index of the level's first point.
        points: the number of the level's points.
    """
    if grid_type == _FLOAT64:
        _copy_typed_grid(to, source, lengths, first_point, points, np.float64, np.float64)
    elif grid_type == _FLOAT16:
        _copy_typed_grid(to, source, lengths, first_point, points, np.float32, _FLOAT16_BITS)
    elif grid_type == _BFLOAT16:
        _copy_typed_grid(to, source, lengths, first_point, points, np.float32, _BFLOAT16_BITS)
    else:
        _copy_typed_grid(to, source, lengths, first_point, points, np.float32, np.float32)


@register_jitable
def _copy_typed_grid(
    to: int,
    source: int,
    lengths: ArrayRef,
    first_point: int,
    points: int,
    dtype: Any,
    grid_dtype: Any,
) -> None:
    """Copy a grid as :func:`_copy_grid`, for the types of the locations and of the grid."""
    n, queries, heads, n_points, r = lengths
    locations = array_at(to, (n * queries * heads, n_points * r), dtype)
    grid = array_at(source, (n * heads * queries, points * r), grid_dtype)
    half = dtype(0.5)
    for row in range(n * heads):
        batch = row // heads
        head = row % heads
        for query in range(queries):
            target = (batch * queries + query) * heads + head
            for index in range(points * r):
                coordinate = widened(grid[row * queries + query, index])
                locations[target, first_point * r + index] = coordinate * half + half
