"""Programs (:mod:`ort_gridsample.model.programs`) as the source of the coordinates of a GridSample.

Every coordinate takes the steps that it took in the graph, in their order and type: it is the same to the last bit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

from ... import checks, spec
from ...core import kernels
from ...core.pointers import address, array, by_types, chars, copy, local, sizeof, struct, view
from ...core.structs import LAUNCH, WORKER
from ...core.variants import TAPS
from ...model.programs import MOST_SOURCES, MOST_STEPS, WITH_PROGRAM
from .c_api import ELEMENT_TYPES
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
_ABOUT = checks.Sentence("grid", "made of {value} of shape {X}", "shape {coordinates}")
SENTENCES = [
    *SAMPLE_SENTENCES,
    *map(as_bytes, (
        checks.Sentence("grid", "made of a value that is left out", "{nbytes} values and their numbers"),
        _ABOUT,
        replace(_ABOUT, expected=f"{_ABOUT.expected}, as what else it is made of"),
        checks.Sentence("coordinates", "{X}", "what a session writes"),
    )),
]  # fmt: skip
FLOAT32 = ELEMENT_TYPES["float32"]


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
    head.programs, head.item = reserve(node, most * sizeof(PROGRAM)), 4 if op.types[1] == FLOAT32 else 8
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
    """Set the ``head`` and ``rows`` of what :func:`ort_gridsample.model.programs.encoded` wrote; whether it did."""
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
        good = 0 <= row.source < head.n_sources <= MOST_SOURCES and -1 <= row.axis <= r + 1
        good = good and 0 <= row.index < row.length and 0 <= row.n_steps <= MOST_STEPS
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
    both, request.components = keep(request, 2 * (r + 2)), reserve(request, nbytes)
    if request.lacks_memory != 0:
        return complain(request.api, op.sentences, NO_ROOM, 16 * (r + 2) + nbytes)
    grid, made = both[: r + 2], both[r + 2 :]
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
        lacking = _find(request, components[index], value, program, grid[: r + 1], head.item)
        if lacking > 0:
            return complain(request.api, op.sentences, NO_ROOM, lacking)
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
def _find(request: Any, component: Any, value: Any, program: Any, grid: Any, item: int) -> int:
    """Set the ``component`` of a ``program``: in its ``value``, or where more than batches share it, in a copy.

    ``grid`` (r + 1,) is the shape of a coordinate. Returns the bytes that are not to be had, or 0.
    """
    lengths, at, inner, size, total, broadcasts = shape(value), 0, 1, 1, 1, False
    for axis in range(len(lengths)):
        size *= lengths[axis]
        if axis == program.axis:
            inner = 1
        else:
            inner *= lengths[axis]
            if at == 0:
                component.is_shared = lengths[axis] != grid[at]
            else:
                broadcasts = broadcasts or lengths[axis] != grid[at]
            total *= grid[at]
            at += 1
    component.data, component.size = value.data, size
    component.first, component.inner, component.rows = program.index * inner, inner, program.length
    if not broadcasts:
        return 0
    component.data, component.size = reserve(request, total * item), total
    if component.data == 0:
        return total * item
    component.first, component.inner, component.rows, component.is_shared = 0, 1, 1, 0
    there, copied = array(value.data, (size, item), np.uint8), array(component.data, (total, item), np.uint8)
    for to in range(total):
        rest, source, stride, at = to, 0, 1, len(grid)
        for axis in range(len(lengths) - 1, -1, -1):
            if axis == program.axis:
                source += program.index * stride
            else:
                at -= 1
                source += 0 if lengths[axis] == 1 else rest % grid[at] * stride
                rest //= grid[at]
            stride *= lengths[axis]
        for byte in range(item):
            copied[to, byte] = there[source, byte]
    return 0


def coordinates_for(grid_type: str) -> Callable[..., int]:
    """What computes the coordinates of a tile from values of this type."""
    dtype = np.dtype(spec.TYPES[grid_type].compute)

    def coordinates(launch_at: int, worker_at: int, batch: int, begin: int, positions: int) -> int:
        launch, worker, request = struct(launch_at, LAUNCH), struct(worker_at, WORKER), struct(launch_at, REQUEST)
        head, r = struct(launch.kernel, GRID_SAMPLE).programs, launch.r
        programs = array(head.programs, (head.count,), PROGRAM)
        components = array(request.components, (head.count,), COMPONENT)
        scalars, scalar, operand = array(request.inputs[1].data, (head.n_scalars,), dtype), 0, r
        g = view(worker, launch.scratch.coordinates, (r, launch.tile), dtype)
        other = view(worker, launch.scratch.axis, (positions,), dtype)  # free until the coordinates are there
        listed = _is_grid(components[:r])
        if listed:
            first = _first(launch, components[0], batch, begin) * r + components[0].first
            grid = array(components[0].data, (components[0].size,), dtype)[first : first + positions * r]
            kernels.split(array(np.int64(grid.ctypes.data), (positions, r), dtype), g)
        for index in range(r):
            program, along = programs[index], g[r - 1 - index, :positions]  # a grid lists the innermost axis first
            if not listed:
                _take_all(components[index], _first(launch, components[index], batch, begin), along)
            for step in range(program.n_steps):
                code = program.steps[step]
                if code < WITH_PROGRAM:
                    _apply(code, scalars[scalar], along)
                    scalar += 1
                else:
                    _take_all(components[operand], _first(launch, components[operand], batch, begin), other)
                    for each in range(programs[operand].n_steps):
                        _apply(programs[operand].steps[each], scalars[scalar], other)
                        scalar += 1
                    _apply(code - WITH_PROGRAM, other, along)
                    operand += 1
        return 0

    return coordinates


@register_jitable
def _first(launch: Any, component: Any, batch: int, begin: int) -> int:
    """The position of all batches' at which a tile begins; of the only batch's if they share it."""
    return begin if component.is_shared else batch * launch.positions + begin


@register_jitable
def _is_grid(components: Any) -> bool:
    """Whether the ``components`` (r,) lie as a grid does: side by side, and nothing between."""
    one, good = components[0], True
    for index in range(len(components)):
        each = components[index]
        good = good and each.rows == len(components) and each.inner == 1 and each.data == one.data
        good = good and each.first == one.first + index and each.is_shared == one.is_shared
    return good


@register_jitable
def _take_all(component: Any, first: int, here: Any) -> None:
    """Take a coordinate of as many positions as there is room for, from the ``first`` on."""
    there, inner, done = array(component.data, (component.size,), here.dtype), component.inner, 0
    while done < len(here):
        outer, rest = (first + done) // inner, (first + done) % inner
        at = component.first + outer * component.rows * inner + rest
        if inner == 1:
            count, step = len(here) - done, component.rows
        else:
            count, step = min(len(here) - done, inner - rest), 1
        source, to = there[at:], here[done : done + count]
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
