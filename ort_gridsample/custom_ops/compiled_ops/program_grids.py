"""Programs (:mod:`ort_gridsample.detection.programs`) as the source of the coordinates of a GridSample.

Every coordinate takes the steps that it took in the graph, in their order and type: it is the same to the last bit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

from ... import spec
from ...detection.programs import MAX_SOURCES, MAX_STEPS, WITH_PROGRAM
from ...functions import validation
from ...kernels import loops
from ...kernels.pointers import address, array, by_types, chars, copy, local, sizeof, struct, view
from ...kernels.structs import LAUNCH, WORKER
from ...kernels.workers import TAPS
from .catalog import Fields, Kernels
from .creation import close_node, destroy, get_text, integers, is_good, open_node, text
from .requests import keep, reserve, shape
from .sampling import IS_OTHER, begin_sample, compute, state
from .sampling import SENTENCES as SAMPLE_SENTENCES
from .sentences import NO_ROOM, as_bytes, complain, refuse
from .structs import COMPONENT, COORDINATES, ERRORS, GRID_SAMPLE, NODE, OP, PROGRAM, PROGRAMS, REQUEST, TEXT

#: The sentences of the op: the GridSample's, then about a value that is left out, about one of a wrong shape, alone or
#: beside others, and about programs.
MISSING, ALONE, BESIDE, NO_PROGRAMS = range(len(SAMPLE_SENTENCES), len(SAMPLE_SENTENCES) + 4)
_ABOUT = validation.Sentence("grid", "made of {value} of shape {X}", "shape {coordinates}")
SENTENCES = [
    *SAMPLE_SENTENCES,
    *map(as_bytes, (
        validation.Sentence("grid", "made of a value that is left out", "{nbytes} values and their numbers"),
        _ABOUT,
        replace(_ABOUT, expected=f"{_ABOUT.expected}, as what else it is made of"),
        validation.Sentence("coordinates", "{X}", "what a session writes"),
    )),
]  # fmt: skip


def states(X_type: str, grid_type: str, _: str) -> tuple[Any, list[Fields]]:
    """The states, one a mode."""
    coordinates = (coordinates_for, grid_type)
    return GRID_SAMPLE, [state(X_type, grid_type, mode, (measure,), coordinates) for mode in TAPS]


def create(op_at: int, api: int, info: int, out: int) -> int:
    """CreateKernelV2."""
    op, node, head = struct(op_at, OP), local(NODE), local(PROGRAMS)
    errors = open_node(node, op, api, info, chars("GridSample node "), IS_OTHER)
    numbers = integers(node, chars("coordinates"))
    most, head.n_sources = len(numbers) // 5 + 1, _split(node, chars("sources"), head.names)
    head.programs = reserve(node, most * sizeof(PROGRAM))
    if is_good(node) and not _read(head, numbers, array(head.programs, (most,), PROGRAM)):
        node.status = refuse(api, errors, NO_PROGRAMS, numbers, numbers[:0], 0)
    at = begin_sample(node, op, errors, 0, 2 + head.n_sources)
    if at != 0:
        copy(address(struct(at, GRID_SAMPLE).programs), address(head), sizeof(PROGRAMS))
    return close_node(node, at, out)


@register_jitable
def _split(node: Any, attribute: int, names: Any) -> int:
    """Set ``names`` to the lines of an attribute; returns their number, even where there is room for fewer."""
    found, count, begin = local(TEXT), 0, 0
    text(node, get_text, (node.info, attribute), found)
    letters = array(found.at, (max(found.length, 0),), np.uint8)
    for at in range(found.length + 1):
        if at == len(letters) or letters[at] == 10:
            if count < len(names):
                names[count].at, names[count].length = found.at + begin, at - begin
            begin, count = at + 1, count + 1
    return count


@register_jitable
def _read(head: Any, numbers: Any, rows: Any) -> bool:
    """Set the ``head`` and ``rows`` of what :func:`ort_gridsample.detection.programs.encode` wrote; whether it did."""
    count = n_scalars = n_operands = 0
    r, at = numbers[0] if len(numbers) > 0 else 0, 1
    while at < len(numbers):
        if at + 5 > len(numbers):
            return False
        row = rows[count]
        row.source, row.axis, row.index = numbers[at], numbers[at + 1], numbers[at + 2]
        row.length, row.n_steps = numbers[at + 3], numbers[at + 4]
        at += 5
        codes = WITH_PROGRAM if count >= r else 2 * WITH_PROGRAM
        good = 0 <= row.source < head.n_sources <= MAX_SOURCES and -1 <= row.axis <= r + 1
        good = good and 0 <= row.index < row.length and 0 <= row.n_steps <= MAX_STEPS
        if not good or at + row.n_steps > len(numbers):
            return False
        for step in range(row.n_steps):
            code = numbers[at + step]
            if code < 0 or code >= codes:
                return False
            row.steps[step] = code
            n_operands += code >= WITH_PROGRAM
            n_scalars += code < WITH_PROGRAM
        count, at = count + 1, at + row.n_steps
    head.n_scalars, head.r, head.count = n_scalars, r, count
    return 0 < r == count - n_operands


def measure(request_at: int) -> int:
    """Set the grid of a GridSample and the components of its programs; returns a status.

    The second input holds the scalars; the sources follow.
    """
    request = struct(request_at, REQUEST)
    op = struct(request.launch.kernel, GRID_SAMPLE)
    head, scalars = op.programs, request.inputs[1]
    lacks = scalars.axes != 1 or shape(scalars)[0] < head.n_scalars
    for index in range(op.n_inputs):
        lacks = lacks or request.inputs[index].axes < 0
    if lacks:
        return complain(request.api, op.sentences, MISSING, head.n_sources)
    r, nbytes = head.r, head.count * sizeof(COMPONENT)
    kept, request.components = keep(request, (2 + head.count) * (r + 2)), reserve(request, nbytes)
    if request.lacks_memory != 0:
        return complain(request.api, op.sentences, NO_ROOM, 8 * (2 + head.count) * (r + 2) + nbytes)
    grid, made = kept[: r + 2], kept[r + 2 :]
    programs, operand = array(head.programs, (head.count,), PROGRAM), r
    for own in range(r):
        for axis in range(r + 1):
            made[axis] = 1
        wrong = -1 if _meet(request, programs[own], made[: r + 1]) else own
        for step in range(programs[own].n_steps):
            if programs[own].steps[step] >= WITH_PROGRAM:
                if wrong < 0 and not _meet(request, programs[operand], made[: r + 1]):
                    wrong = operand
                operand += 1
        if wrong >= 0:
            value = request.inputs[2 + programs[wrong].source]
            return _refuse(request.api, op, programs[wrong], shape(value))
        for axis in range(r + 1):
            if own == 0:
                grid[axis] = made[axis]
            elif made[axis] != grid[axis]:
                return _refuse(request.api, op, programs[own], made[: r + 1])
    grid[r + 1] = r
    request.grid.shape, request.grid.axes = np.int64(grid.ctypes.data), r + 2
    components = array(request.components, (head.count,), COMPONENT)
    for index in range(head.count):
        value, program = request.inputs[2 + programs[index].source], programs[index]
        _find(components[index], value, program, grid[: r + 1], kept[(2 + index) * (r + 2) :])
    return 0


@register_jitable
def _refuse(api: int, op: Any, program: Any, found: Any) -> int:
    """A status: what a ``program`` of an ``op`` reads is of the shape ``found``."""
    errors, own, name = local(ERRORS), struct(op.sentences, ERRORS), op.programs.names[program.source]
    errors.sentences, errors.where.at, errors.where.length = own.sentences, own.where.at, own.where.length
    errors.value.at, errors.value.length = name.at, name.length
    about = local(COORDINATES)
    about.axis, about.length, about.r = program.axis, program.length, op.programs.r
    number = ALONE if op.programs.n_sources == 1 else BESIDE
    return refuse(api, address(errors), number, found, array(address(about), (3,), np.int64), 0)


@register_jitable
def _meet(request: Any, program: Any, made: Any) -> bool:
    """Broadcast the shape ``made`` (r + 1,) of a coordinate so far with that of another; whether they agree."""
    lengths, at = shape(request.inputs[2 + program.source]), 0
    good = len(lengths) == len(made) + (program.axis >= 0)
    for axis in range(len(lengths) if good else 0):
        length = lengths[axis]
        if axis == program.axis:
            good = good and length == program.length
        else:
            if made[at] == 1:
                made[at] = length
            good = good and (length == 1 or length == made[at])
            at += 1
    return good


@register_jitable
def _find(component: Any, value: Any, program: Any, grid: Any, strides: Any) -> None:
    """Set the ``component`` of a ``program`` in its ``value``, and its ``strides`` (≥ r + 1,).

    ``grid`` (r + 1,) is the shape of a coordinate.
    """
    lengths, stride, at, first = shape(value), 1, len(grid), 0
    for axis in range(len(lengths) - 1, -1, -1):
        if axis == program.axis:
            first = program.index * stride
        else:
            at -= 1
            strides[at] = stride if lengths[axis] == grid[at] else 0
        stride *= lengths[axis]
    step, run, axis = 0, 1, len(grid)
    while axis > 0 and (run == 1 or grid[axis - 1] == 1 or strides[axis - 1] == step * run):
        axis -= 1
        step = strides[axis] if run == 1 else step
        run *= grid[axis]
    component.data, component.first, component.strides = value.data, first, np.int64(strides.ctypes.data)
    component.step, component.run, component.axes = step, run, axis


def coordinates_for(grid_type: str) -> Callable[..., int]:
    """What computes the coordinates of a tile from values of this type."""
    dtype = np.dtype(spec.TYPES[grid_type].compute)

    def coordinates(launch_at: int, worker_at: int, batch: int, begin: int, positions: int) -> int:
        launch, worker, request = struct(launch_at, LAUNCH), struct(worker_at, WORKER), struct(launch_at, REQUEST)
        head, r = struct(launch.kernel, GRID_SAMPLE).programs, launch.r
        lengths, first = shape(request.grid)[: r + 1], batch * launch.positions + begin
        programs = array(head.programs, (head.count,), PROGRAM)
        components = array(request.components, (head.count,), COMPONENT)
        scalars, scalar, operand = array(request.inputs[1].data, (head.n_scalars,), dtype), 0, r
        g = view(worker, launch.scratch.coordinates, (r, launch.tile), dtype)
        other = view(worker, launch.scratch.axis, (positions,), dtype)  # free until the coordinates are there
        listed = _is_grid(components[:r], launch.positions)
        if listed:
            loops.split(array(_place(components[0], lengths, first, g.itemsize), (positions, r), dtype), g)
        for index in range(r):
            program, along = programs[index], g[r - 1 - index, :positions]  # a grid lists the innermost axis first
            if not listed:
                _take_all(components[index], lengths, first, along)
            for step in range(program.n_steps):
                code = program.steps[step]
                if code < WITH_PROGRAM:
                    _apply(code, scalars[scalar], along)
                    scalar += 1
                else:
                    _take_all(components[operand], lengths, first, other)
                    for each in range(programs[operand].n_steps):
                        _apply(programs[operand].steps[each], scalars[scalar], other)
                        scalar += 1
                    _apply(code - WITH_PROGRAM, other, along)
                    operand += 1
        return 0

    return coordinates


@register_jitable
def _is_grid(components: Any, positions: int) -> bool:
    """Whether the ``components`` (r,) of a batch's ``positions`` lie as a grid does: side by side, nothing between."""
    one, good = components[0], components[0].run % positions == 0
    for index in range(len(components)):
        each = components[index]
        good = good and each.step == len(components) and each.run == one.run and each.data == one.data
        good = good and each.first == one.first + index
    return good


