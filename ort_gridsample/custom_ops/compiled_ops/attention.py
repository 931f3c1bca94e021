"""The compiled op for deformable attention.

It runs the workers of :mod:`ort_gridsample.kernels.attention`. Its inputs are those of
:func:`ort_gridsample.functions.attention.attend`: value (B, S, H, D), levels (L, 1 + r), locations
(B, Q, H, points, r) or (B, Q, H, L, P, r), and weights like the locations without their last axis.
A row of levels is the number of points of a level, and its lengths.

The state of a node says which inputs these are, and their layouts. A node of another package has
other initial states. The attributes ``operands`` and ``levels``, which have the fields of OPERANDS
and of an array of LEVEL, describe a node that replaces a subgraph: it reads the values that the
subgraph reads. An operand in another layout is rearranged in each run.
"""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ... import spec
from ...functions import attention_shapes
from ...functions import error_templates as templates
from ...functions.error_templates import ErrorTemplate
from ...functions.validation import format_choices
from ...kernels.attention import attention_functions
from ...kernels.compilation import compiles_in
from ...kernels.halves import stored_dtype_of, widened
from ...kernels.pointers import (
    address_of,
    array_at,
    c_string,
    field_address,
    local_record,
    memcpy,
    record_at,
    returns_array,
    sizeof,
)
from ...kernels.structs import (
    ATTENTION_LAUNCH,
    MAX_LEVEL_AXES,
    MAX_PIXELS,
    Address,
    ArrayRef,
    RecordRef,
)
from .c_api import ELEMENT_TYPES
from .catalog import Fields, OpImplementation
from .creation import (
    LAST_SENTENCES,
    choice_attribute,
    close_node,
    create_state,
    destroy,
    integers_attribute,
    open_node,
)
from .launches import fill_output
from .requests import (
    Status,
    alloc,
    alloc_int64s,
    count_elements,
    free_blocks,
    open_request,
    read_input,
    set_shape,
    shape_of,
    write_status_output,
)
from .sentences import (
    NO_ARGUMENTS,
    NO_MEMORY_SENTENCE,
    SentenceTable,
    encode,
    error_status,
    integer_argument,
    no_memory,
    shape_argument,
)
from .shape_inference import (
    alloc_shape,
    inferred_choice,
    inferred_shape,
    open_inference,
    set_inferred_shape,
)
from .structs import ATTENTION_STATE, LEVEL, NODE, OP, OPERANDS, REQUEST

#: A number of pixels that is too large for any value. Larger numbers are reduced to it. The sum of
#: two of them does not wrap around.
TOO_MANY_PIXELS = 1 << 61

_count_points = register_jitable(attention_shapes.count_points)
_has_points = register_jitable(attention_shapes.has_points_of_levels)
_do_weights_fit = register_jitable(attention_shapes.do_weights_fit)

