"""The compiled GridSample op: ONNX Runtime calls it, and it runs the workers of :mod:`ort_gridsample.kernels.workers`.

The grid is the second input, or has a source: a compiled function measures it, and another computes the coordinates of
a tile (:mod:`.affine`, :mod:`.program_grids`).
"""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ... import spec
from ...functions import validation
from ...kernels import loops, workers
from ...kernels.compilation import Part
from ...kernels.pointers import address, array, call, chars, local, set_memory, struct
from ...reference.coordinates import PADDING
from ...reference.taps import MAX_TAPS, MODES
from . import requests
from .catalog import Fields, Kernels
from .creation import LACKING, OTHER_INTERFACE, begin_state, choice, close_node, destroy, open_node, release_status
from .requests import function
from .sentences import NO_ROOM, ROOM, as_bytes, complain, length_of, refuse
from .structs import GRID_SAMPLE, LIBRARY, NODE, OP, REQUEST

#: The sentences of the op, and their numbers.
PIXELS_LIMIT = validation.ErrorTemplate("X", "of shape {X}", f"at most {loops.MAX_PIXELS} pixels a channel")
TAPS_LIMIT = validation.ErrorTemplate("X", "of shape {X}", "fewer spatial axes: a position has too many taps")
TOO_LARGE = validation.ErrorTemplate(
    "Y", "for X of shape {X} and grid of shape {grid}", "fewer bytes than an address can reach"
)
_PADDINGS, _WORDS = list(workers.PADDING), [*workers.TAPS, *spec.MODE_SYNONYMS]
SENTENCES = [
    *map(as_bytes, (ROOM, validation.X_HAS_NO_AXES, validation.GRID_AXES, validation.GRID_BATCHES, TOO_LARGE)),
    *(as_bytes(validation.X_HAS_NO_PIXEL, padding_mode=name) for name in _PADDINGS),
    *map(as_bytes, (PIXELS_LIMIT, TAPS_LIMIT, OTHER_INTERFACE)),
    as_bytes(validation.NO_MODE, listed=validation.format_choices((*MODES, *spec.MODE_SYNONYMS))),
    as_bytes(validation.NO_PADDING, listed=validation.format_choices(PADDING)),
    *(as_bytes(LACKING, what=f"mode {name!r} for ") for name in workers.TAPS),
]
(GOOD, NO_AXES, WRONG_AXES, WRONG_BATCHES, IS_TOO_LARGE, NO_PIXEL) = range(6)
(TOO_MANY_PIXELS, TOO_MANY_TAPS, IS_OTHER, NO_MODE, NO_PADDING, LACKS) = range(8, 14)
#: The attributes' words; a synonym stands for the mode that comes as late after the first.
MODE_WORDS, PADDING_WORDS = ("".join(f"{word} " for word in words) for words in (_WORDS, _PADDINGS))
N_MODES, LINEAR = len(workers.TAPS), _WORDS.index("linear")

get_input_type = function("ShapeInferContext_GetInputTypeShape", 1)
get_element_type = function("GetTensorElementType", 1)
get_names = function("GetSymbolicDimensions")
make_type = function("CreateTensorTypeAndShapeInfo", 1)
set_element_type, set_lengths = function("SetTensorElementType"), function("SetDimensions")
set_names, set_output_type = function("SetSymbolicDimensions"), function("ShapeInferContext_SetOutputTypeShape")


def states(X_type: str, grid_type: str) -> tuple[Any, list[Fields]]:
    """The states, one a mode."""
    return GRID_SAMPLE, [state(X_type, grid_type, mode) for mode in workers.TAPS]


def state(
    X_type: str, grid_type: str, mode: str, measure: Part | None = None, coordinates: Part | None = None,
    columns: int = 0,
) -> Fields:  # fmt: skip
    """The fields of the state for a mode, and of a grid that is measured and computed."""
    parts, numbers = (workers.parts(X_type, grid_type, mode, coordinates), workers.numbers(X_type, grid_type, mode))
    return {"kernel": {**parts, **numbers, "columns": columns}, "measure": measure}


def create(op_at: int, api: int, info: int, out: int) -> int:
    """CreateKernelV2."""
    op, node = struct(op_at, OP), local(NODE)
    errors = open_node(node, op, api, info, chars("GridSample node "), IS_OTHER)
    return close_node(node, begin_sample(node, op, errors, 0, 2), out)


