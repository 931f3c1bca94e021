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
from ...core.pointers import allocate, array, free, load, memory_of_call, store
from ...errors import GridSampleError
from ...model.pixel_grids import MOST_STEPS, PAIR, read
from . import sentences
from .inputs import AXES, DATA, SIZE, close_inputs, copy_shape, get_input, open_inputs
from .sampling import API, SAID, SENTENCES, SHAPE_OF, SHAPES, sample

#: Of the texts behind the state, where what is done lies, and the sentences about the coordinates.
WHAT = SENTENCES + 8 * len(SAID)
MISSING = WHAT + 8
ABOUT = MISSING + 8

# What is done: with how many values and numbers to how many coordinates, and how many these are with those that are
# operands, which come behind the grid's own; and one by one the value that it lies in, on which axis (-1: none), where
# on it and of how many, whether all batches share it, how many steps there are, and these.
(SOURCES, NUMBERS, COORDINATES, RECORDS, FIRST) = range(0, 40, 8)
(SOURCE, AXIS, INDEX, LENGTH, SHARED, STEPS, CODES) = range(0, 56, 8)
RECORD = CODES + 8 * MOST_STEPS
#: Of an axis' length, that no value has said it yet.
UNKNOWN = -1

#: What a run knows of each coordinate, behind the address of the numbers: the address of its value, and how many
#: elements of that lie together that differ in no axis before the coordinates' own.
(BASE, INNER, PLACE) = range(0, 24, 8)


def texts(where: str, coordinates: Any, sources: Any) -> list[bytes]:
    """What a kernel needs besides its sentences, from what the node ``where`` says.

    Raises:
        GridSampleError: that is not what a session writes.
    """
    try:
        r, records = len(coordinates), read(coordinates, len(sources))
        numbers = sum(step < PAIR for row in records for step in row[5:])
        rows, said = [len(sources), numbers, r, len(records)], []
        for source, axis, index, length, shared, *steps in records:
            rows += [source, axis, index, length, shared, len(steps), *steps, *[0] * (MOST_STEPS - len(steps))]
            said.append(_about(str(sources[source]), r, axis, length, shared, alone=len(sources) == 1))
    except (LookupError, TypeError, ValueError) as error:
        raise GridSampleError(where, "coordinates", repr(coordinates), "what a session writes") from error
    missing = checks.Sentence("grid", "made of a value that is left out", f"{len(sources)} values and their numbers")
    return [np.array(rows, np.int64).tobytes(), *(sentences.as_bytes(each, where) for each in (missing, *said))]


def _about(source: str, r: int, axis: int, length: int, shared: int, alone: bool) -> checks.Sentence:
    """What is said of a value ``source`` whose shape is not one that r coordinates may lie in, ``length`` of them."""
    shape = ["1" if shared else "N", *(f"D{i + 1}_out" for i in range(r))]
    if axis >= 0:
        shape.insert(axis, str(length))
    name = repr(source).replace("{", "{{").replace("}", "}}")
    expected = f"shape ({', '.join(shape)}){'' if alone else ', as what else it is made of'}"
    return checks.Sentence("grid", f"made of {name} of shape {{X}}", expected)


def compute(state: int, context: int) -> int:
    """KernelComputeV2: sample X at the grid that is made of the other inputs, and answer with a status, 0 for good."""
    api = load(state + API)
    inputs = memory_of_call()
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
        # Of X, the grid and Y first, as they are sampled; then of one value, and what a run knows of each.
        grid_shape = SHAPES + 8 * axes
        value_shape = grid_shape + 8 * (max(axes, r + 2) + r + 2)
        places = value_shape + 8 * most
        run = allocate(places + 8 + records * PLACE)
        if run == 0:
            status = sentences.status(api, load(state + SENTENCES), 0, 0, 0, 0, SHAPES)
        else:
            status = copy_shape(api, inputs, run + SHAPES)
            if status == 0:
                status = _measure(api, state, inputs, run + grid_shape, run + value_shape, run + places)
            if status == 0:
                store(run + X, load(inputs + DATA))
                store(run + GRID, run + places)
                status = sample(api, context, state, run, run + SHAPES, axes, run + grid_shape, r + 2)
            free(run)
    close_inputs(api, inputs, count)
    return status