_SPATIAL_SHAPES_INVALID = ErrorTemplate("spatial_shapes", "of shape {lengths}", "shape (L, 2)")
_LOCATIONS_WITHOUT_LEVELS = ErrorTemplate(
    "sampling_locations", "of shape {sampling_locations}", "shape (B, Q, H, L, P, 2)"
)
#: A model may declare another number of axes than an image has in a run, and onnxruntime does not
#: check it.
_IMAGE_AXES_MISMATCH = ErrorTemplate(
    "levels",
    "made of an image of shape {image}",
    "{number} axes, as the model declares",
)
_Y_TOO_LARGE = ErrorTemplate(
    "Y",
    "for value of shape {value_shape}",
    "fewer bytes than an address can reach",
)
_VALUE_BEYOND_LIMITS = ErrorTemplate(
    "value",
    "of shape {value_shape}",
    f"at most {MAX_PIXELS} pixels, and levels of at most {MAX_LEVEL_AXES} axes",
)
_TABLE = SentenceTable(
    {
        "NO_MEMORY": encode(NO_MEMORY_SENTENCE, "nbytes"),
        "VALUE_SHAPE_INVALID": encode(templates.VALUE_SHAPE_INVALID, "value_shape"),
        "SPATIAL_SHAPES_INVALID": encode(_SPATIAL_SHAPES_INVALID, "lengths"),
        "LEVEL_STARTS_MISMATCH": encode(templates.LEVEL_STARTS_MISMATCH),
        "LOCATIONS_WITHOUT_LEVELS": encode(_LOCATIONS_WITHOUT_LEVELS, "sampling_locations"),
        "IMAGE_AXES_MISMATCH": encode(_IMAGE_AXES_MISMATCH, "image", "number"),
        "LEVELS_SHAPE_INVALID": encode(templates.LEVELS_SHAPE_INVALID, "levels"),
        "LEVELS_NEGATIVE": encode(templates.LEVELS_NEGATIVE),
        "LEVELS_PIXELS_MISMATCH": encode(
            templates.LEVELS_PIXELS_MISMATCH,
            "pixels",
            "n_pixels",
            "value_shape",
            argument="levels",
        ),
        "LOCATIONS_SHAPE_MISMATCH": encode(
            templates.LOCATIONS_SHAPE_MISMATCH, "sampling_locations", "value_shape", "n_levels"
        ),
        "WEIGHTS_SHAPE_MISMATCH": encode(
            templates.WEIGHTS_SHAPE_MISMATCH,
            "attention_weights",
            "weights_shape",
            "sampling_locations",
        ),
        "Y_TOO_LARGE": encode(_Y_TOO_LARGE, "value_shape"),
        "VALUE_BEYOND_LIMITS": encode(_VALUE_BEYOND_LIMITS, "value_shape"),
        "OUTPUT_LAYOUT_UNKNOWN": encode(
            templates.OUTPUT_LAYOUT_UNKNOWN, "value", listed=format_choices(spec.OUTPUT_LAYOUTS)
        ),
        **LAST_SENTENCES,
    }
)
SENTENCES = _TABLE.encoded

# The indices of the sentences, as numbers: compiled code reads no dictionary.
VALUE_SHAPE_INVALID_INDEX = _TABLE.index("VALUE_SHAPE_INVALID")
LEVELS_SHAPE_INVALID_INDEX = _TABLE.index("LEVELS_SHAPE_INVALID")
LEVELS_NEGATIVE_INDEX = _TABLE.index("LEVELS_NEGATIVE")
LEVELS_PIXELS_MISMATCH_INDEX = _TABLE.index("LEVELS_PIXELS_MISMATCH")
LOCATIONS_SHAPE_MISMATCH_INDEX = _TABLE.index("LOCATIONS_SHAPE_MISMATCH")
WEIGHTS_SHAPE_MISMATCH_INDEX = _TABLE.index("WEIGHTS_SHAPE_MISMATCH")
Y_TOO_LARGE_INDEX = _TABLE.index("Y_TOO_LARGE")
VALUE_BEYOND_LIMITS_INDEX = _TABLE.index("VALUE_BEYOND_LIMITS")
SPATIAL_SHAPES_INVALID_INDEX = _TABLE.index("SPATIAL_SHAPES_INVALID")
LEVEL_STARTS_MISMATCH_INDEX = _TABLE.index("LEVEL_STARTS_MISMATCH")
LOCATIONS_WITHOUT_LEVELS_INDEX = _TABLE.index("LOCATIONS_WITHOUT_LEVELS")
IMAGE_AXES_MISMATCH_INDEX = _TABLE.index("IMAGE_AXES_MISMATCH")
OUTPUT_LAYOUT_UNKNOWN_INDEX = _TABLE.index("OUTPUT_LAYOUT_UNKNOWN")
WRONG_INTERFACE_INDEX = _TABLE.index("WRONG_INTERFACE")
MISSING_STATE_INDEX = _TABLE.index("MISSING_STATE")

#: The layouts of weights: as their shape states, (B, Q, H, …) whose points are on one axis after a
#: merge, and (B·H, 1, Q, P). Weights of one query with one axis of points apply to all queries.
STATED, BY_QUERY, BY_IMAGE = range(3)
#: The layouts of Y: their indices in spec.OUTPUT_LAYOUTS, and their names with a blank after each.
OUTPUT_BY_QUERY, OUTPUT_BY_HEAD, OUTPUT_CHANNELS_FIRST = range(3)
OUTPUT_LAYOUT_WORDS = "".join(f"{name} " for name in spec.OUTPUT_LAYOUTS)

