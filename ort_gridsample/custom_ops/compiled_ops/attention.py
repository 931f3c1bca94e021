"""The compiled op for deformable attention.

It runs the workers of :mod:`ort_gridsample.kernels.attention`. Its inputs are those of
:func:`ort_gridsample.functions.attention.attend`: value (B, S, H, D), levels (L, 1 + r), locations
(B, Q, H, points, r) or (B, Q, H, L, P, r), and weights like the locations without their last axis.
A row of levels is the number of points of a level, and its lengths.
"""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ...functions import validation
from ...kernels.attention import attention_functions
from ...kernels.compilation import compiles_in
from ...kernels.halves import stored_dtype_of
from ...kernels.pointers import (
    array_at,
    c_string,
    local_record,
    memcpy,
    record_at,
    returns_array,
)
from ...kernels.structs import (
    ATTENTION_LAUNCH,
    MAX_LEVEL_AXES,
    MAX_PIXELS,
    Address,
    ArrayRef,
    RecordRef,
)
from .catalog import Fields, OpImplementation
from .creation import LAST_SENTENCES, create_single_state, destroy
from .launches import fill_output
from .requests import (
    Status,
    alloc,
    alloc_int64s,
    free_blocks,
    open_request,
    shape_of,
    write_status_output,
)
from .sentences import (
    NO_MEMORY_INDEX,
    NO_MEMORY_SENTENCE,
    SentenceTable,
    encode,
    error_with_number,
    error_with_shape,
    error_with_shapes,
)
from .shape_inference import alloc_shape, inferred_shape, open_inference, set_inferred_shape
from .structs import BASIC_STATE, NODE, REQUEST

#: A number of pixels that is too large for any value. Larger numbers are reduced to it.
TOO_MANY_PIXELS = 2 * MAX_PIXELS

#: The number of points must be smaller. Up to this bound a sum of int64 does not wrap around.
MAX_POINTS = 1 << 61

#: The error messages of a run by name. A comment names the shapes and the number that the sentence
#: contains.
_RUN_TEMPLATES = {
    # nbytes
    "NO_MEMORY": NO_MEMORY_SENTENCE,
    # value
    "VALUE_SHAPE_INVALID": validation.VALUE_SHAPE_INVALID,
    # levels
    "LEVELS_SHAPE_INVALID": validation.LEVELS_SHAPE_INVALID,
    "LEVELS_NEGATIVE": validation.LEVELS_NEGATIVE,
    # value, the number of pixels of all levels
    "LEVELS_PIXELS_MISMATCH": validation.LEVELS_PIXELS_MISMATCH,
    # value, locations, the number of levels
    "LOCATIONS_SHAPE_MISMATCH": validation.LOCATIONS_SHAPE_MISMATCH,
    # weights, locations
    "WEIGHTS_SHAPE_MISMATCH": validation.WEIGHTS_SHAPE_MISMATCH,
    # value
    "Y_TOO_LARGE": validation.ErrorTemplate(
        "Y",
        "for value of shape {value_shape}",
        "fewer bytes than an address can reach",
    ),
    # value
    "VALUE_BEYOND_LIMITS": validation.ErrorTemplate(
        "value",
        "of shape {value_shape}",
        f"at most {MAX_PIXELS} pixels, and levels of at most {MAX_LEVEL_AXES} axes",
    ),
}
_ROWS = {name: encode(template) for name, template in _RUN_TEMPLATES.items()}
_TABLE = SentenceTable(_ROWS | LAST_SENTENCES)
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
WRONG_INTERFACE_INDEX = _TABLE.index("WRONG_INTERFACE")


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
    return BASIC_STATE, [{"kernel": kernel}]


def create(op_address: Address, api: Address, info: Address, out: Address) -> Status:
    """CreateKernelV2 of deformable attention."""
    prefix = c_string("DeformableAttention node ")
    return create_single_state(
        op_address, api, info, out, BASIC_STATE, prefix, WRONG_INTERFACE_INDEX
    )


@compiles_in(1.7)
def infer(op_address: Address, context: Address) -> int:
    """InferOutputShapeFn: Y is (B, Q, H·D). An unknown shape is not set."""
    node = local_record(NODE)
    if open_inference(node, op_address, context):
        value_type, value_shape = inferred_shape(node, 0)
        _, locations_shape = inferred_shape(node, 2)
        has_axes = value_shape.shape[1] == 4 and locations_shape.shape[1] > 1
        if has_axes and value_shape[0, 2] >= 0 and value_shape[0, 3] >= 0:
            Y_shape = alloc_shape(node, 3)
            n_rows = 2 if Y_shape.shape[1] > 0 else 0
            is_n_known = value_shape[0, 0] >= 0
            for row in range(n_rows):
                Y_shape[row, 0] = value_shape[row, 0] if is_n_known else locations_shape[row, 0]
                Y_shape[row, 1] = locations_shape[row, 1]
                # H·D. The name is that of H: it is empty, as the length is known.
                Y_shape[row, 2] = value_shape[row, 2] * (value_shape[0, 3] if row == 0 else 1)
            set_inferred_shape(node, value_type, Y_shape)
    free_blocks(node.blocks)
    return 0