@register_jitable
def begin_sample(node: Any, op: Any, errors: int, kind: int, n_inputs: int) -> int:
    """The address of a new state of this ``kind`` and the node's mode; 0: the node has a status."""
    mode = choice(node, chars("mode"), chars(MODE_WORDS), LINEAR, errors, NO_MODE)
    mode = mode if mode < N_MODES else mode - N_MODES + LINEAR
    padding = choice(node, chars("padding_mode"), chars(PADDING_WORDS), 0, errors, NO_PADDING)
    at = begin_state(node, op, kind * N_MODES + mode, GRID_SAMPLE, errors, LACKS + mode)
    if at != 0:
        made = struct(at, GRID_SAMPLE)
        made.kernel.padding, made.n_inputs = padding, n_inputs
    return at


def infer(op_at: int, context: int) -> int:
    """InferOutputShapeFn: Y is (N, C, D1_out, …, Dr_out). What is unknown is left open."""
    node = local(NODE)
    if open_inference(node, op_at, context):
        X_type, X = inferred(node, 0)
        _, grid = inferred(node, 1)
        if X.shape[1] > 2 and grid.shape[1] == X.shape[1]:
            Y = lengths_and_names(node, X.shape[1])
            for axis in range(Y.shape[1]):
                of_grid = axis > 1 or (axis == 0 and X[0, 0] < 0)
                for row in range(2):
                    Y[row, axis] = grid[row, axis - (axis > 1)] if of_grid else X[row, axis]
            set_inferred(node, X_type, Y)
    requests.free_blocks(node.blocks)
    return 0


@register_jitable
def open_inference(node: Any, op_at: int, context: int) -> bool:
    """Begin with a ``node`` whose shapes are inferred; whether ONNX Runtime's functions are known already."""
    # Of the op nothing else: it is the first of all overloads.
    node.api, node.info, node.blocks = struct(struct(op_at, OP).library, LIBRARY).api, context, 0
    return node.api != 0


@register_jitable
def lengths_and_names(node: Any, axes: int) -> Any:
    """An array (2, axes) for a shape's lengths (-1: unknown) and names, as addresses; (2, 0): there is no memory."""
    at = requests.reserve(node, 16 * axes)
    return array(at, (2, axes if at != 0 else 0), np.int64)


@register_jitable
def inferred(node: Any, index: int) -> Any:
    """The element type of an input while shapes are inferred, and its lengths and names: none, if they are unknown."""
    api, axes, element_type = node.api, 0, 0
    status, info = get_input_type(api, (node.info, index))
    if status == 0:
        status, element_type = get_element_type(api, (info,))
    if status == 0:
        status, axes = requests.get_axes(api, (info,))
    found = lengths_and_names(node, axes)
    at, good = np.int64(found.ctypes.data), status == 0 and found.shape[1] == axes
    if good:
        status = requests.get_lengths(api, (info, at, axes)) or get_names(api, (info, at + 8 * axes, axes))
    if status != 0:
        release_status(api, (status,))
        good = False
    return element_type & 0xFFFFFFFF, array(at, (2, axes if good else 0), np.int64)


@register_jitable
def set_inferred(node: Any, element_type: int, found: Any) -> None:
    """Say the type and the shape of the output while shapes are inferred, if each axis has a length or a name."""
    api, count, at = node.api, found.shape[1], np.int64(found.ctypes.data)
    for axis in range(found.shape[1]):
        if found[0, axis] < 0 and length_of(found[1, axis]) == 0:
            count = 0
    if count == 0:
        return
    status, info = make_type(api, ())
    status = status or set_element_type(api, (info, element_type)) or set_lengths(api, (info, at, count))
    status = status or set_names(api, (info, at + 8 * count, count)) or set_output_type(api, (node.info, 0, info))
    if status != 0:
        release_status(api, (status,))
    if info != 0:
        requests.release_info(api, (info,))


def compute(op_at: int, context: int) -> int:
    """KernelComputeV2: sample; returns a status, 0 for success."""
    op, request = struct(op_at, GRID_SAMPLE), local(REQUEST)
    request.launch.kernel = op_at
    status = requests.open_request(request, op, context, op.n_inputs)
    if status == 0:
        if op.measure != 0:
            status = call(op.measure, (address(request),))
        else:
            given = request.inputs[1]
            request.grid.data, request.grid.shape, request.grid.axes = given.data, given.shape, given.axes
    status = status or _sample(op, request)
    requests.free_blocks(request.blocks)
    return status