#: The indices of the operands among a REQUEST's inputs.
_VALUE = 0
_LEVELS = 1
_LOCATIONS = 2
_WEIGHTS = 3
#: The index of the input that an operand is computed from.
_OTHER = 4
#: The element types that the type of an input is compared with.
_INT32 = ELEMENT_TYPES["int32"]
_FLOAT64 = ELEMENT_TYPES["float64"]
_FLOAT16 = ELEMENT_TYPES["float16"]
_BFLOAT16 = ELEMENT_TYPES["bfloat16"]
#: The types of the bits of halves.
_FLOAT16_BITS = stored_dtype_of("float16")
_BFLOAT16_BITS = stored_dtype_of("bfloat16")


def states(
    value_type: str,
    levels_type: str,
    locations_type: str,
    weights_type: str,
) -> tuple[Any, list[Fields]]:
    """Return the initial state of deformable attention."""
    proceed, process_items = attention_functions(value_type, locations_type)
    kernel = {
        "proceed": proceed,
        "process_items": process_items,
        "X_size": stored_dtype_of(value_type).itemsize,
    }
    operands = {
        "value": 0,
        "levels": 1,
        "starts": -1,
        "locations": 2,
        "weights": 3,
        "n_value_axes": 4,
        "output_layout": OUTPUT_BY_QUERY,
        "weights_layout": STATED,
    }
    return ATTENTION_STATE, [{"kernel": kernel, "operands": operands}]


def create(op_address: Address, api: Address, info: Address, out: Address) -> Status:
    """CreateKernelV2 of deformable attention."""
    op = record_at(op_address, OP)
    node = local_record(NODE)
    prefix = c_string("DeformableAttention node ")
    errors_address = open_node(node, op, api, info, prefix, WRONG_INTERFACE_INDEX)
    operands = integers_attribute(node, c_string("operands"))
    levels = integers_attribute(node, c_string("levels"))
    layout_words = c_string(OUTPUT_LAYOUT_WORDS)
    output_layout = choice_attribute(
        node,
        c_string("output_layout"),
        layout_words,
        -1,
        errors_address,
        OUTPUT_LAYOUT_UNKNOWN_INDEX,
    )
    state_address = create_state(node, op, 0, ATTENTION_STATE, errors_address, MISSING_STATE_INDEX)
    if state_address != 0 and len(operands) > 0:
        state = record_at(state_address, ATTENTION_STATE)
        memcpy(address_of(state.operands), np.int64(operands.ctypes.data), sizeof(OPERANDS))
        state.levels = np.int64(levels.ctypes.data)
        state.n_levels = 8 * len(levels) // sizeof(LEVEL)
    if state_address != 0 and output_layout >= 0:
        record_at(state_address, ATTENTION_STATE).operands.output_layout = output_layout
    return close_node(node, state_address, out)


@compiles_in(1.7)
def infer(op_address: Address, context: Address) -> int:
    """InferOutputShapeFn: the shape of Y by its layout. An unknown shape is not set."""
    node = local_record(NODE)
    if open_inference(node, op_address, context):
        value_type, value_shape = inferred_shape(node, 0)
        _, locations_shape = inferred_shape(node, 2)
        has_axes = value_shape.shape[1] == 4 and locations_shape.shape[1] > 1
        if has_axes and value_shape[0, 2] >= 0 and value_shape[0, 3] >= 0:
            words = c_string(OUTPUT_LAYOUT_WORDS)
            layout = inferred_choice(node, c_string("output_layout"), words, OUTPUT_BY_QUERY)
            Y_shape = alloc_shape(node, 4 if layout == OUTPUT_BY_HEAD else 3)
            if layout >= 0 and Y_shape.shape[1] > 0:
                _infer_lengths(layout, value_shape, locations_shape, Y_shape)
                set_inferred_shape(node, value_type, Y_shape)
    free_blocks(node.blocks)
    return 0


