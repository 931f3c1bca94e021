"""Grids that are made right before a GridSample, of other values: found in a graph, and made part of that node.

Most are given in pixels, such as an optical flow's, and become normalized coordinates by arithmetic with numbers; or
their coordinates lie elsewhere than a GridSample reads them, axis by axis or in a value for each. Each coordinate is
followed back by itself, through operators that take it from one place and apply at most one number to it, or another
coordinate, such as a flow's to the pixel that it begins at. All is done as the graph does it, in its order and its
type: no answer changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .dialects import COMPILED, EXTENSIONS_DOMAIN, FROM_PIXELS, dialect_of, operator_types
from .fusion import label
from .graphs import Names, Scope, called, constant, function_key, scopes
from .inference import Inference
from .onnxruntime_probe import OnnxruntimeProbe
from .use_def import UseDef, is_op, rewrite

#: The types of coordinates that arithmetic is done in as the graph does it: of halves runtimes round as they like.
TYPES = ("float32", "float64")
#: No grid is made of more values, and no coordinate by more steps.
MOST_SOURCES, MOST_STEPS = 6, 16

#: What is done to a coordinate x with an operand n; of each, x before n and n before x.
OPERATIONS = ("Add", "Sub", "Mul", "Div")

#: What an op is told of a step: twice its operation's place, and 1 more where the operand comes first; and so much more
#: where that is no number, but the next of the coordinates that are operands.
PAIR = 2 * len(OPERATIONS)

#: A number that a coordinate meets: itself, or the name of the value that it is.
Number = float | str


@dataclass(frozen=True)
class Place:
    """Where a coordinate lies.

    Attributes:
        name: the value that it lies in.
        axis: the axis of that along which the coordinates lie; None where there is only this one.
        index: its own place on that axis.
        broadcasts: whether it may be broadcast on the way: one batch of it for all, for instance.
    """

    name: str
    axis: int | None
    index: int = 0
    broadcasts: bool = False


@dataclass(frozen=True)
class Step:
    """What is done to a coordinate: one of :data:`OPERATIONS` with an operand, which comes ``first`` or second."""

    operation: str
    operand: Number | Coordinate
    first: bool


@dataclass(frozen=True)
class Coordinate:
    """How one coordinate is made.

    Attributes:
        place: where it lies before anything is done to it.
        length: how many coordinates lie there along its axis.
        steps: what is done to it, in order; no operand's steps have coordinates as operands.
    """

    place: Place
    length: int
    steps: tuple[Step, ...]

    @property
    def sources(self) -> Iterator[str]:
        """The values that it is made of."""
        yield self.place.name
        for step in self.steps:
            if isinstance(step.operand, Coordinate):
                yield from step.operand.sources

    @property
    def numbers(self) -> Iterator[Number]:
        """The numbers that are met, in order."""
        for step in self.steps:
            if isinstance(step.operand, Coordinate):
                yield from step.operand.numbers
            else:
                yield step.operand


@dataclass(frozen=True)
class PixelGrid:
    """How a grid is made.

    Attributes:
        type: its type, and that of all that it is made of.
        coordinates: one for each of its coordinates, in its order.
        nodes: the positions of the nodes that make it, and nothing else.
    """

    type: str
    coordinates: tuple[Coordinate, ...]
    nodes: tuple[int, ...]

    @property
    def sources(self) -> list[str]:
        """The values that it is made of."""
        return list(dict.fromkeys(name for coordinate in self.coordinates for name in coordinate.sources))

    @property
    def numbers(self) -> list[Number]:
        """The numbers that its coordinates meet, in order."""
        return [number for coordinate in self.coordinates for number in coordinate.numbers]


class PixelGrids:
    """Looks for what the grids of GridSamples are made of.

    Args:
        found: the scopes of a model.
        grids: the id of a scope -> the names of the grids in it.
    """

    def __init__(self, found: Sequence[Scope], grids: Mapping[int, Collection[str]]) -> None:
        self._flows = {id(scope): UseDef(scope) for scope in found if grids.get(id(scope))}
        self.values = {scope: list(_behind(flow, grids[scope])) for scope, flow in self._flows.items()}
        """The id of a scope -> the values of it whose types must be known."""

    def names(self, scope: Scope, pixels: PixelGrid) -> tuple[str, ...]:
        """The names of the nodes of ``scope`` that make a grid."""
        return tuple(called(self._flows[id(scope)].nodes[index]) for index in pixels.nodes)

    def found(
        self, scope: Scope, inference: Inference, X: str, grid: str, readers: Collection[int]
    ) -> PixelGrid | None:
        """How the ``grid`` that the nodes at ``readers`` alone read is made; None where it is as it is.

        They sample ``X``. ``inference`` knows of :attr:`values`.
        """
        flow = self._flows.get(id(scope))
        if flow is None or grid not in flow.makers:
            return None
        known = inference.known(scope, grid)
        if known.type not in TYPES or known.shape is None or len(known.shape) < 3:
            return None
        r = len(known.shape) - 2
        if isinstance(known.shape[-1], int) and known.shape[-1] != r:
            return None
        kept: set[str] = set()
        pairs = True
        while True:  # what others read as well is left to them, and where it is made, the search ends
            walk = _Walk(flow, inference, r + 2, kept)
            made = [walk.back(Place(grid, r + 1, index), pairs) for index in range(r)]
            nodes = tuple(sorted(walk.nodes))
            pixels = PixelGrid(known.type, tuple(filter(None, made)), nodes)
            if pairs and len(pixels.sources) > MOST_SOURCES:
                pairs = False
                continue
            if not nodes or None in made or len(pixels.sources) > MOST_SOURCES:
                return None
            inside, read = {*nodes, *readers}, {X, *pixels.sources, *pixels.numbers}
            outputs = [list(filter(None, flow.nodes[index].output)) for index in nodes]
            leaking = {
                name
                for names in outputs
                if any(name in read or not flow.readers.get(name, set()) <= inside for name in names)
                for name in names
            }
            leaking |= {name for name, left in walk.unlike.items() if left}
            if not leaking:
                return pixels
            kept |= leaking


def _behind(flow: UseDef, grids: Collection[str]) -> Iterator[str]:
    """``grids``, and all that may be on the way to what they are made of."""
    todo = list(dict.fromkeys(grids))
    seen = set(todo)
    for name in todo:  # grows while it is walked
        yield name
        maker = flow.makers.get(name)
        if maker is not None and is_op(flow.nodes[maker], _RULES):
            node = flow.nodes[maker]
            more = dict.fromkeys(each for each in (*node.input, *node.output) if each and each not in seen)
            seen.update(more)
            todo += more


class _Walk:
    """Follows coordinates of one grid back, and collects the nodes on the way; not past the values ``kept``.

    ``unlike`` has what was made of values that only a run shows to be alike, and those of them that were not taken.
    """

    def __init__(self, flow: UseDef, inference: Inference, axes: int, kept: Collection[str]) -> None:
        self.flow, self.nodes, self.unlike = flow, set[int](), dict[str, set[str]]()
        self._inference, self._axes, self._kept = inference, axes, kept

    def back(self, place: Place, pairs: bool) -> Coordinate | None:
        """How the coordinate that lies at ``place`` is made: with ``pairs``, of another one as well."""
        steps: list[Step] = []
        nodes = set[int]()
        while place.name not in self._kept and len(steps) < MOST_STEPS:
            at = self.flow.makers.get(place.name)
            if at is None or at in nodes or not is_op(self.flow.nodes[at], _RULES):
                break  # in a model that is not valid, a node may come from itself
            node = self.flow.nodes[at]
            before = _RULES[node.op_type](self, node, place)
            if before is None and pairs and node.op_type in OPERATIONS:
                before = _pair(self, node, place)
            if before is None or self.length(before) is None:
                break
            if isinstance(before, tuple):
                steps.append(before[1])
            nodes.add(at)
            place, broadcasts = _place(before), place.broadcasts
            place = replace(place, broadcasts=True) if broadcasts else place
        self.nodes |= nodes
        length = self.length(place)
        return None if length is None else Coordinate(place, length, tuple(reversed(steps)))

    def rank(self, place: Place) -> int:
        """How many axes the value at ``place`` has, if it is as its place says."""
        return self._axes - (place.axis is None)

    def shape(self, name: str) -> tuple[int | str | None, ...] | None:
        """The shape of ``name``, as far as it is known."""
        return self._inference.known(self.flow.scope, name).shape

    def length(self, before: Before) -> int | None:
        """How many coordinates lie along the axis of a place; None where it cannot be one."""
        place = _place(before)
        shape = self.shape(place.name)
        if shape is None or len(shape) != self.rank(place):
            return None
        length = 1 if place.axis is None else shape[place.axis]
        return length if isinstance(length, int) and 0 <= place.index < length else None

    def row(self, node: onnx.NodeProto, position: int, attribute: str) -> list[int] | None:
        """The integers that an input of ``node`` says, or the attribute that older opsets have; None: not known."""
        if len(node.input) > position:
            value = self.flow.scope.constant(node.input[position]) if node.input[position] else None
            return None if value is None or value.dtype.kind != "i" else [int(each) for each in value.reshape(-1)]
        said = _attribute(node, attribute)
        return None if said is None else list(said.ints)

    def number(self, name: str, place: Place) -> Number | None:
        """The number ``name`` that the coordinate at ``place`` meets; None where it is not one."""
        tensor = self.flow.scope.tensor(name)
        if tensor is None:
            shape, home = self.shape(name), self.flow.scope.home(name)
            # onnxruntime folds what reads an initializer, even one that the session has another for.
            unread = home is not None and isinstance(home.definitions[name], onnx.TensorProto)
            return name if shape is not None and {*shape} <= {1} and not unread else None
        lengths = [1] * (self.rank(place) - len(tensor.dims)) + list(tensor.dims)
        if any(length != 1 for axis, length in enumerate(lengths) if axis != place.axis):
            return None
        row = numpy_helper.to_array(tensor).reshape(-1)
        index = 0 if len(row) == 1 else place.index
        return float(row[index]) if index < len(row) else None


#: What a rule answers: where the coordinate comes from, and what is done to it on the way.
Before = Place | tuple[Place, Step]
Rule = Callable[[_Walk, onnx.NodeProto, Place], Before | None]


def _place(before: Before) -> Place:
    return before if isinstance(before, Place) else before[0]


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    return next((each for each in node.attribute if each.name == name and not each.ref_attr_name), None)


def _axis(node: onnx.NodeProto, rank: int, default: int = 0) -> int | None:
    """The attribute ``axis`` of ``node``, counted from the front of ``rank`` axes; None where a caller says it."""
    if any(each.name == "axis" and each.ref_attr_name for each in node.attribute):
        return None
    said = _attribute(node, "axis")
    axis = default if said is None else int(said.i)
    return axis + rank if axis < 0 else axis


def _identity(walk: _Walk, node: onnx.NodeProto, place: Place) -> Place:
    return Place(node.input[0], place.axis, place.index)


def _transpose(walk: _Walk, node: onnx.NodeProto, place: Place) -> Place | None:
    said = _attribute(node, "perm")
    if said is None or len(said.ints) != walk.rank(place):  # the default turns all axes round
        return None
    others = [axis for at, axis in enumerate(said.ints) if at != place.axis]
    if others != sorted(others):
        return None
    return Place(node.input[0], None if place.axis is None else said.ints[place.axis], place.index)


def _unsqueeze(walk: _Walk, node: onnx.NodeProto, place: Place) -> Place | None:
    axes = walk.row(node, 1, "axes")
    if axes is None or place.axis is None or [axis % walk.rank(place) for axis in axes] != [place.axis]:
        return None
    return Place(node.input[0], None)


def _squeeze(walk: _Walk, node: onnx.NodeProto, place: Place) -> Place | None:
    axes = walk.row(node, 1, "axes")
    if axes is None or len(axes) != 1:
        return None
    return Place(node.input[0], axes[0] % (walk.rank(place) + 1))


def _concat(walk: _Walk, node: onnx.NodeProto, place: Place) -> Place | None:
    if place.axis is None or _axis(node, walk.rank(place)) != place.axis:
        return None
    index, shapes = place.index, [walk.shape(name) or () for name in node.input]
    # That all are alike is not looked at again of what is broadcast, nor of what is not taken.
    is_known = all(isinstance(length, int) for shape in shapes for length in shape)
    for name, shape in zip(node.input, shapes, strict=True):
        length = shape[place.axis] if len(shape) == walk.rank(place) else None
        if not isinstance(length, int) or (place.broadcasts and not is_known):
            return None
        if index < length:
            if not is_known:
                walk.unlike.setdefault(node.output[0], {*node.input}).discard(name)
            return Place(name, place.axis, index)
        index -= length
    return None


def _split(walk: _Walk, node: onnx.NodeProto, place: Place) -> Place | None:
    if place.axis is None or _axis(node, walk.rank(place)) != place.axis:
        return None
    index = place.index
    for name in node.output:
        if name == place.name:
            return Place(node.input[0], place.axis, index)
        shape = walk.shape(name) if name else None
        length = None if shape is None or len(shape) != walk.rank(place) else shape[place.axis]
        if not isinstance(length, int):
            return None
        index += length
    return None


def _gather(walk: _Walk, node: onnx.NodeProto, place: Place) -> Place | None:
    indices, shape = walk.flow.scope.constant(node.input[1]), walk.shape(node.input[0])
    if indices is None or shape is None or indices.ndim != (place.axis is not None) or indices.size <= place.index:
        return None
    axis = _axis(node, len(shape))
    if axis is None or not 0 <= axis < len(shape) or place.axis not in (None, axis):
        return None
    index, length = int(indices.reshape(-1)[place.index]), shape[axis]
    if index < 0 and isinstance(length, int):
        index += length
    return Place(node.input[0], axis, index)


def _slice(walk: _Walk, node: onnx.NodeProto, place: Place) -> Place | None:
    shape = walk.shape(node.input[0])
    starts, ends = walk.row(node, 1, "starts"), walk.row(node, 2, "ends")
    if shape is None or place.axis is None or starts is None or ends is None or len(shape) != walk.rank(place):
        return None
    axes = walk.row(node, 3, "axes") if len(node.input) > 3 or _attribute(node, "axes") else [*range(len(starts))]
    steps = walk.row(node, 4, "steps") if len(node.input) > 4 else [1] * len(starts)
    length = shape[place.axis]
    if axes is None or steps is None or not isinstance(length, int):
        return None
    if [axis % len(shape) for axis in axes] != [place.axis] or len(starts) != 1 or len(steps) != 1 or steps[0] < 1:
        return None
    taken = range(length)[starts[0] : ends[0] : steps[0]]
    return Place(node.input[0], place.axis, taken[place.index]) if place.index < len(taken) else None


def _arithmetic(walk: _Walk, node: onnx.NodeProto, place: Place) -> tuple[Place, Step] | None:
    for at in (1, 0):
        number = walk.number(node.input[at], place)
        shape = walk.shape(node.input[1 - at])
        if number is not None and shape is not None and len(shape) == walk.rank(place):
            is_one = place.axis is not None and shape[place.axis] == 1  # which all meet
            before = Place(node.input[1 - at], place.axis, 0 if is_one else place.index)
            return before, Step(node.op_type, number, first=at == 0)
    return None


def _pair(walk: _Walk, node: onnx.NodeProto, place: Place) -> tuple[Place, Step] | None:
    """As a rule, for arithmetic with another coordinate: None where more than a batch or a coordinate meets many."""
    shapes = [walk.shape(name) or () for name in node.input]
    if any(len(shape) != walk.rank(place) for shape in shapes):
        return None
    batch, places = 1 if place.axis == 0 else 0, []
    others = [pair for axis, pair in enumerate(zip(*shapes, strict=True)) if axis not in (place.axis, batch)]
    if any(isinstance(one, int) and isinstance(other, int) and one != other for one, other in others):
        return None
    # Of lengths that only a run knows, one may be 1 and be broadcast: symbols do not say that they are the same.
    lengths = [*others, (shapes[0][batch], shapes[1][batch])]
    broadcasts = place.broadcasts or any(one != other or not isinstance(one, int) for one, other in lengths)
    for name, shape in zip(node.input, shapes, strict=True):
        index = 0 if place.axis is None or shape[place.axis] == 1 else place.index
        places.append(Place(name, place.axis, index, broadcasts))
    if any(walk.length(each) is None for each in places):
        return None
    # The other is not followed back over pairs again.
    makers = [walk.flow.makers.get(name) for name in node.input]
    first = makers[0] is None or not is_op(walk.flow.nodes[makers[0]], _RULES)
    operand = walk.back(places[1 - first], pairs=False)
    return None if operand is None else (places[first], Step(node.op_type, operand, first))


_RULES: Mapping[str, Rule] = {
    "Identity": _identity,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Concat": _concat,
    "Split": _split,
    "Gather": _gather,
    "Slice": _slice,
    **dict.fromkeys(OPERATIONS, _arithmetic),
}


def absorb(model: onnx.ModelProto, native: OnnxruntimeProbe | None) -> dict[str, tuple[str, ...]]:
    """Make the grids of the compiled GridSamples in ``model`` part of these, where they are made right before them.

    Answers with the GridSamples' labels, and the names of the nodes that each took in. ``native`` is asked for types
    that onnx does not know.
    """
    absorbed: dict[str, tuple[str, ...]] = {}
    found, functions = scopes(model), {function_key(function) for function in model.functions}
    samples = {id(scope): list(_samples(scope, functions)) for scope in found}
    grids = {id(scope): [scope.container.node[i].input[1] for i in samples[id(scope)]] for scope in found}
    search = PixelGrids(found, grids)
    if all(len(values) == len(set(grids[scope])) for scope, values in search.values.items()):
        return {}  # nothing is right before any
    inference, names = Inference(model, found, native, search.values), Names(model)
    for scope in reversed(found):  # inner graphs first: a list of nodes that was rewritten holds copies
        replaced: dict[int, list[onnx.NodeProto]] = {}
        for index in samples[id(scope)]:
            sample = scope.container.node[index]
            pixels = search.found(scope, inference, sample.input[0], sample.input[1], {index})
            if pixels is not None:
                replaced[index] = list(_with(sample, pixels, names))
                replaced |= {at: [] for at in pixels.nodes}
                absorbed[label(sample)] = search.names(scope, pixels)
        rewrite(scope, replaced)
    return absorbed


def _samples(scope: Scope, functions: Collection[tuple[str, str, str]]) -> Iterator[int]:
    """The positions of the compiled GridSamples in ``scope``."""
    op_types = operator_types()
    for index, node in enumerate(scope):
        dialect = dialect_of(node, scope.opsets, functions) if node.op_type in op_types else None
        if dialect is not None and (dialect.name, dialect.operator) == (COMPILED, "GridSample") and len(node.input) > 1:
            yield index


def _with(sample: onnx.NodeProto, pixels: PixelGrid, names: Names) -> Iterator[onnx.NodeProto]:
    """The node that makes its grid itself, behind those that it needs."""
    sources, numbers = pixels.sources, pixels.numbers
    fed = names.new(f"{sample.output[0]}_numbers")
    if any(isinstance(each, str) for each in numbers):
        rows = []
        for number in numbers:
            rows.append(names.new(f"{fed}_row"))
            if isinstance(number, str):
                one = names.new(f"{fed}_one")
                yield constant(np.array([1], np.int64), one)
                yield helper.make_node("Reshape", [number, one], [rows[-1]])
            else:
                yield constant(np.array([number], pixels.type), rows[-1])
        yield helper.make_node("Concat", rows, [fed], axis=0)
    else:
        yield constant(np.array(numbers or [0], pixels.type), fed)
    node = onnx.NodeProto()
    node.CopyFrom(sample)
    node.op_type, node.domain = FROM_PIXELS, EXTENSIONS_DOMAIN
    del node.input[:]
    node.input.extend([sample.input[0], fed, *sources])
    said = [_said(each, sources) for each in pixels.coordinates]
    node.attribute.append(helper.make_attribute("coordinates", json.dumps(said)))
    node.attribute.append(helper.make_attribute("sources", json.dumps(sources)))
    yield node


def _said(coordinate: Coordinate, sources: Sequence[str]) -> list[Any]:
    """How the op is told of a coordinate: where it lies, and then its steps, with an operand that is no number."""
    place, steps = coordinate.place, list[Any]()
    for step in coordinate.steps:
        code = 2 * OPERATIONS.index(step.operation) + step.first
        steps.append([code, _said(step.operand, sources)] if isinstance(step.operand, Coordinate) else code)
    axis = -1 if place.axis is None else place.axis
    return [sources.index(place.name), axis, place.index, coordinate.length, *steps]


def read(coordinates: Any, sources: int) -> list[list[int]]:
    """What an op is told of the ``coordinates`` of so many ``sources``, and then of those that are operands, in rows.

    Raises:
        LookupError, TypeError, ValueError: that is not what a session writes.
    """
    r, records = len(coordinates), [list(row) for row in coordinates]
    for own in range(r):
        for at, step in enumerate(records[own][4:], 4):
            code, *operands = step if isinstance(step, list) else [step]
            if code not in range(PAIR) or len(operands) != isinstance(step, list):
                raise ValueError(step)
            records[own][at] = code + PAIR * len(operands)
            records += operands
    for number, (source, axis, index, length, *steps) in enumerate(records):
        fits = 0 <= source < sources <= MOST_SOURCES and -1 <= axis <= r + 1 and 0 <= index < length
        known = len(steps) <= MOST_STEPS and {*steps} <= {*range(PAIR if number >= r else 2 * PAIR)}
        if not (fits and known and all(type(each) is int for each in records[number])):
            raise ValueError(records[number])
    return records
