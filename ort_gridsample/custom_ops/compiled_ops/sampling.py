"""The compiled GridSample op, which runs the workers of :mod:`ort_gridsample.kernels.workers`.

The grid is the second input, or has a source: :mod:`.affine` or :mod:`.program_grids`. A source
consists of two compiled functions. ``prepare_grid`` checks the inputs and sets the grid, and
``coordinates_for`` makes the function that computes the coordinates of a tile.
"""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ... import spec
from ...functions import error_templates as templates
from ...functions.error_templates import ErrorTemplate
from ...functions.validation import format_choices
from ...kernels import kernel_factories
from ...kernels.compilation import FunctionSpec, compiles_in
from ...kernels.pointers import (
    address_of,
    c_string,
    call,
    local_record,
    record_at,
)
from ...kernels.structs import MAX_PIXELS, Address, ArrayRef, RecordRef
from ...kernels.tap_plans import (
    COMPILED_MODES,
    COMPILED_PADDING_RULES,
    MODE_CODES,
    PADDING_CODES,
)
from ...reference.taps import MAX_TAPS
from . import requests
from .catalog import Fields, OpImplementation
from .creation import (
    MISSING_STATE,
    WRONG_INTERFACE,
    choice_attribute,
    close_node,
    create_state,
    destroy,
    open_node,
)
from .launches import fill_output
from .requests import Status
from .sentences import (
    NO_ERROR,
    NO_MEMORY_SENTENCE,
    SentenceTable,
    axis_names,
    encode,
    error_status,
    integer_argument,
    no_memory,
    shape_argument,
    strlen,
    text_argument,
)
from .shape_inference import alloc_shape, inferred_shape, open_inference, set_inferred_shape
from .structs import GRID_SAMPLE_STATE, NODE, OP, REQUEST

_PADDINGS = list(PADDING_CODES)
_MODES = [*COMPILED_MODES, *spec.MODE_SYNONYMS]

_MODE_CHOICES = format_choices(_MODES)
_PADDING_CHOICES = format_choices(_PADDINGS)

_Y_TOO_LARGE = ErrorTemplate(
    "Y",
    "for X of shape {X} and grid of shape {grid}",
    "fewer bytes than an address can reach",
)
_TOO_MANY_PIXELS = ErrorTemplate(
    "X",
    "of shape {X}",
    f"at most {MAX_PIXELS} pixels a channel",
)
_TOO_MANY_TAPS = ErrorTemplate(
    "X",
    "of shape {X}",
    f"fewer spatial axes: at most {MAX_TAPS} taps for each position",
)
#: The arguments of the error messages about shapes, as :func:`_shape_arguments` returns them.
_SHAPE_ARGUMENTS = ("X", "grid", "N", "outputs", "r", "axis_word")
#: The error messages about shapes by name. X_HAS_NO_PIXEL has one for each padding.
_SHAPE_ROWS = {
    name: encode(template, *_SHAPE_ARGUMENTS)
    for name, template in {
        "X_SHAPE_INVALID": templates.X_SHAPE_INVALID,
        "GRID_SHAPE_MISMATCH": templates.GRID_SHAPE_MISMATCH,
        "GRID_BATCH_MISMATCH": templates.GRID_BATCH_MISMATCH,
        "Y_TOO_LARGE": _Y_TOO_LARGE,
        "TOO_MANY_PIXELS": _TOO_MANY_PIXELS,
        "TOO_MANY_TAPS": _TOO_MANY_TAPS,
    }.items()
}
for _padding in _PADDINGS:
    _SHAPE_ROWS[f"X_HAS_NO_PIXEL {_padding}"] = encode(
        templates.X_HAS_NO_PIXEL, *_SHAPE_ARGUMENTS, padding_mode=_padding
    )
#: The error messages of the op by name. The last ones are one for each mode.
_ROWS = {
    "NO_MEMORY": encode(NO_MEMORY_SENTENCE, "nbytes"),
    **_SHAPE_ROWS,
    "WRONG_INTERFACE": encode(WRONG_INTERFACE, "number"),
    "MODE_UNKNOWN": encode(templates.MODE_UNKNOWN, "value", listed=_MODE_CHOICES),
    "PADDING_MODE_UNKNOWN": encode(
        templates.PADDING_MODE_UNKNOWN, "value", listed=_PADDING_CHOICES
    ),
    **{
        f"MISSING_STATE {name}": encode(MISSING_STATE, "inputs", mode=f"mode {name!r} for ")
        for name in COMPILED_MODES
    },
}
_TABLE = SentenceTable(_ROWS)
SENTENCES = _TABLE.encoded