@register_jitable
def _infer_lengths(
    layout: int, value_shape: ArrayRef, locations_shape: ArrayRef, Y_shape: ArrayRef
) -> None:
    """Write the lengths of Y and the names of its axes to ``Y_shape``.

    The arrays are those of :mod:`.shape_inference`. H and D are known. Without a known B, there is
    no name for B·H.
    """
    heads = value_shape[0, 2]
    channels = value_shape[0, 3]
    batch_shape = value_shape if value_shape[0, 0] >= 0 else locations_shape
    batches = batch_shape[0, 0]
    query_axis = 1
    for axis in range(Y_shape.shape[1]):
        Y_shape[1, axis] = value_shape[1, 2]  # an empty name, as H is known
    if layout == OUTPUT_CHANNELS_FIRST:
        query_axis = 2
        Y_shape[0, 0] = batches * heads if batches >= 0 else -1
        Y_shape[0, 1] = channels
    else:
        Y_shape[0, 0] = batches
        Y_shape[1, 0] = batch_shape[1, 0]
        if layout == OUTPUT_BY_HEAD:
            Y_shape[0, 2] = heads
            Y_shape[0, 3] = channels
        else:
            Y_shape[0, 2] = heads * channels
    Y_shape[0, query_axis] = locations_shape[0, 1]
    Y_shape[1, query_axis] = locations_shape[1, 1]


def compute(state_address: Address, context: Address) -> Status:
    """KernelComputeV2: compute the weighted sums."""
    state = record_at(state_address, ATTENTION_STATE)
    operands = state.operands
    request = local_record(REQUEST)
    status = open_request(request, state, context, 0)
    status = status or _read_value(state, operands, request)
    if operands.levels < 0:
        status = status or _levels_of_state(state, operands, request)
    else:
        status = status or read_input(request, state, operands.levels, request.inputs[_LEVELS])
    if operands.locations < 0:
        status = status or _locations_of_grids(state, operands, request)
    else:
        tensor = request.inputs[_LOCATIONS]
        status = status or read_input(request, state, operands.locations, tensor)
    status = status or _read_weights(state, operands, request)
    if operands.lengths_type != 0:
        status = status or _levels_of_lengths(state, operands, request)
    launch = local_record(ATTENTION_LAUNCH)
    status = status or _attend(state, request, launch, operands.output_layout)
    free_blocks(request.blocks)
    return status


@register_jitable
def _no_memory(state: RecordRef, request: RecordRef, nbytes: int) -> Status:
    return no_memory(request.api, state.errors, nbytes)


@register_jitable
def _wrong_shape(
    state: RecordRef, request: RecordRef, sentence_index: int, lengths: ArrayRef
) -> Status:
    """Return an OrtStatus* with a sentence about a shape."""
    return error_status(request.api, state.errors, sentence_index, (shape_argument(lengths),))


@register_jitable
def _wrong_starts(state: RecordRef, request: RecordRef) -> Status:
    return error_status(request.api, state.errors, LEVEL_STARTS_MISMATCH_INDEX, NO_ARGUMENTS)


@register_jitable
def _wrong_locations(
    state: RecordRef,
    request: RecordRef,
    value_shape: ArrayRef,
    locations_shape: ArrayRef,
    n_levels: int,
) -> Status:
    arguments = (
        shape_argument(locations_shape),
        shape_argument(value_shape),
        integer_argument(n_levels),
    )
    return error_status(request.api, state.errors, LOCATIONS_SHAPE_MISMATCH_INDEX, arguments)


@register_jitable
def _wrong_weights(
    state: RecordRef, request: RecordRef, weights_shape: ArrayRef, locations_shape: ArrayRef
) -> Status:
    arguments = (
        shape_argument(weights_shape),
        shape_argument(locations_shape[: len(locations_shape) - 1]),
        shape_argument(locations_shape),
    )
    return error_status(request.api, state.errors, WEIGHTS_SHAPE_MISMATCH_INDEX, arguments)


