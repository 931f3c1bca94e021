"""Deformable attention as it runs: the op that has the workers of :mod:`ort_gridsample.kernels.attention` run.

Its inputs are those of :func:`ort_gridsample.functions.attention.attend`.
"""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ...functions import validation
from ...kernels import loops
from ...kernels.attention import MOST_AXES, parts
from ...kernels.halves import stored
from ...kernels.pointers import array, chars, copy, local, struct
from ...kernels.structs import ATTENTION
from .catalog import Fields, Kernels
from .creation import LAST, create_plain, destroy
from .requests import free_blocks, keep, open_request, reserve, shape, write_status_output
from .sampling import filled, inferred, lengths_and_names, open_inference, set_inferred
from .sentences import NO_ROOM, ROOM, as_bytes, complain, refuse
from .structs import NODE, PLAIN, REQUEST

#: More pixels than any value may have.
MANY = 2 * loops.MAX_PIXELS
#: The sentences of the op, and their numbers.
TOO_LARGE = validation.ErrorTemplate("Y", "for value of shape {value_shape}", "fewer bytes than an address can reach")
LIMITS = validation.ErrorTemplate(
    "value", "of shape {value_shape}", f"at most {loops.MAX_PIXELS} pixels, and levels of at most {MOST_AXES} axes"
)
SENTENCES = [
    *map(
        as_bytes, (ROOM, validation.VALUE_AXES, validation.LEVELS, validation.LEVELS_NEGATIVE, validation.LEVELS_PIXELS)
    ),
    *map(as_bytes, (validation.LOCATIONS, validation.ATTENTION_WEIGHTS, TOO_LARGE, LIMITS)),
    *LAST,
]
(_, WRONG_VALUE, WRONG_LEVELS, NEGATIVE, WRONG_PIXELS, WRONG_LOCATIONS, WRONG_WEIGHTS, IS_TOO_LARGE, BEYOND) = range(9)
IS_OTHER = 9


def states(value_type: str, levels_type: str, locations_type: str, weights_type: str) -> tuple[Any, list[Fields]]:
    """The state of deformable attention."""
    proceed, worker = parts(value_type, locations_type)
    return PLAIN, [{"kernel": {"proceed": proceed, "worker": worker, "X_size": stored(value_type).itemsize}}]


def create(op_at: int, api: int, info: int, out: int) -> int:
    """CreateKernelV2."""
    return create_plain(op_at, api, info, out, chars("DeformableAttention node "), IS_OTHER)


def infer(op_at: int, context: int) -> int:
    """InferOutputShapeFn: Y is (B, Q, H·D). What is unknown is left open."""
    node = local(NODE)
    if open_inference(node, op_at, context):
        value_type, value = inferred(node, 0)
        _, locations = inferred(node, 2)
        if value.shape[1] == 4 and locations.shape[1] > 1 and value[0, 2] >= 0 and value[0, 3] >= 0:
            Y = lengths_and_names(node, 3)
            for row in range(2 if Y.shape[1] > 0 else 0):
                Y[row, 0] = value[row, 0] if value[0, 0] >= 0 else locations[row, 0]
                Y[row, 1], Y[row, 2] = locations[row, 1], value[row, 2] * (value[0, 3] if row == 0 else 1)
            set_inferred(node, value_type, Y)
    free_blocks(node.blocks)
    return 0


def compute(op_at: int, context: int) -> int:
    """KernelComputeV2: add up samples; returns a status, 0 for success."""
    op, request = struct(op_at, PLAIN), local(REQUEST)
    status = open_request(request, op, context, 4)
    status = status or _attend(op, request, local(ATTENTION))
    free_blocks(request.blocks)
    return status