# The indices of the sentences, as numbers: compiled code reads no dictionary.
X_SHAPE_INVALID_INDEX = _TABLE.index("X_SHAPE_INVALID")
GRID_SHAPE_MISMATCH_INDEX = _TABLE.index("GRID_SHAPE_MISMATCH")
GRID_BATCH_MISMATCH_INDEX = _TABLE.index("GRID_BATCH_MISMATCH")
Y_TOO_LARGE_INDEX = _TABLE.index("Y_TOO_LARGE")
#: The first of one sentence per padding.
X_HAS_NO_PIXEL_INDEX = _TABLE.index(f"X_HAS_NO_PIXEL {_PADDINGS[0]}")
TOO_MANY_PIXELS_INDEX = _TABLE.index("TOO_MANY_PIXELS")
TOO_MANY_TAPS_INDEX = _TABLE.index("TOO_MANY_TAPS")
WRONG_INTERFACE_INDEX = _TABLE.index("WRONG_INTERFACE")
MODE_UNKNOWN_INDEX = _TABLE.index("MODE_UNKNOWN")
PADDING_MODE_UNKNOWN_INDEX = _TABLE.index("PADDING_MODE_UNKNOWN")
#: The first of one sentence per mode.
MISSING_STATE_INDEX = _TABLE.index(f"MISSING_STATE {COMPILED_MODES[0]}")

#: The values of the attributes, each followed by a blank. The synonyms follow the modes.
MODE_WORDS = "".join(f"{name} " for name in _MODES)
PADDING_WORDS = "".join(f"{name} " for name in _PADDINGS)
#: Those that no specification has.
EXTENSION_MODES = "".join(f"{name} " for name in COMPILED_MODES if name not in spec.MODES)
EXTENSION_PADDINGS = "".join(f"{name} " for name in _PADDINGS if name not in spec.PADDING_MODES)
N_MODES = len(COMPILED_MODES)
LINEAR = MODE_CODES["linear"]
#: The index of the mode of each word.
MODE_OF_WORD = tuple(MODE_CODES[spec.mode_of(name)] for name in _MODES)
#: For each padding, whether it reads a pixel at every coordinate.
NEEDS_PIXEL = tuple(padding.needs_pixel for padding in COMPILED_PADDING_RULES.values())
#: The group of states of an op that has one group.
FIRST_GROUP = 0
#: The number of inputs: X and grid.
N_INPUTS = 2


# --- Creation ---


def states(X_type: str, grid_type: str) -> tuple[Any, list[Fields]]:
    """Return the initial states of a GridSample, one per mode."""
    return GRID_SAMPLE_STATE, [state_fields(X_type, grid_type, mode) for mode in COMPILED_MODES]


def state_fields(
    X_type: str,
    grid_type: str,
    mode: str,
    *,
    prepare_grid: FunctionSpec | None = None,
    coordinates: FunctionSpec | None = None,
    columns: int = 0,
) -> Fields:
    """Return the fields of the initial state for a mode.

    Args:
        X_type: the type of X.
        grid_type: the type of the coordinates.
        prepare_grid: the function that checks the inputs and sets the grid. None: the grid is the
            second input.
        coordinates: the function that computes the coordinates of a tile. None: it reads the grid.
        columns: the number of columns whose positions a worker keeps.
    """
    functions = kernel_factories.kernel_functions(X_type, grid_type, mode, coordinates)
    constants = kernel_factories.kernel_constants(X_type, grid_type, mode)
    return {"kernel": {**functions, **constants, "columns": columns}, "prepare_grid": prepare_grid}


def create(op_address: Address, api: Address, info: Address, out: Address) -> Status:
    """CreateKernelV2 of a GridSample whose grid is an input."""
    op = record_at(op_address, OP)
    node = local_record(NODE)
    errors_address = open_node(
        node, op, api, info, c_string("GridSample node "), WRONG_INTERFACE_INDEX
    )
    state_address = create_sample_state(node, op, errors_address, FIRST_GROUP, N_INPUTS)
    return close_node(node, state_address, out)


