"""The compiled GridSample op, which runs the workers of :mod:`ort_gridsample.kernels.workers`.

The grid is the second input, or has a source: :mod:`.affine` or :mod:`.program_grids`. A source
consists of two compiled functions. ``measure`` computes the shape of the grid, and
``coordinates_for`` makes the function that computes the coordinates of a tile.
"""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ... import spec
from ...functions import validation
from ...kernels import tap_table, workers
from ...kernels.compilation import KernelSpec, compile_time
from ...kernels.pointers import (
    address,
    array,
    call,
    chars,
    local,
    returns_array,
    set_memory,
    struct,
)
from ...reference.coordinates import PADDING
from ...reference.taps import MAX_TAPS, MODES
from . import requests
from .catalog import Fields, Kernels
from .creation import (
    MISSING_STATE,
    WRONG_INTERFACE,
    choice_attribute,
    close_node,
    create_state,
    destroy,
    open_node,
    release_status,
)
from .requests import api_function
from .sentences import (
    NO_ERROR,
    NO_MEMORY_INDEX,
    NO_MEMORY_SENTENCE,
    encode,
    error_with_number,
    error_with_shapes,
    index_names,
    strlen,
)
from .structs import GRID_SAMPLE, LIBRARY, NODE, OP, REQUEST

_PADDINGS = list(workers.PADDING_CODES)
_MODES = [*workers.TAPS, *spec.MODE_SYNONYMS]

_MODE_CHOICES = validation.format_choices((*MODES, *spec.MODE_SYNONYMS))
_PADDING_CHOICES = validation.format_choices(PADDING)

_Y_TOO_LARGE = validation.ErrorTemplate(
    "Y",
    "for X of shape {X} and grid of shape {grid}",
    "fewer bytes than an address can reach",
)
_TOO_MANY_PIXELS = validation.ErrorTemplate(
    "X",
    "of shape {X}",
    f"at most {tap_table.MAX_PIXELS} pixels a channel",
)
_TOO_MANY_TAPS = validation.ErrorTemplate(
    "X",
    "of shape {X}",
    "fewer spatial axes: a position has too many taps",
)
#: The error messages of the op by name. There is one for each padding, and one for each mode. A
#: comment names the shapes and the number that the sentence contains.
_SENTENCES = {
    # nbytes
    "NO_MEMORY": encode(NO_MEMORY_SENTENCE),
    # X
    "X_SHAPE_INVALID": encode(validation.X_SHAPE_INVALID),
    # X, grid
    "GRID_SHAPE_MISMATCH": encode(validation.GRID_SHAPE_MISMATCH),
    "GRID_BATCH_MISMATCH": encode(validation.GRID_BATCH_MISMATCH),
    "Y_TOO_LARGE": encode(_Y_TOO_LARGE),
    # X
    **{
        f"X_HAS_NO_PIXEL {name}": encode(validation.X_HAS_NO_PIXEL, padding_mode=name)
        for name in _PADDINGS
    },
    "TOO_MANY_PIXELS": encode(_TOO_MANY_PIXELS),
    "TOO_MANY_TAPS": encode(_TOO_MANY_TAPS),
    # the version of the node's interface
    "WRONG_INTERFACE": encode(WRONG_INTERFACE),
    # no shape, no number
    "MODE_UNKNOWN": encode(validation.MODE_UNKNOWN, listed=_MODE_CHOICES),
    "PADDING_MODE_UNKNOWN": encode(validation.PADDING_MODE_UNKNOWN, listed=_PADDING_CHOICES),
    **{
        f"MISSING_STATE {name}": encode(MISSING_STATE, what=f"mode {name!r} for ")
        for name in workers.TAPS
    },
}
SENTENCES = [*_SENTENCES.values()]

# The indices of the sentences, as numbers: compiled code reads no dictionary.
_INDEX = index_names(_SENTENCES)
X_SHAPE_INVALID_INDEX = _INDEX["X_SHAPE_INVALID"]
GRID_SHAPE_MISMATCH_INDEX = _INDEX["GRID_SHAPE_MISMATCH"]
GRID_BATCH_MISMATCH_INDEX = _INDEX["GRID_BATCH_MISMATCH"]
Y_TOO_LARGE_INDEX = _INDEX["Y_TOO_LARGE"]
#: The first of one sentence per padding.
X_HAS_NO_PIXEL_INDEX = _INDEX[f"X_HAS_NO_PIXEL {_PADDINGS[0]}"]
TOO_MANY_PIXELS_INDEX = _INDEX["TOO_MANY_PIXELS"]
TOO_MANY_TAPS_INDEX = _INDEX["TOO_MANY_TAPS"]
WRONG_INTERFACE_INDEX = _INDEX["WRONG_INTERFACE"]
MODE_UNKNOWN_INDEX = _INDEX["MODE_UNKNOWN"]
PADDING_MODE_UNKNOWN_INDEX = _INDEX["PADDING_MODE_UNKNOWN"]
#: The first of one sentence per mode.
MISSING_STATE_INDEX = _INDEX[f"MISSING_STATE {next(iter(workers.TAPS))}"]