@register_jitable
def _measure(api: int, state: int, inputs: int, grid_shape: int, shape: int, places: int) -> int:
    """Check the shapes of what the grid is made of, and write down its own, and where its coordinates are taken from.

    There is room for one value's ``shape``.
    """
    what, said = load(state + WHAT), load(state + MISSING)
    r, good = load(what + COORDINATES), False
    store(places, load(inputs + SIZE + DATA))
    if load(inputs + SIZE + AXES) == 1:
        status = copy_shape(api, inputs + SIZE, shape)
        if status != 0:
            return status
        good = load(shape) >= load(what + NUMBERS)
    if not good:
        return sentences.status(api, said, 0, 0, 0, 0, 0)
    for axis in range(r + 1):
        store(grid_shape + 8 * axis, UNKNOWN)
    for index in range(load(what + RECORDS)):
        record, place = what + FIRST + index * RECORD, places + 8 + index * PLACE
        value, axis = inputs + (2 + load(record + SOURCE)) * SIZE, load(record + AXIS)
        axes = load(value + AXES)
        status = copy_shape(api, value, shape)
        if status != 0:
            return status
        good = axes == r + 1 + (axis >= 0)
        inner, at = 1, grid_shape
        for each in range(axes if good else 0):
            length = load(shape + 8 * each)
            if each == axis:
                good = good and length == load(record + LENGTH)
                inner = 1
                continue
            if at == grid_shape and load(record + SHARED):
                good = good and length == 1
            elif load(at) == UNKNOWN:
                store(at, length)
            else:
                good = good and length == load(at)
            at += 8
            inner *= length
        if not good:
            return sentences.status(api, load(state + ABOUT + 8 * index), shape, axes, 0, 0, 0)
        store(place + BASE, load(value + DATA))
        store(place + INNER, inner)
    store(grid_shape + 8 * (r + 1), r)
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
        whole = _is_grid(what, places)
        if whole:
            at = load(places + 8 + BASE) + _first(run, what + FIRST, batch, begin) * r * size
            kernels.split(array(at, (positions, r), dtype), g)
        for index in range(r):
            record, place = what + FIRST + index * RECORD, places + 8 + index * PLACE
            along = g[r - 1 - index, :positions]  # a grid lists the innermost axis first
            if not whole:
                _take_all(record, place, _first(run, record, batch, begin), along)
            for step in range(load(record + STEPS)):
                code = load(record + CODES + 8 * step)
                if code < PAIR:
                    _apply(code, numbers[number], along)
                    number += 1
                else:
                    record_of_other = what + FIRST + operand * RECORD
                    place_of_other = places + 8 + operand * PLACE
                    _take_all(record_of_other, place_of_other, _first(run, record_of_other, batch, begin), other)
                    for each in range(load(record_of_other + STEPS)):
                        _apply(load(record_of_other + CODES + 8 * each), numbers[number], other)
                        number += 1
                    _apply(code - PAIR, other, along)
                    operand += 1
        return 0

    return coordinates


@register_jitable
def _first(run: int, record: int, batch: int, begin: int) -> int:
    """The position of all batches' at which a block begins, of a coordinate; of the only batch's if they share it."""
    return begin if load(record + SHARED) else batch * load(run + POSITIONS) + begin


@register_jitable
def _is_grid(what: int, places: int) -> bool:
    """Whether what a grid is made of lies as a grid does: its coordinates side by side, and nothing between."""
    r = load(what + COORDINATES)
    for index in range(r):
        record, place = what + FIRST + index * RECORD, places + 8 + index * PLACE
        lies = load(record + INDEX) == index and load(record + LENGTH) == r and load(place + INNER) == 1
        same = load(place + BASE) == load(places + 8 + BASE) and load(record + SHARED) == load(what + FIRST + SHARED)
        if not (lies and same):
            return False
    return True


@register_jitable
def _take_all(record: int, place: int, first: int, here: Any) -> None:
    """Take a coordinate of as many positions as there is room for, from the ``first`` on."""
    length, inner, index = load(record + LENGTH), load(place + INNER), load(record + INDEX)
    positions, done = len(here), 0
    while done < positions:
        outer, rest = (first + done) // inner, (first + done) % inner
        at = load(place + BASE) + ((outer * length + index) * inner + rest) * here.itemsize
        if inner == 1:
            count, step = positions - done, length
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