@register_jitable
def mode_of_word(index: int) -> int:
    """Return the index of a mode in the modes with kernels, given that of its word in MODE_WORDS.

    The result is -1 if there is no such word: the index is then -1, too.
    """
    return MODE_OF_WORD[index] if index >= 0 else -1


@register_jitable
def create_sample_state(
    node: RecordRef, op: RecordRef, errors_address: Address, group: int, n_inputs: int
) -> Address:
    """Create the state of a GridSample, for the node's mode and padding.

    Args:
        node: a NODE.
        op: its OP.
        errors_address: the address of the node's ERRORS.
        group: the index of a group of states. Each group has a state per mode.
        n_inputs: the number of inputs.

    Returns:
        The address of the state; 0 if ``node.status`` is not 0.
    """
    mode = choice_attribute(
        node, c_string("mode"), c_string(MODE_WORDS), LINEAR, errors_address, MODE_UNKNOWN_INDEX
    )
    mode = mode_of_word(mode)
    padding_words = c_string(PADDING_WORDS)
    padding = choice_attribute(
        node, c_string("padding_mode"), padding_words, 0, errors_address, PADDING_MODE_UNKNOWN_INDEX
    )
    return create_mode_state(node, op, errors_address, group, n_inputs, mode, padding)


@register_jitable
def create_mode_state(
    node: RecordRef,
    op: RecordRef,
    errors_address: Address,
    group: int,
    n_inputs: int,
    mode: int,
    padding: int,
) -> Address:
    """Create the state of a GridSample, as :func:`create_sample_state`, for a mode and a padding.

    The mode is an index of :data:`~ort_gridsample.kernels.tap_plans.COMPILED_MODES`, and the
    padding one of :data:`~ort_gridsample.kernels.tap_plans.PADDING_CODES`.
    """
    index = group * N_MODES + mode
    state_address = create_state(
        node, op, index, GRID_SAMPLE_STATE, errors_address, MISSING_STATE_INDEX + mode
    )
    if state_address != 0:
        state = record_at(state_address, GRID_SAMPLE_STATE)
        state.kernel.padding = padding
        state.n_inputs = n_inputs
    return state_address


# --- Inference of shapes ---


@compiles_in(1.7)
def infer(op_address: Address, context: Address) -> int:
    """InferOutputShapeFn: Y is (N, C, D1_out, …, Dr_out). Unknown shapes are not set."""
    node = local_record(NODE)
    if open_inference(node, op_address, context):
        X_type, X_shape = inferred_shape(node, 0)
        _, grid_shape = inferred_shape(node, 1)
        n_axes = X_shape.shape[1]
        if n_axes > 2 and grid_shape.shape[1] == n_axes:
            Y_shape = alloc_shape(node, n_axes)
            for axis in range(Y_shape.shape[1]):
                # N is X's if it is known there; C is X's; the lengths are the grid's.
                is_of_grid = axis > 1 or (axis == 0 and X_shape[0, 0] < 0)
                grid_axis = axis - 1 if axis > 1 else axis
                for row in range(2):
                    length = grid_shape[row, grid_axis] if is_of_grid else X_shape[row, axis]
                    Y_shape[row, axis] = length
            set_inferred_shape(node, X_type, Y_shape)
    requests.free_blocks(node.blocks)
    return 0


# --- Computation ---


def compute(state_address: Address, context: Address) -> Status:
    """KernelComputeV2: sample."""
    state = record_at(state_address, GRID_SAMPLE_STATE)
    request = local_record(REQUEST)
    request.launch.kernel = state_address
    status = requests.open_request(request, state, context, state.n_inputs)
    status = status or sample(state, request)
    requests.free_blocks(request.blocks)
    return status