@register_jitable
def _read_value(state: RecordRef, operands: RecordRef, request: RecordRef) -> Status:
    """Set the value (B, S, H, D)."""
    tensor = request.inputs[_VALUE]
    status = read_input(request, state, operands.value, tensor)
    if status != 0:
        return status
    lengths = shape_of(tensor)
    has_shape = len(lengths) == operands.n_value_axes
    if has_shape and len(lengths) == 3:
        has_shape = lengths[2] == operands.heads * operands.channels
    if not has_shape:
        return _wrong_shape(state, request, VALUE_SHAPE_INVALID_INDEX, lengths)
    if len(lengths) == 4:
        return 0
    split_lengths = alloc_int64s(request, 4)
    if len(split_lengths) == 0:
        return _no_memory(state, request, 32)
    split_lengths[0] = lengths[0]
    split_lengths[1] = lengths[1]
    split_lengths[2] = operands.heads
    split_lengths[3] = operands.channels
    set_shape(tensor, split_lengths)
    return 0


@register_jitable
def _alloc_levels(
    state: RecordRef, request: RecordRef, n_levels: int, n_columns: int
) -> tuple[Status, Address]:
    """Set the levels to new memory for (L, 1 + r); return a status, and the address."""
    nbytes = 8 * n_levels * n_columns
    memory = alloc(request, nbytes)
    levels_shape = alloc_int64s(request, 2)
    if memory == 0 or len(levels_shape) == 0:
        return _no_memory(state, request, nbytes), 0
    levels_shape[0] = n_levels
    levels_shape[1] = n_columns
    request.inputs[_LEVELS].data = memory
    set_shape(request.inputs[_LEVELS], levels_shape)
    return 0, memory


@register_jitable
def _levels_of_state(state: RecordRef, operands: RecordRef, request: RecordRef) -> Status:
    """Set the levels (L, 1 + r) to those of the array of LEVEL."""
    status, memory = _alloc_levels(state, request, state.n_levels, 1 + operands.r)
    if status != 0:
        return status
    rows = array_at(memory, (state.n_levels, 1 + operands.r), np.int64)
    levels = array_at(state.levels, (state.n_levels,), LEVEL)
    for index in range(state.n_levels):
        level = levels[index]
        status, lengths = _find_lengths(state, operands, request, level)
        if status != 0:
            return status
        rows[index, 0] = level.points
        level_lengths = array_at(lengths, (operands.r,), np.int64)
        for axis in range(operands.r):  # an assignment of an array needs reference counts
            rows[index, 1 + axis] = level_lengths[axis]
    return 0


@register_jitable
def _find_lengths(
    state: RecordRef, operands: RecordRef, request: RecordRef, level: RecordRef
) -> tuple[Status, Address]:
    """Return an OrtStatus*, and the address of the lengths (r,) of a LEVEL."""
    if level.shape_input < 0:
        return 0, field_address(level, "lengths")
    tensor = request.inputs[_OTHER]
    status = read_input(request, state, level.shape_input, tensor)
    if status != 0:
        return status, 0
    n_axes = count_elements(shape_of(tensor))
    if n_axes != 2 + operands.r:
        image_shape = array_at(tensor.data, (n_axes,), np.int64)
        arguments = (shape_argument(image_shape), integer_argument(2 + operands.r))
        return error_status(request.api, state.errors, IMAGE_AXES_MISMATCH_INDEX, arguments), 0
    return 0, tensor.data + 2 * 8


