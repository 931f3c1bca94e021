"""GridSample as it runs: what ONNX Runtime calls, and how it has the workers of :mod:`ort_gridsample.core.workers` run.

The grid is the second input, or has a source: a compiled function measures it, and another computes the coordinates of
a tile (:mod:`.affine`, :mod:`.program_grids`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ... import checks, spec
from ...core import kernels, variants, workers
from ...core.compilation import Part
from ...core.coordinates import PADDING
from ...core.pointers import address, array, call, chars, local, set_memory, struct
from ...core.taps import MAX_TAPS, MODES
from .calls import function
from .catalog import Fields, Kernels
from .creation import (
    LACKING,
    OTHER_INTERFACE,
    begin_state,
    choice,
    close_node,
    destroy,
    integer,
    named_errors,
    open_node,
    release_status,
)
from .launches import launched
from .requests import (
    close_request,
    get_axes,
    get_lengths,
    keep,
    make_output,
    open_request,
    release_info,
    shape,
)
from .sentences import ROOM, as_bytes, no_room, refuse
from .structs import GRID_SAMPLE, LIBRARY, NODE, OP, REQUEST

#: The sentences of the op, and their numbers.
PIXELS_LIMIT = checks.Sentence("X", "of shape {X}", f"at most {kernels.MAX_PIXELS} pixels a channel")
TAPS_LIMIT = checks.Sentence("X", "of shape {X}", "fewer spatial axes: a position has too many taps")
TOO_LARGE = checks.Sentence("Y", "for X of shape {X} and grid of shape {grid}", "fewer bytes than an address can reach")
_PADDINGS, _WORDS = list(variants.PADDING), [*variants.TAPS, *spec.MODE_SYNONYMS]
SENTENCES = [
    *map(as_bytes, (ROOM, checks.X_HAS_NO_AXES, checks.GRID_AXES, checks.GRID_BATCHES, TOO_LARGE)),
    *(as_bytes(checks.X_HAS_NO_PIXEL, padding_mode=name) for name in _PADDINGS),
    *map(as_bytes, (PIXELS_LIMIT, TAPS_LIMIT, OTHER_INTERFACE)),
    as_bytes(checks.NO_MODE, listed=checks.listed((*MODES, *spec.MODE_SYNONYMS))),
    as_bytes(checks.NO_PADDING, listed=checks.listed(PADDING)),
    *(as_bytes(LACKING, what=f"mode {name!r} for ") for name in variants.TAPS),
]
(GOOD, NO_AXES, WRONG_AXES, WRONG_BATCHES, IS_TOO_LARGE, NO_PIXEL) = range(6)
(TOO_MANY_PIXELS, TOO_MANY_TAPS, IS_OTHER, NO_MODE, NO_PADDING, LACKS) = range(8, 14)

#: The attributes' words; a synonym stands for the mode that comes as late after the first.
MODE_WORDS, PADDING_WORDS = " ".join(_WORDS), " ".join(_PADDINGS)
N_MODES, LINEAR = len(variants.TAPS), _WORDS.index("linear")

GRID_SAMPLE_SIZE = GRID_SAMPLE.itemsize

get_input_type = function("ShapeInferContext_GetInputTypeShape", 1)
get_element_type = function("GetTensorElementType", 1)
get_names = function("GetSymbolicDimensions")
make_type = function("CreateTensorTypeAndShapeInfo", 1)
set_element_type, set_lengths = function("SetTensorElementType"), function("SetDimensions")
set_names, set_output_type = function("SetSymbolicDimensions"), function("ShapeInferContext_SetOutputTypeShape")


def states(X_type: str, grid_type: str) -> tuple[Any, list[Fields]]:
    """The states, one a mode."""
    return GRID_SAMPLE, [state(X_type, grid_type, mode) for mode in variants.TAPS]


def state(
    X_type: str, grid_type: str, mode: str, measure: Part | None = None, coordinates: Part | None = None,
    columns: int = 0,
) -> Fields:  # fmt: skip
    """The fields of the state for a mode, and of a grid that is measured and computed."""
    parts, numbers = (variants.parts(X_type, grid_type, mode, coordinates), variants.numbers(X_type, grid_type, mode))
    return {"kernel": {**parts, **numbers, "columns": columns}, "measure": measure, "n_inputs": 2}


def create(op_at: int, api: int, info: int, out: int) -> int:
    """CreateKernelV2."""
    op, node = struct(op_at, OP), local(NODE)
    open_node(node, api, info)
    status, errors = named_errors(node, op, chars("GridSample node "), IS_OTHER)
    at = 0
    if status == 0:
        status, at = begin_sample(node, op, errors, 0)
    return close_node(node, status, at, out)


@register_jitable
def begin_sample(node: Any, op: Any, errors: int, kind: int) -> tuple[int, int]:
    """A status, and the address of a new state, of those of this ``kind`` that of the node's mode."""
    padding = at = 0
    status, mode = choice(node, chars("mode"), chars(MODE_WORDS), LINEAR, errors, NO_MODE)
    if status == 0:
        status, padding = choice(node, chars("padding_mode"), chars(PADDING_WORDS), 0, errors, NO_PADDING)
    if status == 0:
        align_corners = integer(node, chars("align_corners"), 0)
        mode = mode if mode < N_MODES else mode - N_MODES + LINEAR
        status, at = begin_state(node, op, kind * N_MODES + mode, GRID_SAMPLE_SIZE, errors, LACKS + mode)
        if status == 0:
            made, library = struct(at, GRID_SAMPLE), struct(op.library, LIBRARY)
            made.kernel.api, made.kernel.shape_of, made.kernel.cpus = node.api, library.shape_of, library.cpus
            made.kernel.padding, made.kernel.align_corners = padding, align_corners != 0
            made.sentences = errors
    return status, at