@register_jitable
def _place(component: Any, lengths: Any, position: int, size: int) -> int:
    """Where the ``component`` of a ``position`` among ``lengths`` (r + 1,) lies, in elements of so many bytes."""
    strides, outer = array(component.strides, (len(lengths),), np.int64), position // component.run
    at = component.first + position % component.run * component.step
    for axis in range(component.axes - 1, -1, -1):
        at += outer % lengths[axis] * strides[axis]
        outer //= lengths[axis]
    return component.data + at * size


@register_jitable
def _take_all(component: Any, lengths: Any, first: int, here: Any) -> None:
    """Take a coordinate of as many positions as there is room for, from the ``first`` on."""
    step, done = component.step, 0
    while done < len(here):
        count = min(len(here) - done, component.run - (first + done) % component.run)
        there = _place(component, lengths, first + done, here.itemsize)
        source, to = array(there, (count,), here.dtype), here[done : done + count]
        if step == 1:
            for p in range(count):
                to[p] = source[p]
        else:
            for p in range(count):
                to[p] = source[np.uint64(p) * np.uint64(step)]
        done += count


@by_types
def _at(n: Any, p: int) -> Any:
    """The operand at position ``p``: a number is the same at all."""
    if isinstance(n, types.Array):
        return lambda n, p: n[p]
    return lambda n, p: n


@register_jitable
def _apply(code: int, n: Any, x: Any) -> None:
    """Do one of :data:`OPERATIONS` to ``x`` with ``n``: twice its place there, and 1 more where ``n`` comes first."""
    if code < 2:
        for p in range(len(x)):
            x[p] += _at(n, p)
    elif code == 2:
        for p in range(len(x)):
            x[p] -= _at(n, p)
    elif code == 3:
        for p in range(len(x)):
            x[p] = _at(n, p) - x[p]
    elif code < 6:
        for p in range(len(x)):
            x[p] *= _at(n, p)
    elif code == 6:
        for p in range(len(x)):
            x[p] /= _at(n, p)
    else:
        for p in range(len(x)):
            x[p] = _at(n, p) / x[p]


KERNELS = Kernels(create, compute, destroy, SENTENCES, states)