@register_jitable
def _levels_of_lengths(state: RecordRef, operands: RecordRef, request: RecordRef) -> Status:
    """Replace the levels (L, 2), which are lengths, by (L, 3), with the points of the locations.

    Locations and weights must have an axis L, and each level begins where the previous one ends.
    """
    tensor = request.inputs[_LEVELS]
    starts = request.inputs[_OTHER]
    status = read_input(request, state, operands.starts, starts)
    if status != 0:
        return status
    lengths_shape = shape_of(tensor)
    starts_shape = shape_of(starts)
    locations_shape = shape_of(request.inputs[_LOCATIONS])
    if len(lengths_shape) != 2 or lengths_shape[1] != 2:
        return _wrong_shape(state, request, SPATIAL_SHAPES_INVALID_INDEX, lengths_shape)
    if len(starts_shape) != 1 or starts_shape[0] != lengths_shape[0]:
        return _wrong_starts(state, request)
    if len(locations_shape) != 6:
        return _wrong_shape(state, request, LOCATIONS_WITHOUT_LEVELS_INDEX, locations_shape)
    weights_shape = shape_of(request.inputs[_WEIGHTS])
    if len(weights_shape) != 5:
        return _wrong_weights(state, request, weights_shape, locations_shape)
    lengths = tensor.data
    n_levels = lengths_shape[0]
    status, memory = _alloc_levels(state, request, n_levels, 3)
    if status != 0:
        return status
    rows = array_at(memory, (n_levels, 3), np.int64)
    start = 0
    for level in range(n_levels):
        rows[level, 0] = locations_shape[4]
        for axis in range(2):
            rows[level, 1 + axis] = _integer(operands, lengths, 2 * level + axis)
        if _integer(operands, starts.data, level) != start:
            return _wrong_starts(state, request)
        start += rows[level, 1] * rows[level, 2]
    return 0


@register_jitable
def _integer(operands: RecordRef, data: Address, index: int) -> int:
    """Return an element of the lengths or of the starts, which are of one type.

    Args:
        operands: the OPERANDS.
        data: the address of the elements.
    """
    if operands.lengths_type == _INT32:
        return array_at(data, (index + 1,), np.int32)[index]
    return array_at(data, (index + 1,), np.int64)[index]


@register_jitable
def _read_weights(state: RecordRef, operands: RecordRef, request: RecordRef) -> Status:
    """Set the weights (B, Q, H, P) or (B, Q, H, L, P)."""
    tensor = request.inputs[_WEIGHTS]
    status = read_input(request, state, operands.weights, tensor)
    if status != 0:
        return status
    if operands.weights_layout == BY_IMAGE:
        return _move_heads_inward(state, operands, request)
    lengths = shape_of(tensor)
    if operands.weights_layout == BY_QUERY and len(lengths) == 5:
        merged_lengths = alloc_int64s(request, 4)
        if len(merged_lengths) == 0:
            return _no_memory(state, request, 32)
        for axis in range(3):
            merged_lengths[axis] = lengths[axis]
        merged_lengths[3] = lengths[3] * lengths[4]
        set_shape(tensor, merged_lengths)
    return 0


@register_jitable
def _move_heads_inward(state: RecordRef, operands: RecordRef, request: RecordRef) -> Status:
    """Replace weights (B·H, 1, Q, P) by weights (B, Q, H, P)."""
    tensor = request.inputs[_WEIGHTS]
    lengths = shape_of(tensor)
    if len(lengths) != 4 or lengths[0] % operands.heads != 0 or lengths[1] != 1:
        return _wrong_weights(state, request, lengths, shape_of(request.inputs[_LOCATIONS]))
    new_lengths = alloc_int64s(request, 4)
    if len(new_lengths) == 0:
        return _no_memory(state, request, 32)
    new_lengths[0] = lengths[0] // operands.heads
    new_lengths[1] = lengths[2]
    new_lengths[2] = operands.heads
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
def _locations_of_grids(state: RecordRef, operands: RecordRef, request: RecordRef) -> Status:
    """Set the locations (B, Q, H, P, r), in [0, 1], from the grids of the levels."""
    lengths = alloc_int64s(request, 5)
    if len(lengths) == 0:
        return _no_memory(state, request, 40)
    value_shape = shape_of(request.inputs[_VALUE])  # (B, S, H, D): _read_value() checked it
    levels = array_at(state.levels, (state.n_levels,), LEVEL)
    n_points = 0
    for index in range(state.n_levels):
        n_points += levels[index].points
    lengths[0] = value_shape[0]
    lengths[2] = operands.heads
    lengths[3] = n_points
    lengths[4] = operands.r
    memory = 0
    first_point = 0
    for index in range(state.n_levels):
        level = levels[index]
        tensor = request.inputs[_OTHER]
        status = read_input(request, state, level.grid_input, tensor)
        if status != 0:
            return status
        grid_shape = shape_of(tensor)
        batch_heads = value_shape[0] * operands.heads
        queries = _count_queries(grid_shape, batch_heads, level.points, operands.r)
        if index == 0:
            lengths[1] = max(queries, 0)
            nbytes = (8 if operands.grid_type == _FLOAT64 else 4) * count_elements(lengths)
            memory = alloc(request, nbytes)
            if memory == 0:
                return _no_memory(state, request, nbytes)
        if queries != lengths[1]:
            return _wrong_locations(state, request, value_shape, grid_shape, state.n_levels)
        _copy_grid(memory, tensor.data, operands.grid_type, lengths, first_point, level.points)
        first_point += level.points
    tensor = request.inputs[_LOCATIONS]
    tensor.data = memory
    set_shape(tensor, lengths)
    return 0