#: The values of the attributes, each followed by a blank. The synonyms follow the modes, in the
#: order of the modes from LINEAR on that they are synonyms of.
MODE_WORDS = "".join(f"{name} " for name in _MODES)
PADDING_WORDS = "".join(f"{name} " for name in _PADDINGS)
N_MODES = len(workers.TAPS)
LINEAR = _MODES.index("linear")

get_input_type = api_function("ShapeInferContext_GetInputTypeShape", 1)
get_element_type = api_function("GetTensorElementType", 1)
get_names = api_function("GetSymbolicDimensions")
make_type = api_function("CreateTensorTypeAndShapeInfo", 1)
set_element_type = api_function("SetTensorElementType")
set_lengths = api_function("SetDimensions")
set_names = api_function("SetSymbolicDimensions")
set_output_type = api_function("ShapeInferContext_SetOutputTypeShape")


# --- Creation ---


def states(X_type: str, grid_type: str) -> tuple[Any, list[Fields]]:
    """Return the initial states of a GridSample, one per mode."""
    return GRID_SAMPLE, [state_fields(X_type, grid_type, mode) for mode in workers.TAPS]


def state_fields(
    X_type: str,
    grid_type: str,
    mode: str,
    *,
    measure: KernelSpec | None = None,
    coordinates: KernelSpec | None = None,
    columns: int = 0,
) -> Fields:
    """Return the fields of the initial state for a mode.

    Args:
        X_type: the type of X.
        grid_type: the type of the coordinates.
        mode: the mode.
        measure: the function that measures the grid. None: the grid is the second input.
        coordinates: the function that computes the coordinates of a tile. None: it reads the grid.
        columns: the number of columns whose positions a worker keeps.
    """
    functions = workers.kernel_functions(X_type, grid_type, mode, coordinates)
    constants = workers.kernel_constants(X_type, grid_type, mode)
    return {"kernel": {**functions, **constants, "columns": columns}, "measure": measure}


def create(op_address: int, api: int, info: int, out: int) -> int:
    """CreateKernelV2 of a GridSample whose grid is an input."""
    op = struct(op_address, OP)
    node = local(NODE)
    errors = open_node(node, op, api, info, chars("GridSample node "), WRONG_INTERFACE_INDEX)
    return close_node(node, create_sample_state(node, op, errors, 0, 2), out)


@register_jitable
def mode_of_word(index: int) -> int:
    """Return the index of a mode in :data:`.workers.TAPS`, given that of its word in MODE_WORDS.

    The synonyms follow all modes, in the order of the modes from linear on.
    """
    return index if index < N_MODES else index - N_MODES + LINEAR


@register_jitable
def create_sample_state(node: Any, op: Any, errors: int, group: int, n_inputs: int) -> int:
    """Create the state of a GridSample, for the node's mode and padding.

    Args:
        node: a NODE.
        op: its OP.
        errors: the address of the node's ERRORS.
        group: the index of a group of states. Each group has a state per mode.
        n_inputs: the number of inputs.

    Returns:
        The address of the state; 0 if ``node.status`` is not 0.
    """
    mode = choice_attribute(
        node, chars("mode"), chars(MODE_WORDS), LINEAR, errors, MODE_UNKNOWN_INDEX
    )
    mode = mode_of_word(mode)
    padding_words = chars(PADDING_WORDS)
    padding = choice_attribute(
        node, chars("padding_mode"), padding_words, 0, errors, PADDING_MODE_UNKNOWN_INDEX
    )
    return create_mode_state(node, op, errors, group, n_inputs, mode, padding)


@register_jitable
def create_mode_state(
    node: Any,
    op: Any,
    errors: int,
    group: int,
    n_inputs: int,
    mode: int,
    padding: int,
) -> int:
    """Create the state of a GridSample, as :func:`create_sample_state`, for a mode and a padding.

    The mode is an index of :data:`.workers.TAPS`, and the padding one of
    :data:`.workers.PADDING_CODES`.
    """
    index = group * N_MODES + mode
    state_address = create_state(node, op, index, GRID_SAMPLE, errors, MISSING_STATE_INDEX + mode)
    if state_address != 0:
        state = struct(state_address, GRID_SAMPLE)
        state.kernel.padding = padding
        state.n_inputs = n_inputs
    return state_address