@register_jitable
def sample(state: RecordRef, request: RecordRef) -> Status:
    """Check the shapes of X and of the grid, create the output Y, and fill it.

    Args:
        request: a REQUEST whose inputs are set. Its launch has the address of ``state``.
    """
    if state.prepare_grid != 0:
        status = call(state.prepare_grid, (address_of(request),))
        if status != 0:
            return status
    else:
        requests.copy_input(request.grid, request.inputs[1])
    X_shape = requests.shape_of(request.inputs[0])
    grid_shape = requests.shape_of(request.grid)
    launch = request.launch
    sentence_index = _set_lengths(state, launch, X_shape, grid_shape)
    if sentence_index != NO_ERROR:
        arguments = _shape_arguments(X_shape, grid_shape)
        return error_status(request.api, state.errors, sentence_index, arguments)
    n_axes = len(X_shape)
    Y_shape = requests.alloc_int64s(request, n_axes)
    if len(Y_shape) == 0:
        return no_memory(request.api, state.errors, 8 * n_axes)
    for axis in range(n_axes):  # an assignment of an array takes a second to compile
        Y_shape[axis] = X_shape[axis] if axis < 2 else grid_shape[axis - 1]
    launch.X = request.inputs[0].data
    launch.grid = request.grid.data
    launch.lengths = np.int64(X_shape[2:].ctypes.data)
    launch.out_lengths = np.int64(Y_shape[2:].ctypes.data)
    launch.n_slots = 0
    return fill_output(state, request, launch, Y_shape, launch.pixels > 0)


@register_jitable
def _shape_arguments(X_shape: ArrayRef, grid_shape: ArrayRef) -> Any:
    """Return :data:`_SHAPE_ARGUMENTS`."""
    r = len(X_shape) - 2
    axis_word = c_string("axis") if r == 1 else c_string("axes")
    return (
        shape_argument(X_shape),
        shape_argument(grid_shape),
        integer_argument(X_shape[0] if r > 0 else 0),
        axis_names(1, 1 + r),
        integer_argument(r),
        text_argument(axis_word, strlen(axis_word)),
    )


@register_jitable
def _set_lengths(
    state: RecordRef, launch: RecordRef, X_shape: ArrayRef, grid_shape: ArrayRef
) -> int:
    """Check the shapes of X and of the grid, and set the lengths of ``launch``.

    Returns:
        NO_ERROR, or the index of a sentence about the shapes.
    """
    r = len(X_shape) - 2
    if r < 1:
        return X_SHAPE_INVALID_INDEX
    if len(grid_shape) != len(X_shape) or grid_shape[r + 1] != r:
        return GRID_SHAPE_MISMATCH_INDEX
    n = X_shape[0]
    c = X_shape[1]
    if grid_shape[0] != n:
        return GRID_BATCH_MISMATCH_INDEX
    pixels = 1
    positions = 1
    taps = 1
    too_many_pixels = MAX_PIXELS + 1
    # A product with a length of 0 is 0, and its other factors must not overflow either.
    nbytes = float(max(n, 1)) * float(max(c, 1)) * float(state.kernel.X_size)
    for axis in range(r):
        positions *= grid_shape[axis + 1]
        nbytes *= float(max(grid_shape[axis + 1], 1))
        pixels = min(pixels * min(X_shape[axis + 2], too_many_pixels), too_many_pixels)
        taps = min(taps * state.kernel.taps_per_axis, MAX_TAPS + 1)
    if nbytes >= 2.0**63:
        return Y_TOO_LARGE_INDEX
    if n * c * positions > 0:
        if pixels == 0 and NEEDS_PIXEL[state.kernel.padding]:
            return X_HAS_NO_PIXEL_INDEX + state.kernel.padding
        if pixels > MAX_PIXELS:
            return TOO_MANY_PIXELS_INDEX
        if taps > MAX_TAPS:
            return TOO_MANY_TAPS_INDEX
    launch.n = n
    launch.c = c
    launch.r = r
    launch.pixels = pixels
    launch.positions = positions
    launch.taps = taps
    return NO_ERROR


_compute = register_jitable(compute)


def compute_with_status(state_address: Address, context: Address) -> Status:
    """KernelComputeV2 of an op that replaces a Python op, and has its status output."""
    status = _compute(state_address, context)
    return status or requests.write_status_output(
        record_at(state_address, GRID_SAMPLE_STATE), context
    )


IMPLEMENTATION = OpImplementation(create, compute, destroy, SENTENCES, states, infer)
WITH_STATUS = IMPLEMENTATION._replace(compute=compute_with_status)