@register_jitable
def _count_queries(grid_shape: ArrayRef, batch_heads: int, points: int, r: int) -> int:
    """Return Q of a grid of the shape (B·H, …, r) with Q·points positions; -1 for other shapes."""
    n_axes = len(grid_shape)
    if n_axes < 3 or grid_shape[0] != batch_heads or grid_shape[n_axes - 1] != r or points == 0:
        return -1
    positions = count_elements(grid_shape[1 : n_axes - 1])
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


@register_jitable
def _attend(state: RecordRef, request: RecordRef, launch: RecordRef, output_layout: int) -> Status:
    """Check the shapes, create the output Y, and fill it.

    Args:
        request: a REQUEST.
        launch: an ATTENTION_LAUNCH.
        output_layout: the layout of Y.
    """
    status = _set_levels(state, request, launch)
    status = status or _set_points(state, request, launch)
    if status != 0:
        return status
    Y_shape = _output_shape(request, launch, output_layout)
    if len(Y_shape) == 0:
        return _no_memory(state, request, 32)
    launch.value = request.inputs[_VALUE].data
    launch.locations = request.inputs[_LOCATIONS].data
    launch.weights = request.inputs[_WEIGHTS].data
    launch.align_corners = state.kernel.align_corners
    launch.process_items = state.kernel.process_items
    launch.channels_first = int(output_layout == OUTPUT_CHANNELS_FIRST)
    # Without points, the sums are 0. Without pixels, the samples are 0, but the product with an
    # infinite or NaN weight is NaN, and so they are added up.
    has_samples = launch.points > 0
    return fill_output(state, request, launch, Y_shape, has_samples)


@register_jitable
def _set_levels(state: RecordRef, request: RecordRef, launch: RecordRef) -> Status:
    """Check value and levels, and set the fields of ``launch`` that depend on them."""
    value_shape = shape_of(request.inputs[_VALUE])
    levels_shape = shape_of(request.inputs[_LEVELS])
    if len(value_shape) != 4:
        return _wrong_shape(state, request, VALUE_SHAPE_INVALID_INDEX, value_shape)
    if len(levels_shape) != 2 or levels_shape[1] < 2:
        return _wrong_shape(state, request, LEVELS_SHAPE_INVALID_INDEX, levels_shape)
    n_levels = levels_shape[0]
    r = levels_shape[1] - 1
    launch.n, launch.pixels, launch.heads, launch.channels = value_shape
    launch.n_levels = n_levels
    launch.r = r
    nbytes = 8 * n_levels * (1 + r)
    launch.levels = alloc(request, nbytes)
    if launch.levels == 0:
        return _no_memory(state, request, nbytes)
    # A copy, so that no other thread changes the lengths after they were checked.
    memcpy(launch.levels, request.inputs[_LEVELS].data, nbytes)
    if launch.pixels > MAX_PIXELS or r > MAX_LEVEL_AXES:
        return _wrong_shape(state, request, VALUE_BEYOND_LIMITS_INDEX, value_shape)
    pixels = _count_pixels(array_at(launch.levels, (n_levels, 1 + r), np.int64))
    if pixels < 0:
        return error_status(request.api, state.errors, LEVELS_NEGATIVE_INDEX, NO_ARGUMENTS)
    if pixels != launch.pixels:
        arguments = (
            integer_argument(pixels),
            integer_argument(launch.pixels),
            shape_argument(value_shape),
        )
        return error_status(request.api, state.errors, LEVELS_PIXELS_MISMATCH_INDEX, arguments)
    return 0