@register_jitable
def _sample(op: Any, request: Any) -> int:
    """Check the shapes of X and of the grid, allocate Y as the output, and fill it."""
    X, grid, launch = requests.shape(request.inputs[0]), requests.shape(request.grid), request.launch
    wrong = _measure(op, launch, X, grid)
    if wrong != GOOD:
        return refuse(request.api, op.sentences, wrong, X, grid, 0)
    Y = requests.keep(request, len(X))
    if len(Y) == 0:
        return complain(request.api, op.sentences, NO_ROOM, 8 * len(X))
    for axis in range(len(Y)):  # to assign an array takes a second to compile
        Y[axis] = X[axis] if axis < 2 else grid[axis - 1]
    launch.X, launch.grid = request.inputs[0].data, request.grid.data
    launch.lengths, launch.out_lengths = np.int64(X[2:].ctypes.data), np.int64(Y[2:].ctypes.data)
    return filled(op, request, launch, Y, launch.pixels)


@register_jitable
def filled(op: Any, request: Any, launch: Any, Y: Any, samples: int) -> int:
    """Allocate the output, of shape ``Y``; ONNX Runtime's threads are the workers of all phases of a ``launch``.

    Where there are no ``samples`` all is 0. Returns a status.
    """
    status, launch.Y = requests.make_output(request, Y)
    nbytes = op.kernel.X_size
    for length in Y:
        nbytes *= length
    if status != 0 or nbytes == 0:
        return status
    if samples == 0:
        set_memory(launch.Y, np.int32(0), nbytes)
        return status
    launch.workers, launch.pauses = max(workers.WORKERS, op.kernel.cpus), 0
    launch.own.nbytes, launch.phase = 0, workers.NEW
    while True:
        count = call(op.kernel.proceed, (address(launch),))
        if count <= 0:
            return complain(request.api, op.sentences, NO_ROOM, launch.nbytes) if count < 0 else status
        status = requests.parallel_for(request.api, (request.context, op.kernel.worker, count, 0, address(launch)))
        if status != 0:
            launch.phase = workers.END


@register_jitable
def _measure(op: Any, launch: Any, X: Any, grid: Any) -> int:
    """Check the shapes and set the launch's lengths; returns the number of a sentence, or GOOD."""
    r = len(X) - 2
    if r < 1:
        return NO_AXES
    if len(grid) != len(X) or grid[r + 1] != r:
        return WRONG_AXES
    n, c = X[0], X[1]
    if grid[0] != n:
        return WRONG_BATCHES
    pixels, positions, rows, most = 1, 1, 1, loops.MAX_PIXELS + 1
    # Of lengths of 0 beside large ones the product must not overflow either.
    nbytes = float(max(n, 1)) * float(max(c, 1)) * float(op.kernel.X_size)
    for axis in range(r):
        positions *= grid[axis + 1]
        nbytes *= float(max(grid[axis + 1], 1))
        pixels = min(pixels * min(X[axis + 2], most), most)
        rows = min(rows * op.kernel.taps, MAX_TAPS + 1)
    if nbytes >= 2.0**63:
        return IS_TOO_LARGE
    if n * c * positions > 0:
        if pixels == 0 and op.kernel.padding != loops.ZEROS:
            return NO_PIXEL + op.kernel.padding
        if pixels > loops.MAX_PIXELS:
            return TOO_MANY_PIXELS
        if rows > MAX_TAPS:
            return TOO_MANY_TAPS
    launch.n, launch.c, launch.r = n, c, r
    launch.pixels, launch.positions, launch.rows = pixels, positions, rows
    return GOOD


_compute = register_jitable(compute)


def compute_with_status(op_at: int, context: int) -> int:
    """KernelComputeV2 of an op that stands in for a Python op, with its status output."""
    return _compute(op_at, context) or requests.write_status_output(struct(op_at, GRID_SAMPLE), context)


KERNELS = Kernels(create, compute, destroy, SENTENCES, states, infer)
WITH_STATUS = KERNELS._replace(compute=compute_with_status)