# --- Inference of shapes ---
#
# A shape is an int64 array (2, axes): the lengths (-1: unknown), and the addresses of the names of
# the axes. It is (2, 0) if the shape is unknown or there is no memory.


@compile_time(1.7)
def infer(op_address: int, context: int) -> int:
    """InferOutputShapeFn: Y is (N, C, D1_out, …, Dr_out). Unknown shapes are not set."""
    node = local(NODE)
    if open_inference(node, op_address, context):
        X_type, X = inferred_shape(node, 0)
        _, grid = inferred_shape(node, 1)
        if X.shape[1] > 2 and grid.shape[1] == X.shape[1]:
            Y = alloc_shape(node, X.shape[1])
            for axis in range(Y.shape[1]):
                # N is X's if it is known there; C is X's; the lengths are the grid's.
                is_of_grid = axis > 1 or (axis == 0 and X[0, 0] < 0)
                for row in range(2):
                    Y[row, axis] = grid[row, axis - (axis > 1)] if is_of_grid else X[row, axis]
            set_inferred_shape(node, X_type, Y)
    requests.free_blocks(node.blocks)
    return 0


@register_jitable
def open_inference(node: Any, op_address: int, context: int) -> bool:
    """Initialize ``node``, whose shapes are inferred.

    Returns:
        Whether the OrtApi is known already.
    """
    # ONNX Runtime passes the first of all overloads of the op: only its LIBRARY is that of the
    # node.
    node.api = struct(struct(op_address, OP).library, LIBRARY).api
    node.info = context
    node.blocks = 0
    return node.api != 0


@returns_array
def alloc_shape(node: Any, axes: int) -> Any:
    """Return an array (2, axes) for a shape; (2, 0) without memory."""
    memory = requests.alloc(node, 16 * axes)
    return array(memory, (2, axes if memory != 0 else 0), np.int64)


@register_jitable
def inferred_shape(node: Any, index: int) -> Any:
    """Return the element type and the shape of an input during shape inference."""
    api = node.api
    axes = 0
    element_type = 0
    status, info = get_input_type(api, (node.info, index))
    if status == 0:
        status, element_type = get_element_type(api, (info,))
    if status == 0:
        status, axes = requests.get_axes(api, (info,))
    memory = alloc_shape(node, axes)
    lengths = np.int64(memory.ctypes.data)
    names = lengths + 8 * axes
    is_known = status == 0 and memory.shape[1] == axes
    if is_known:
        status = requests.get_lengths(api, (info, lengths, axes))
        status = status or get_names(api, (info, names, axes))
    if status != 0:
        release_status(api, (status,))
        is_known = False
    # ONNX Runtime writes 32 bits of the element type.
    return element_type & 0xFFFFFFFF, array(lengths, (2, axes if is_known else 0), np.int64)


@register_jitable
def set_inferred_shape(node: Any, element_type: int, shape: Any) -> None:
    """Set the type and the shape of the output, if each axis has a length or a name."""
    api = node.api
    axes = shape.shape[1]
    for axis in range(shape.shape[1]):
        if shape[0, axis] < 0 and strlen(shape[1, axis]) == 0:
            axes = 0
    if axes == 0:
        return
    lengths = np.int64(shape.ctypes.data)
    names = lengths + 8 * axes
    status, info = make_type(api, ())
    status = status or set_element_type(api, (info, element_type))
    status = status or set_lengths(api, (info, lengths, axes))
    status = status or set_names(api, (info, names, axes))
    status = status or set_output_type(api, (node.info, 0, info))
    if status != 0:
        release_status(api, (status,))
    if info != 0:
        requests.release_info(api, (info,))


# --- Computation ---


def compute(state_address: int, context: int) -> int:
    """KernelComputeV2: sample; return an OrtStatus*, 0 for success."""
    state = struct(state_address, GRID_SAMPLE)
    request = local(REQUEST)
    request.launch.kernel = state_address
    status = requests.open_request(request, state, context, state.n_inputs)
    if status == 0:
        if state.measure != 0:
            status = call(state.measure, (address(request),))
        else:
            tensor = request.inputs[1]
            request.grid.data = tensor.data
            request.grid.shape = tensor.shape
            request.grid.axes = tensor.axes
    status = status or _sample(state, request)
    requests.free_blocks(request.blocks)
    return status