def infer(op_at: int, context: int) -> int:
    """InferOutputShapeFn: Y is (N, C, D1_out, …, Dr_out). What is unknown is left open."""
    # Not the types of the op: that is the first of all overloads.
    node = local(NODE)
    open_node(node, struct(struct(op_at, OP).library, LIBRARY).api, context)
    if node.api != 0:
        X_type, X, X_names = inferred(node, 0)
        _, grid, grid_names = inferred(node, 1)
        if len(X) > 2 and len(grid) == len(X):
            Y, names = keep(node, len(X)), keep(node, len(X))
            known = len(Y) > 0 and len(names) > 0
            for axis in range(len(X) if known else 0):
                of_grid = axis > 1 or (axis == 0 and X[0] < 0)
                at = axis - (axis > 1)
                Y[axis], names[axis] = (grid[at], grid_names[at]) if of_grid else (X[axis], X_names[axis])
                known = known and (Y[axis] >= 0 or names[axis] != 0)
            if known:
                set_inferred(node.api, context, X_type, Y, names)
    close_request(node)
    return 0


@register_jitable
def inferred(node: Any, index: int) -> Any:
    """The element type of an input while shapes are inferred, its lengths (-1: unknown), and their names (0: none)."""
    api, axes, element_type = node.api, 0, 0
    status, info = get_input_type(api, (node.info, index))
    if status == 0:
        status, element_type = get_element_type(api, (info,))
    if status == 0:
        status, axes = get_axes(api, (info,))
    lengths, names = keep(node, axes), keep(node, axes)
    good = status == 0 and len(lengths) == axes == len(names)
    if good:
        status = get_lengths(api, (info, np.int64(lengths.ctypes.data), axes))
    if good and status == 0:
        status = get_names(api, (info, np.int64(names.ctypes.data), axes))
    if status != 0:
        release_status(api, (status,))
    for axis in range(axes if good else 0):
        letters = array(names[axis], (1,), np.uint8)
        names[axis] = 0 if names[axis] == 0 or letters[0] == 0 or lengths[axis] >= 0 else names[axis]
    return element_type & 0xFFFFFFFF, lengths[:axes] if good and status == 0 else lengths[:0], names