def compute(state_address: Address, context: Address) -> Status:
    """KernelComputeV2: compute the weighted sums."""
    state = record_at(state_address, BASIC_STATE)
    request = local_record(REQUEST)
    status = open_request(request, state, context, 4)
    status = status or attend(state, request, local_record(ATTENTION_LAUNCH), 3)
    free_blocks(request.blocks)
    return status


@register_jitable
def attend(state: RecordRef, request: RecordRef, launch: RecordRef, n_output_axes: int) -> Status:
    """Check the shapes, create the output Y, and fill it.

    Args:
        state: the state of the op.
        request: a REQUEST.
        launch: an ATTENTION_LAUNCH.
        n_output_axes: 3 if Y is (B, Q, H·D), 4 if it is (B, Q, H, D).
    """
    status = _set_levels(state, request, launch)
    status = status or _set_points(state, request, launch)
    if status != 0:
        return status
    Y_shape = _output_shape(request, launch, n_output_axes)
    if len(Y_shape) == 0:
        nbytes = 8 * n_output_axes
        return error_with_number(request.api, state.errors, NO_MEMORY_INDEX, nbytes)
    launch.value = request.inputs[0].data
    launch.locations = request.inputs[2].data
    launch.weights = request.inputs[3].data
    launch.align_corners = state.kernel.align_corners
    launch.process_items = state.kernel.process_items
    # Without pixels, the samples are 0, but the product with an infinite or NaN weight is NaN.
    has_samples = launch.points > 0
    return fill_output(state, request, launch, Y_shape, has_samples)


@register_jitable
def _set_levels(state: RecordRef, request: RecordRef, launch: RecordRef) -> Status:
    """Check value and levels, and set the fields of ``launch`` that depend on them."""
    api = request.api
    errors_address = state.errors
    value_shape = shape_of(request.inputs[0])
    levels_shape = shape_of(request.inputs[1])
    if len(value_shape) != 4:
        return error_with_shape(api, errors_address, VALUE_SHAPE_INVALID_INDEX, value_shape)
    if len(levels_shape) != 2 or levels_shape[1] < 2:
        return error_with_shape(api, errors_address, LEVELS_SHAPE_INVALID_INDEX, levels_shape)
    n_levels = levels_shape[0]
    r = levels_shape[1] - 1
    launch.n, launch.pixels, launch.heads, launch.channels = value_shape
    launch.n_levels = n_levels
    launch.r = r
    nbytes = 8 * n_levels * (1 + r)
    launch.levels = alloc(request, nbytes)
    if launch.levels == 0:
        return error_with_number(api, errors_address, NO_MEMORY_INDEX, nbytes)
    # A copy, so that no other thread changes the lengths after they were checked.
    memcpy(launch.levels, request.inputs[1].data, nbytes)
    if launch.pixels > MAX_PIXELS or r > MAX_LEVEL_AXES:
        return error_with_shape(api, errors_address, VALUE_BEYOND_LIMITS_INDEX, value_shape)
    pixels = _count_pixels(array_at(launch.levels, (n_levels, 1 + r), np.int64))
    if pixels < 0:
        return error_with_shape(api, errors_address, LEVELS_NEGATIVE_INDEX, levels_shape)
    if pixels != launch.pixels:
        sentence_index = LEVELS_PIXELS_MISMATCH_INDEX
        return error_with_shape(api, errors_address, sentence_index, value_shape, pixels)
    return 0