@register_jitable
def _sample(state: Any, request: Any) -> int:
    """Check the shapes of X and of the grid, create the output Y, and fill it."""
    X = requests.shape(request.inputs[0])
    grid = requests.shape(request.grid)
    launch = request.launch
    error = _set_lengths(state, launch, X, grid)
    if error != NO_ERROR:
        return error_with_shapes(request.api, state.errors, error, X, grid)
    Y = requests.alloc_int64s(request, len(X))
    if len(Y) == 0:
        return error_with_number(request.api, state.errors, NO_MEMORY_INDEX, 8 * len(X))
    for axis in range(len(Y)):  # an assignment of an array takes a second to compile
        Y[axis] = X[axis] if axis < 2 else grid[axis - 1]
    launch.X = request.inputs[0].data
    launch.grid = request.grid.data
    launch.lengths = np.int64(X[2:].ctypes.data)
    launch.out_lengths = np.int64(Y[2:].ctypes.data)
    return fill_output(state, request, launch, Y, launch.pixels)


@register_jitable
def fill_output(state: Any, request: Any, launch: Any, Y: Any, samples: int) -> int:
    """Create the output, and fill it on ONNX Runtime's threads.

    Args:
        state: the state of the op.
        request: a REQUEST.
        launch: a LAUNCH, or an ATTENTION.
        Y: the shape of the output.
        samples: the number of pixels that can be read. If it is 0, the output is 0.

    Returns:
        An OrtStatus*, 0 for success.
    """
    status, launch.Y = requests.make_output(request, Y)
    nbytes = state.kernel.X_size
    for length in Y:
        nbytes *= length
    if status != 0 or nbytes == 0:
        return status
    if samples == 0:
        set_memory(launch.Y, np.int32(0), nbytes)
        return status
    launch.workers = max(workers.DEFAULT_WORKERS, state.kernel.cpus)
    launch.pauses = 0
    launch.arena.nbytes = 0
    launch.phase = workers.NEW
    while True:
        count = call(state.kernel.proceed, (address(launch),))
        if count < 0:
            return error_with_number(request.api, state.errors, NO_MEMORY_INDEX, launch.nbytes)
        if count == 0:
            return status
        arguments = (request.context, state.kernel.worker, count, 0, address(launch))
        status = requests.parallel_for(request.api, arguments)
        if status != 0:
            launch.phase = workers.END


@register_jitable
def _set_lengths(state: Any, launch: Any, X: Any, grid: Any) -> int:
    """Check the shapes ``X`` and ``grid``, and set the lengths of ``launch``.

    Returns:
        NO_ERROR, or the index of a sentence about the shapes.
    """
    r = len(X) - 2
    if r < 1:
        return X_SHAPE_INVALID_INDEX
    if len(grid) != len(X) or grid[r + 1] != r:
        return GRID_SHAPE_MISMATCH_INDEX
    n = X[0]
    c = X[1]
    if grid[0] != n:
        return GRID_BATCH_MISMATCH_INDEX
    pixels = 1
    positions = 1
    taps = 1
    too_many_pixels = tap_table.MAX_PIXELS + 1
    # A product with a length of 0 is 0, and its other factors must not overflow either.
    nbytes = float(max(n, 1)) * float(max(c, 1)) * float(state.kernel.X_size)
    for axis in range(r):
        positions *= grid[axis + 1]
        nbytes *= float(max(grid[axis + 1], 1))
        pixels = min(pixels * min(X[axis + 2], too_many_pixels), too_many_pixels)
        taps = min(taps * state.kernel.taps, MAX_TAPS + 1)
    if nbytes >= 2.0**63:
        return Y_TOO_LARGE_INDEX
    if n * c * positions > 0:
        if pixels == 0 and state.kernel.padding != tap_table.ZEROS:
            return X_HAS_NO_PIXEL_INDEX + state.kernel.padding
        if pixels > tap_table.MAX_PIXELS:
            return TOO_MANY_PIXELS_INDEX
        if taps > MAX_TAPS:
            return TOO_MANY_TAPS_INDEX
    launch.n = n
    launch.c = c
    launch.r = r
    launch.pixels = pixels
    launch.positions = positions
    launch.rows = taps
    return NO_ERROR


_compute = register_jitable(compute)


def compute_with_status(state_address: int, context: int) -> int:
    """KernelComputeV2 of an op that replaces a Python op, and has its status output."""
    status = _compute(state_address, context)
    return status or requests.write_status_output(struct(state_address, GRID_SAMPLE), context)


KERNELS = Kernels(create, compute, destroy, SENTENCES, states, infer)
WITH_STATUS = KERNELS._replace(compute=compute_with_status)