@register_jitable
def set_inferred(api: int, context: int, element_type: int, lengths: Any, names: Any) -> None:
    """Say the type and the shape of the output while shapes are inferred."""
    count, none = len(lengths), chars("")
    for axis in range(count):
        names[axis] = none if names[axis] == 0 else names[axis]
    status, info = make_type(api, ())
    if status == 0:
        status = set_element_type(api, (info, element_type))
    if status == 0:
        status = set_lengths(api, (info, np.int64(lengths.ctypes.data), count))
    if status == 0:
        status = set_names(api, (info, np.int64(names.ctypes.data), count))
    if status == 0:
        status = set_output_type(api, (context, 0, info))
    if status != 0:
        release_status(api, (status,))
    if info != 0:
        release_info(api, (info,))


def compute(op_at: int, context: int) -> int:
    """KernelComputeV2: sample; returns a status, 0 for success."""
    op, request = struct(op_at, GRID_SAMPLE), local(REQUEST)
    request.launch.kernel = op_at
    status = open_request(request, op.kernel.api, op.kernel.shape_of, context, op.n_inputs)
    if status == 0:
        if op.measure != 0:
            status = call(op.measure, (address(request),))
        else:
            given = request.inputs[1]
            request.grid.data, request.grid.shape, request.grid.axes = given.data, given.shape, given.axes
    if status == 0:
        status = _sample(op, request)
    close_request(request)
    return status


@register_jitable
def _sample(op: Any, request: Any) -> int:
    """Check the shapes of X and of the grid, allocate Y as the output, and fill it."""
    X, grid, launch = shape(request.inputs[0]), shape(request.grid), request.launch
    wrong = _measure(op, launch, X, grid)
    if wrong != GOOD:
        return refuse(request.api, op.sentences, wrong, X, grid, 0)
    Y = keep(request, len(X))
    if len(Y) == 0:
        return no_room(request.api, op.sentences, 8 * len(X))
    for axis in range(len(Y)):  # to assign an array takes a second to compile
        Y[axis] = X[axis] if axis < 2 else grid[axis - 1]
    status, launch.Y = make_output(request, Y)
    nbytes = launch.n * launch.c * launch.positions * op.kernel.X_size
    if status != 0 or nbytes == 0:
        return status
    if launch.pixels == 0:
        set_memory(launch.Y, np.int32(0), nbytes)
        return status
    launch.X, launch.grid = request.inputs[0].data, request.grid.data
    launch.lengths, launch.out_lengths = np.int64(X[2:].ctypes.data), np.int64(Y[2:].ctypes.data)
    launch.workers, launch.pauses = max(workers.WORKERS, op.kernel.cpus), 0
    return launched(request, launch, op.kernel.proceed, op.kernel.worker, op.sentences)


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
    pixels, positions, rows, most = 1, 1, 1, kernels.MAX_PIXELS + 1
    # Of lengths of 0 beside large ones the product must not overflow either.
    nbytes = float(max(n, 1)) * float(max(c, 1)) * float(op.kernel.X_size)
    for axis in range(r):
        positions *= grid[axis + 1]
        nbytes *= float(max(grid[axis + 1], 1))
        pixels = min(pixels * min(X[axis + 2], most), most)
        rows = min(rows * op.kernel.taps, MAX_TAPS + 1)
    for axis in range(r):
        if X[axis + 2] == 0:
            pixels = 0
    if nbytes >= 2.0**63:
        return IS_TOO_LARGE
    if n * c * positions > 0:
        if pixels == 0 and op.kernel.padding != kernels.ZEROS:
            return NO_PIXEL + op.kernel.padding
        if pixels > kernels.MAX_PIXELS:
            return TOO_MANY_PIXELS
        if rows > MAX_TAPS:
            return TOO_MANY_TAPS
    launch.n, launch.c, launch.r = n, c, r
    launch.pixels, launch.positions, launch.rows = pixels, positions, rows
    return GOOD


KERNELS = Kernels(create, compute, destroy, SENTENCES, states, infer)
