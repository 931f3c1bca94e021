"""GridSample and what makes its grid in one: it is made a block at a time, as :mod:`ort_gridsample.model.pixel_grids`
found it in the graph.

Every coordinate meets what it met there, one after the other and in the same type, so that it is the same to the last
bit. State and call are those of :mod:`.sampling`; behind its sentences lie what is done, and a sentence for each
coordinate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from ... import checks, spec
from ...core import kernels
from ...core.lanes import AXIS as OTHER  # free until the coordinates are there
from ...core.lanes import BLOCK, COORDINATE, GRID, POSITIONS, STATE, R, X
from ...core.pointers import allocate, array, copy, free, load, memory_of_call, store
from ...errors import GridSampleError
from ...model.programs import MOST_SOURCES, MOST_STEPS, flattened
from ...model.programs import WITH_PROGRAM as PAIR
from . import sentences
from .inputs import AXES, DATA, SIZE, close_inputs, copy_shape, get_input, open_inputs
from .sampling import API, SAID, SENTENCES, SHAPE_OF, SHAPES, sample

#: Of the texts behind the state, where what is done lies, and the sentences about the coordinates.
WHAT = SENTENCES + 8 * len(SAID)
MISSING = WHAT + 8
ABOUT = MISSING + 8

# What is done: with how many values and numbers to how many coordinates, how many these are with those that are
# operands, which come behind the grid's own, and of how many bytes each is; and one by one the value that it lies in,
# on which axis (-1: none), where on it and of how many, how many steps there are, and these.
(SOURCES, NUMBERS, COORDINATES, RECORDS, ITEM, FIRST) = range(0, 48, 8)
(SOURCE, AXIS, INDEX, LENGTH, STEPS, CODES) = range(0, 48, 8)
RECORD = CODES + 8 * MOST_STEPS
#: X, the numbers, and the values.
MOST_INPUTS = 2 + MOST_SOURCES

#: What a run knows of each coordinate, behind the address of the numbers: the address of its first element, how many
#: elements lie together that differ in no axis before the coordinates' own, how many such rows there are from one of
#: its own to the next, whether all batches share it, and the address of a copy that was made of it (0: none).
(BASE, INNER, ROWS, SHARED, COPY, PLACE) = range(0, 48, 8)


def texts(where: str, grid_type: str, coordinates: Any, sources: Any) -> list[bytes]:
    """What a kernel needs besides its sentences, from what the node ``where`` says of coordinates of ``grid_type``.

    Raises:
        GridSampleError: that is not what a session writes.
    """
    try:
        r, records = len(coordinates), flattened(coordinates, len(sources))
        numbers = sum(step < PAIR for row in records for step in row[4:])
        item = np.dtype(spec.TYPES[grid_type].compute).itemsize
        rows, said = [len(sources), numbers, r, len(records), item], []
        for source, axis, index, length, *steps in records:
            rows += [source, axis, index, length, len(steps), *steps, *[0] * (MOST_STEPS - len(steps))]
            said.append(_about(str(sources[source]), r, axis, length, alone=len(sources) == 1))
    except (LookupError, TypeError, ValueError) as error:
        raise GridSampleError(where, "coordinates", repr(coordinates), "what a session writes") from error
    missing = checks.Sentence("grid", "made of a value that is left out", f"{len(sources)} values and their numbers")
    return [np.array(rows, np.int64).tobytes(), *(sentences.as_bytes(each, where) for each in (missing, *said))]


def _about(source: str, r: int, axis: int, length: int, alone: bool) -> checks.Sentence:
    """What is said of a value ``source`` whose shape is not one that r coordinates may lie in, ``length`` of them."""
    shape = ["N", *(f"D{i + 1}_out" for i in range(r))]
    if axis >= 0:
        shape.insert(axis, str(length))
    name = repr(source).replace("{", "{{").replace("}", "}}")
    expected = f"shape ({', '.join(shape)}){'' if alone else ', as what else it is made of'}"
    return checks.Sentence("grid", f"made of {name} of shape {{X}}", expected)


def compute(state: int, context: int) -> int:
    """KernelComputeV2: sample X at the grid that is made of the other inputs, and answer with a status, 0 for good."""
    api = load(state + API)
    inputs = memory_of_call(MOST_INPUTS, SIZE)
    what = load(state + WHAT)
    count = 2 + load(what + SOURCES)
    status, is_there = 0, True
    for index in range(count):
        if status == 0:
            status = get_input(api, (context, index, inputs))
            is_there = is_there and load(inputs) != 0
    if status == 0 and not is_there:
        status = sentences.status(api, load(state + MISSING), 0, 0, 0, 0, 0)
    if status != 0:
        return status
    status = open_inputs(api, load(state + SHAPE_OF), context, inputs, count)
    if status == 0:
        axes, most, r, records = load(inputs + AXES), 1, load(what + COORDINATES), load(what + RECORDS)
        for index in range(1, count):
            most = max(most, load(inputs + index * SIZE + AXES))
        # Of X, the grid and Y first, as they are sampled; then of one coordinate and one value, and what a run knows of
        # each coordinate.
        grid_shape = SHAPES + 8 * axes
        shapes = grid_shape + 8 * (max(axes, r + 2) + r + 2)
        places = shapes + 8 * (r + 1 + most)
        run = allocate(places + 8 + records * PLACE)
        if run == 0:
            status = sentences.status(api, load(state + SENTENCES), 0, 0, 0, 0, SHAPES)
        else:
            for index in range(records):
                store(run + places + 8 + index * PLACE + COPY, 0)
            status = copy_shape(api, inputs, run + SHAPES)
            if status == 0:
                status = _measure(api, state, inputs, run + grid_shape, run + shapes, run + places)
            if status == 0:
                store(run + X, load(inputs + DATA))
                store(run + GRID, run + places)
                status = sample(api, context, state, run, run + SHAPES, axes, run + grid_shape, r + 2)
            for index in range(records):
                free(load(run + places + 8 + index * PLACE + COPY))
            free(run)
    close_inputs(api, inputs, count)
    return status


@register_jitable
def _measure(api: int, state: int, inputs: int, grid_shape: int, made: int, places: int) -> int:
    """Check the shapes of what the grid is made of, and write down its own, and where its coordinates are taken from.

    There is room for the shape that is ``made`` of one coordinate, and behind it for one value's.
    """
    what, said = load(state + WHAT), load(state + MISSING)
    r, good = load(what + COORDINATES), False
    shape = made + 8 * (r + 1)
    store(places, load(inputs + SIZE + DATA))
    if load(inputs + SIZE + AXES) == 1:
        status = copy_shape(api, inputs + SIZE, shape)
        if status != 0:
            return status
        good = load(shape) >= load(what + NUMBERS)
    if not good:
        return sentences.status(api, said, 0, 0, 0, 0, 0)
    operand = r
    for own in range(r):
        for axis in range(r + 1):
            store(made + 8 * axis, 1)
        status, record = _meet(api, state, inputs, own, made, shape), what + FIRST + own * RECORD
        for step in range(load(record + STEPS)):
            if load(record + CODES + 8 * step) >= PAIR:
                if status == 0:
                    status = _meet(api, state, inputs, operand, made, shape)
                operand += 1
        for axis in range(r + 1):
            if own == 0:
                store(grid_shape + 8 * axis, load(made + 8 * axis))
            elif status == 0 and load(made + 8 * axis) != load(grid_shape + 8 * axis):
                status = sentences.status(api, load(state + ABOUT + 8 * own), made, r + 1, 0, 0, 0)
        if status != 0:
            return status
    store(grid_shape + 8 * (r + 1), r)
    for index in range(load(what + RECORDS)):
        status = _find(api, state, inputs, index, grid_shape, shape, places + 8 + index * PLACE)
        if status != 0:
            return status
    return 0


@register_jitable
def _meet(api: int, state: int, inputs: int, index: int, made: int, shape: int) -> int:
    """Let the shape that is ``made`` of one coordinate so far meet that of another, as broadcasting does."""
    what = load(state + WHAT)
    record = what + FIRST + index * RECORD
    value, axis = inputs + (2 + load(record + SOURCE)) * SIZE, load(record + AXIS)
    axes = load(value + AXES)
    status = copy_shape(api, value, shape)
    if status != 0:
        return status
    good, at = axes == load(what + COORDINATES) + 1 + (axis >= 0), made
    for each in range(axes if good else 0):
        length = load(shape + 8 * each)
        if each == axis:
            good = good and length == load(record + LENGTH)
        else:
            if load(at) == 1:
                store(at, length)
            good = good and (length == 1 or length == load(at))
            at += 8
    return 0 if good else sentences.status(api, load(state + ABOUT + 8 * index), shape, axes, 0, 0, 0)


@register_jitable
def _find(api: int, state: int, inputs: int, index: int, grid_shape: int, shape: int, place: int) -> int:
    """Write down where a coordinate is taken from; where more than batches share it, from a copy, broadcast."""
    what = load(state + WHAT)
    record, item = what + FIRST + index * RECORD, load(what + ITEM)
    value, axis = inputs + (2 + load(record + SOURCE)) * SIZE, load(record + AXIS)
    axes, data = load(value + AXES), load(value + DATA)
    status = copy_shape(api, value, shape)
    if status != 0:
        return status
    inner, at, broadcasts, total = 1, grid_shape, False, 1
    for each in range(axes):
        length = load(shape + 8 * each)
        inner = 1 if each == axis else inner * length
        if each != axis:
            if at == grid_shape:
                store(place + SHARED, length != load(at))
            else:
                broadcasts = broadcasts or length != load(at)
            total *= load(at)
            at += 8
    store(place + INNER, inner)
    store(place + ROWS, load(record + LENGTH))
    store(place + BASE, data + load(record + INDEX) * inner * item)
    if broadcasts:
        copied = allocate(total * item + 8)
        if copied == 0:
            return sentences.status(api, load(state + SENTENCES), 0, 0, 0, 0, total * item)
        for to in range(total):
            rest, source, stride, at = to, 0, 1, grid_shape + 8 * load(what + COORDINATES)
            for each in range(axes - 1, -1, -1):
                length = load(shape + 8 * each)
                if each == axis:
                    source += load(record + INDEX) * stride
                else:
                    source += 0 if length == 1 else rest % load(at) * stride
                    rest //= load(at)
                    at -= 8
                stride *= length
            copy(copied + to * item, data + source * item, item)
        store(place + COPY, copied)
        store(place + BASE, copied)
        store(place + INNER, 1)
        store(place + ROWS, 1)
        store(place + SHARED, 0)
    return 0


def coordinates_for(grid_type: str) -> Callable[..., int]:
    """What works out the coordinates of a block from values of this type."""
    dtype = np.dtype(spec.TYPES[grid_type].compute)
    size = dtype.itemsize

    def coordinates(run: int, scratch: int, batch: int, begin: int, positions: int) -> int:
        r, block, places = load(run + R), load(run + BLOCK), load(run + GRID)
        what = load(load(run + STATE) + WHAT)
        g = array(scratch + load(run + COORDINATE), (r, block), dtype)
        other = array(scratch + load(run + OTHER), (positions,), dtype)
        numbers, number, operand = array(load(places), (load(what + NUMBERS),), dtype), 0, r
        whole = _is_grid(r, places + 8, size)
        if whole:
            at = load(places + 8 + BASE) + _first(run, places + 8, batch, begin) * r * size
            kernels.split(array(at, (positions, r), dtype), g)
        for index in range(r):
            record, place = what + FIRST + index * RECORD, places + 8 + index * PLACE
            along = g[r - 1 - index, :positions]  # a grid lists the innermost axis first
            if not whole:
                _take_all(place, _first(run, place, batch, begin), along)
            for step in range(load(record + STEPS)):
                code = load(record + CODES + 8 * step)
                if code < PAIR:
                    _apply(code, numbers[number], along)
                    number += 1
                else:
                    record_of_other = what + FIRST + operand * RECORD
                    place_of_other = places + 8 + operand * PLACE
                    _take_all(place_of_other, _first(run, place_of_other, batch, begin), other)
                    for each in range(load(record_of_other + STEPS)):
                        _apply(load(record_of_other + CODES + 8 * each), numbers[number], other)
                        number += 1
                    _apply(code - PAIR, other, along)
                    operand += 1
        return 0

    return coordinates


@register_jitable
def _first(run: int, place: int, batch: int, begin: int) -> int:
    """The position of all batches' at which a block begins, of a coordinate; of the only batch's if they share it."""
    return begin if load(place + SHARED) else batch * load(run + POSITIONS) + begin


@register_jitable
def _is_grid(r: int, places: int, size: int) -> bool:
    """Whether what a grid is made of lies as a grid does: its coordinates side by side, and nothing between."""
    for index in range(r):
        place = places + index * PLACE
        lies = load(place + ROWS) == r and load(place + INNER) == 1
        if not lies or load(place + BASE) != load(places + BASE) + index * size:
            return False
        if load(place + SHARED) != load(places + SHARED):
            return False
    return True


@register_jitable
def _take_all(place: int, first: int, here: Any) -> None:
    """Take a coordinate of as many positions as there is room for, from the ``first`` on."""
    rows, inner = load(place + ROWS), load(place + INNER)
    positions, done = len(here), 0
    while done < positions:
        outer, rest = (first + done) // inner, (first + done) % inner
        at = load(place + BASE) + (outer * rows * inner + rest) * here.itemsize
        if inner == 1:
            count, step = positions - done, rows
        else:
            count, step = min(positions - done, inner - rest), 1
        _take(array(at, ((count - 1) * step + 1,), here.dtype), step, here[done : done + count])
        done += count


@register_jitable
def _take(there: Any, step: int, here: Any) -> None:
    """Take every ``step``-th of what is ``there``."""
    if step == 1:
        for p in range(len(here)):
            here[p] = there[p]
    else:
        for p in range(len(here)):
            here[p] = there[np.uint64(p) * np.uint64(step)]


def _at(n: Any, p: int) -> Any: ...


@overload(_at, strict=False)
def _at_for(n: Any, p: int) -> Any:
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