@register_jitable
def _set_points(state: RecordRef, request: RecordRef, launch: RecordRef) -> Status:
    """Check locations and weights, and set the fields of ``launch`` that depend on them.

    Args:
        state: the state of the op.
        request: a REQUEST.
        launch: an ATTENTION_LAUNCH after :func:`_set_levels`.
    """
    api = request.api
    errors_address = state.errors
    value_shape = shape_of(request.inputs[0])
    locations_shape = shape_of(request.inputs[2])
    weights_shape = shape_of(request.inputs[3])
    n_levels = launch.n_levels
    levels = array_at(launch.levels, (n_levels, 1 + launch.r), np.int64)
    launch.points = _count_points(value_shape, locations_shape, 1)
    if not _has_points(levels, launch.points, locations_shape):
        sentence_index = LOCATIONS_SHAPE_MISMATCH_INDEX
        return error_with_shapes(
            api, errors_address, sentence_index, value_shape, locations_shape, n_levels
        )
    launch.queries = locations_shape[1]
    weight_points = _count_points(value_shape, weights_shape, 0)
    if weight_points != launch.points or not _fits_locations(weights_shape, locations_shape):
        sentence_index = WEIGHTS_SHAPE_MISMATCH_INDEX
        return error_with_shapes(
            api, errors_address, sentence_index, weights_shape, locations_shape
        )
    launch.weight_queries = weights_shape[1]
    heads = float(launch.n) * float(launch.queries) * float(launch.heads)
    if heads * float(launch.channels) >= 2.0**59:
        return error_with_shape(api, errors_address, Y_TOO_LARGE_INDEX, value_shape)
    return 0


@returns_array
def _output_shape(request: RecordRef, launch: RecordRef, n_output_axes: int) -> ArrayRef:
    """Return the shape of Y, as in :func:`attend`; an empty array without memory."""
    Y_shape = alloc_int64s(request, n_output_axes)
    if len(Y_shape) == 0:
        return Y_shape
    Y_shape[0] = launch.n
    Y_shape[1] = launch.queries
    Y_shape[2] = launch.heads
    if n_output_axes == 4:
        Y_shape[3] = launch.channels
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
        for axis in range(1, levels.shape[1]):
            length = levels[level, axis]
            smallest = min(smallest, length)
            area = min(area * min(length, TOO_MANY_PIXELS), TOO_MANY_PIXELS)
        total = min(total + area, TOO_MANY_PIXELS)
    return total if smallest == 0 else -1


@register_jitable
def _count_points(value_shape: ArrayRef, shape: ArrayRef, n_last_axes: int) -> int:
    """Return the number of points of each head.

    Args:
        value_shape: the shape of value.
        shape: the shape (B, Q, H, …) of the locations or of the weights.
        n_last_axes: the number of its last axes that do not enumerate points.

    Returns:
        The number, or -1 if the shape does not fit that of value, or has :data:`MAX_POINTS` or
        more.
    """
    if len(shape) < 4 or shape[0] != value_shape[0] or shape[2] != value_shape[2]:
        return -1
    count = 1
    magnitude = 1.0  # unlike the count, it does not wrap around
    for axis in range(3, len(shape) - n_last_axes):
        count *= shape[axis]
        magnitude *= float(shape[axis])
    return count if magnitude < float(MAX_POINTS) else -1


@register_jitable
def _has_points(levels: ArrayRef, n_points: int, locations_shape: ArrayRef) -> bool:
    """Whether the locations have the points and the axes of the ``levels``.

    Args:
        levels: the levels (L, 1 + r), without a negative number.
        n_points: the number of points of the locations; -1 if their shape is wrong.
        locations_shape: the shape of the locations.
    """
    total = 0
    for level in range(len(levels)):
        total = min(total + min(levels[level, 0], MAX_POINTS), MAX_POINTS)
    n_axes = len(locations_shape)
    if total != n_points or n_axes not in (5, 6):
        return False
    has_levels = n_axes != 6 or locations_shape[3] == len(levels)
    return has_levels and locations_shape[n_axes - 1] == levels.shape[1] - 1


@register_jitable
def _fits_locations(weights_shape: ArrayRef, locations_shape: ArrayRef) -> bool:
    """Whether a shape of weights, with the right number of points, fits that of the locations."""
    n_axes = len(weights_shape)
    if n_axes not in (4, 5):
        return False
    have_levels = n_axes == 5 and len(locations_shape) == 6
    if have_levels and weights_shape[3] != locations_shape[3]:
        return False
    # Without a level, the numbers of points are equal even if this axis differs.
    if have_levels and weights_shape[4] != locations_shape[4]:
        return False
    is_one_for_all_queries = weights_shape[1] == 1 and n_axes == 4
    return is_one_for_all_queries or weights_shape[1] == locations_shape[1]


_compute = register_jitable(compute)


def compute_with_status(state_address: Address, context: Address) -> Status:
    """KernelComputeV2 of an op that replaces a Python op, and has its status output."""
    status = _compute(state_address, context)
    return status or write_status_output(record_at(state_address, BASIC_STATE), context)


IMPLEMENTATION = OpImplementation(create, compute, destroy, SENTENCES, states, infer)
WITH_STATUS = IMPLEMENTATION._replace(compute=compute_with_status)