@register_jitable
def _attend(op: Any, request: Any, launch: Any) -> int:
    """Check the shapes, allocate Y as the output, and fill it."""
    inputs = request.inputs
    value, rows, locations, weights = shape(inputs[0]), shape(inputs[1]), shape(inputs[2]), shape(inputs[3])
    if len(value) != 4:
        return refuse(request.api, op.sentences, WRONG_VALUE, value, value, 0)
    if len(rows) != 2 or rows[1] < 2:
        return refuse(request.api, op.sentences, WRONG_LEVELS, rows, rows, 0)
    n_levels, r = rows[0], rows[1] - 1
    launch.n, launch.pixels, launch.heads, launch.channels = value
    launch.n_levels, launch.r, nbytes = n_levels, r, 8 * n_levels * (1 + r)
    launch.levels = reserve(request, nbytes)
    if launch.levels == 0:
        return complain(request.api, op.sentences, NO_ROOM, nbytes)
    copy(launch.levels, inputs[1].data, nbytes)  # where nobody changes what was checked
    if launch.pixels > loops.MAX_PIXELS or r > MOST_AXES:
        return refuse(request.api, op.sentences, BEYOND, value, value, 0)
    levels = array(launch.levels, (n_levels, 1 + r), np.int64)
    pixels = _pixels(levels)
    if pixels < 0:
        return refuse(request.api, op.sentences, NEGATIVE, rows, rows, 0)
    if pixels != launch.pixels:
        return refuse(request.api, op.sentences, WRONG_PIXELS, value, value, pixels)
    launch.points = left = _points(value, locations, 1)
    for level in range(n_levels):
        left -= levels[level, 0]
    fits = launch.points >= 0 and left == 0 and (len(locations) != 6 or locations[3] == n_levels)
    if not fits or locations[len(locations) - 1] != r:
        return refuse(request.api, op.sentences, WRONG_LOCATIONS, value, locations, n_levels)
    launch.queries = locations[1]
    if _points(value, weights, 0) != launch.points:
        return refuse(request.api, op.sentences, WRONG_WEIGHTS, weights, locations, 0)
    is_of_one_query = weights[1] == 1 and len(weights) == 4
    is_of_other_levels = len(weights) == 5 and len(locations) == 6 and weights[3] != locations[3]
    if is_of_other_levels or (weights[1] != launch.queries and not is_of_one_query):
        return refuse(request.api, op.sentences, WRONG_WEIGHTS, weights, locations, 0)
    launch.weighted = weights[1]
    if float(launch.n) * float(launch.queries) * float(launch.heads) * float(launch.channels) >= 2.0**59:
        return refuse(request.api, op.sentences, IS_TOO_LARGE, value, value, 0)
    Y = keep(request, 3)
    if len(Y) == 0:
        return complain(request.api, op.sentences, NO_ROOM, 24)
    Y[0], Y[1], Y[2] = launch.n, launch.queries, launch.heads * launch.channels
    launch.value, launch.locations, launch.weights = inputs[0].data, inputs[2].data, inputs[3].data
    launch.align_corners, launch.worker = op.kernel.align_corners, op.kernel.worker
    return filled(op, request, launch, Y, launch.pixels * launch.points)


@register_jitable
def _pixels(levels: Any) -> int:
    """The pixels of all ``levels`` (L, 1 + r), :data:`MANY` where there are more; -1 where anything is negative."""
    total = least = 0
    for level in range(len(levels)):
        least, area = min(least, levels[level, 0]), 1
        for axis in range(1, levels.shape[1]):
            length = levels[level, axis]
            least, area = min(least, length), min(area * min(length, MANY), MANY)
        total = min(total + area, MANY)
    return total if least == 0 else -1


@register_jitable
def _points(value: Any, lengths: Any, behind: int) -> int:
    """The points of each head, by a shape (B, Q, H, …) with so many axes behind them; -1: not for ``value``'s shape."""
    if len(lengths) < 4 or lengths[0] != value[0] or lengths[2] != value[2]:
        return -1
    count = 1
    for axis in range(3, len(lengths) - behind):
        count *= lengths[axis]
    return count


_compute = register_jitable(compute)


def compute_with_status(op_at: int, context: int) -> int:
    """KernelComputeV2 of an op that stands in for a Python op, with its status output."""
    return _compute(op_at, context) or write_status_output(struct(op_at, PLAIN), context)


KERNELS = Kernels(create, compute, destroy, SENTENCES, states, infer)
WITH_STATUS = KERNELS._replace(compute=compute_with_status)