@register_jitable
def _set_points(state: RecordRef, request: RecordRef, launch: RecordRef) -> Status:
    """Check locations and weights, and set the fields of ``launch`` that depend on them.

    Args:
        request: a REQUEST.
        launch: an ATTENTION_LAUNCH after :func:`_set_levels`.
    """
    value_shape = shape_of(request.inputs[_VALUE])
    locations_shape = shape_of(request.inputs[_LOCATIONS])
    weights_shape = shape_of(request.inputs[_WEIGHTS])
    n_levels = launch.n_levels
    levels = array_at(launch.levels, (n_levels, 1 + launch.r), np.int64)
    launch.points = _count_points(value_shape, locations_shape, 1)
    if not _has_points(levels, launch.points, locations_shape):
        return _wrong_locations(state, request, value_shape, locations_shape, n_levels)
    launch.queries = locations_shape[1]
    weight_points = _count_points(value_shape, weights_shape, 0)
    if weight_points != launch.points or not _do_weights_fit(weights_shape, locations_shape):
        return _wrong_weights(state, request, weights_shape, locations_shape)
    launch.weight_queries = weights_shape[1]
    # As floats, which do not wrap around. An element has up to 8 bytes.
    heads = float(launch.n) * float(launch.queries) * float(launch.heads)
    if heads * float(launch.channels) >= 2.0**59:
        return _wrong_shape(state, request, Y_TOO_LARGE_INDEX, value_shape)
    return 0


@returns_array
def _output_shape(request: RecordRef, launch: RecordRef, output_layout: int) -> ArrayRef:
    """Return the shape of Y; an empty array without memory."""
    Y_shape = alloc_int64s(request, 4 if output_layout == OUTPUT_BY_HEAD else 3)
    if len(Y_shape) == 0:
        return Y_shape
    Y_shape[0] = launch.n
    Y_shape[1] = launch.queries
    Y_shape[2] = launch.heads
    if output_layout == OUTPUT_BY_HEAD:
        Y_shape[3] = launch.channels
    elif output_layout == OUTPUT_CHANNELS_FIRST:
        Y_shape[0] *= launch.heads
        Y_shape[1] = launch.channels
        Y_shape[2] = launch.queries
    else:
        Y_shape[2] *= launch.channels
    return Y_shape


@register_jitable
def _count_pixels(levels: ArrayRef) -> int:
    """Return the number of pixels of all ``levels`` (L, 1 + r), at most :data:`TOO_MANY_PIXELS`.

    -1 if a length or a number of points is negative.
    """
    total = 0
    smallest = 0
    for level in range(len(levels)):
        smallest = min(smallest, levels[level, 0])
        area = 1
        magnitude = 1.0  # unlike the area, it does not wrap around
        for axis in range(1, levels.shape[1]):
            length = levels[level, axis]
            smallest = min(smallest, length)
            area *= length
            magnitude *= float(length)
        if magnitude >= float(TOO_MANY_PIXELS):
            area = TOO_MANY_PIXELS
        total = min(total + area, TOO_MANY_PIXELS)
    return total if smallest == 0 else -1


_compute = register_jitable(compute)


def compute_with_status(state_address: Address, context: Address) -> Status:
    """KernelComputeV2 of an op that replaces a Python op, and has its status output."""
    status = _compute(state_address, context)
    return status or write_status_output(record_at(state_address, ATTENTION_STATE), context)


IMPLEMENTATION = OpImplementation(create, compute, destroy, SENTENCES, states, infer)
WITH_STATUS = IMPLEMENTATION._replace(compute=compute_with_status)
