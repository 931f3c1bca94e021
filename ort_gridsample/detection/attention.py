"""Deformable attention, found in a graph: a sum over samples of several images at several points, times weights.

Exporters write it as a GridSample for each level, whose samples are stacked, multiplied and summed. From there the
values, locations and weights are followed back over the nodes that turn them round, as far as :mod:`.lengths` tell
that these put no axis in another's place. The result says where each lies as
:func:`ort_gridsample.deformable_attention` takes it; what does not lie so, a target makes of what the samples read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from ..dialects.registry import operator_types
from ..graph.scope import OUTSIDE
from ..graph.use_def import MAX_NODES, UseDef, unread_nodes
from ..inference.lengths import ONE, OPERATORS, Length, Lengths, number, permutation, product
from ..inference.types import Inference
from ..spec import FLOATS
from .helpers import is_check

if TYPE_CHECKING:
    from .matches import Match  # which imports this module
    from .records import NodeRecord

#: The first opset in which the targets can write what they need.
LEAST_OPSET = 13
#: The operators that rearrange, and all that may lie in what is looked at.
_VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_INSIDE = OPERATORS | {*_VIEWS, "ReduceSum"}
#: The operators between a sample and the sum in a quantized model.
_BEFORE_SUMS = {*_VIEWS, "Concat", "DequantizeLinear", "Mul", "QuantizeLinear"}
_OF_SHAPES = OPERATORS - {"Add", "Div", "Softmax", "Split", "Sub", "Transpose"} | {"Constant"}


@dataclass(frozen=True)
class Attention:
    """Deformable attention, and where its operands lie; empty names where they do not lie as they should."""

    samples: tuple[Match, ...]  #: the GridSamples, one for each level
    output: str  #: the value that it computes: (B, Q, H·D) or, if not ``is_turned``, (B·H, D, Q)
    is_turned: bool
    #: The positions of the nodes from the samples to the output, without samples that somebody else reads too.
    path: frozenset[int]
    nodes: frozenset[int]  #: theirs, and those of the nodes that lead to the operands, and to shapes
    heads: int  #: H; 1 where the images are not followed to a value of several heads
    channels: int  #: D
    points: tuple[int, ...]  #: those on each level
    lengths: tuple[tuple[Length, ...], ...]  #: those of each level
    #: For each level a value whose elements, from the third on, are its lengths; empty where there is none.
    shapes: tuple[str, ...]
    value: str  #: (B, S, H, D), or (B, S, H·D)
    value_axes: int
    locations: str  #: (B, Q, H, P, r) or (B, Q, H, L, P, r)
    weights: str  #: (B, Q, H, P) or (B, Q, H, L, P) or, if not ``is_by_head``, (B·H, 1, Q, P)
    is_by_head: bool
    is_per_query: bool  #: whether there are weights for each query; else they may be of one query for all
    #: Of each other level what the sum has of it, (B·H, D, Q, …), and the places of its points among those of the
    #: weights; these are not by head then, nor is the output turned.
    others: tuple[tuple[str, range], ...] = ()

    @property
    def axes(self) -> int:
        """The spatial axes."""
        return len(self.lengths[0])


def _is_attended(record: NodeRecord) -> bool:
    """Whether a GridSample samples as deformable attention does: linearly, 0 outside, and floats."""
    fits = (record.mode, record.padding_mode) == ("linear", "zeros") and record.align_corners in (0, 1)
    return fits and set() < {*record.types["X"]} <= {*FLOATS}


def attentions(use_def: UseDef, samples: Mapping[str, Match], inference: Inference) -> Iterator[Attention]:
    """The deformable attention in the scope of ``use_def``, of the GridSamples ``samples``, by their outputs.

    ``inference`` says what is known of :func:`read_values`.
    """
    attended = {name: each for name, each in samples.items() if _is_attended(each.record)}
    read = {name: (each.record.values["X"], each.record.values["grid"]) for name, each in samples.items()}
    lengths = Lengths(use_def, inference, read)
    for index in _sums(use_def) if attended else ():
        node = use_def.nodes[index]
        if lengths.numbers(node, 1) in ([-1], [3]) and number(node, "keepdims", 1) == 0:
            either = (_Walk(lengths, index, attended).attention(at) for at in (0, 1))
            yield from islice(filter(None, either), 1)


def quantization_between(use_def: UseDef, sample: NodeRecord) -> str:
    """The name of a QuantizeLinear for which a GridSample is not taken for a part of deformable attention.

    It lies between the ``sample`` and a sum of products that would be deformable attention's. Empty if there is none.
    """
    if not _is_attended(sample):
        return ""
    todo = [(sample.output, False, "")]  # a value, whether it is multiplied already, and the QuantizeLinear before it
    seen = {sample.output}
    for name, is_product, quantizing in todo:  # grows while it is walked
        for reader in sorted(use_def.scope.readers.get(name, set()) - {OUTSIDE}):
            op_type = use_def.scope.op_types[reader]
            if op_type == "ReduceSum" and is_product and quantizing:
                return quantizing
            if not use_def.is_op(reader, _BEFORE_SUMS):
                continue
            output = use_def.scope.outputs[reader][0]
            if output not in seen and len(seen) < MAX_NODES:
                seen.add(output)
                node_name = use_def.nodes[reader].name or f"({output})"
                first = quantizing or (node_name if op_type == "QuantizeLinear" else "")
                todo.append((output, is_product or op_type == "Mul", first))
    return ""


def _sums(use_def: UseDef) -> Iterator[int]:
    """The positions of sums of products, in an opset in which they can be written as one."""
    is_new = use_def.scope.opsets.get("", 0) >= LEAST_OPSET
    for index, op_type in enumerate(use_def.scope.op_types):
        if op_type == "ReduceSum" and is_new and use_def.is_op(index, (op_type,)):
            maker = use_def.makers.get(use_def.scope.inputs[index][0])
            if maker is not None and use_def.is_op(maker, ("Mul",)) and len(use_def.scope.inputs[maker]) == 2:
                yield index


def read_values(use_def: UseDef) -> Iterator[str]:
    """The values around sums of products that may be looked at, whose types must be known."""
    sums = [use_def.nodes[index] for index in _sums(use_def)]
    yield from use_def.backward_closure([node.input[0] for node in sums], _INSIDE, operator_types())
    for node in sums:
        yield node.output[0]
        for at in _moving(use_def, node.output[0]):
            yield from (use_def.scope.outputs[at][0], *use_def.scope.inputs[at][1:2])


def _moving(use_def: UseDef, name: str) -> Iterator[int]:
    """The positions of the nodes that rearrange ``name`` one after another, where no others read that."""
    at, readers = OUTSIDE, use_def.scope.readers.get(name, set())
    # In a model that is not valid, a value may come from itself.
    while len(readers) == 1 and min(readers) > at and use_def.is_op(min(readers), ("Identity", "Reshape", "Transpose")):
        (at,) = readers
        yield at
        readers = use_def.scope.readers.get(use_def.scope.outputs[at][0], set())


@dataclass(eq=False)
class _Factor:
    """A factor of the length of an axis, or the whole; once it is split, its outer and its inner part."""

    length: Length
    parts: tuple[_Factor, ...] = ()


#: For each axis of a value the factors of its length, outer ones first.
_Axes = list[list[_Factor]]


def _leaves(factors: Sequence[_Factor]) -> list[_Factor]:
    """The ``factors``, those that are split by their parts; without those of length 1."""
    found: list[_Factor] = []
    for each in factors:
        found += _leaves(each.parts) if each.parts else [each] if each.length != ONE else []
    return found


def _flat(axes: Sequence[Sequence[_Factor]]) -> list[_Factor]:
    return [factor for axis in axes for factor in axis]


def _same(one: Sequence[_Factor], other: Sequence[_Factor]) -> bool:
    return _leaves(one) == _leaves(other)


def _number(factors: Sequence[_Factor]) -> int | None:
    """The product of ``factors``, where it is a known number."""
    return product([each.length for each in _leaves(factors)]).known


def _regrouped(axes: _Axes, lengths: Sequence[Length] | None) -> _Axes | None:
    """The elements of ``axes`` in their order, as axes of other ``lengths``; None where that cannot be told."""
    if lengths is None:
        return None
    left, todo = _leaves(_flat(axes)), list(lengths)
    inner, outer = found = _Axes(), _Axes()
    for end, axes in zip((-1, 0), found, strict=True):
        while todo and (taken := _taken(left, todo[end], end)) is not None:
            axes.append(taken)
            todo.pop(end)
    if len(todo) > 1 or (left and not todo):
        return None
    return [*outer, *([left] if todo else []), *inner[::-1]]  # one axis that is not known has what the others leave


def _taken(left: list[_Factor], length: Length, end: int) -> list[_Factor] | None:
    """Take factors of a ``length`` from the inner (-1) or outer (0) ``end`` of those ``left``; None: there are none."""
    rest, factors, group = length, list(left), list[_Factor]()
    while rest != ONE:
        if not factors:
            return None
        factor = factors.pop(end)
        over = rest.over(factor.length)
        if over is None:
            other = factor.length.over(rest)
            if other is None:
                return None
            factor.parts = (_Factor(other), _Factor(rest)) if end else (_Factor(rest), _Factor(other))
            factors.insert(len(factors) if end else 0, factor.parts[1 + end])
            factor, over = factor.parts[-end], ONE
        group.insert(0 if end else len(group), factor)
        rest = over
    left[:] = factors
    return group


class _Place(NamedTuple):
    """Where the images, grids or weights of a level lie: the value ``name`` and its ``axes``.

    ``cut``: the factors that list the level's own pixels or points, or those of all levels once it is a ``piece``.
    ``piece``: the number of the level among those of the value, and how many these are; or of a Slice where it begins.
    ``is_unit``: whether 2 x - 1 makes a grid of it; None: it lies between these two steps.
    """

    name: str
    axes: _Axes
    cut: list[_Factor]
    piece: tuple[int, int] | None = None
    is_unit: bool | None = False


class _Walk:
    """Follows the sum of products that the node at position ``index`` computes."""

    def __init__(self, lengths: Lengths, index: int, samples: Mapping[str, Match]) -> None:
        self._lengths, self._use_def, self._index, self._samples = lengths, lengths.use_def, index, samples
        self._nodes = {index}

    def attention(self, at: int) -> Attention | None:
        """The deformable attention, if input ``at`` of the product is the samples and the other the weights."""
        total = self._use_def.nodes[self._index]
        product_ = self._use_def.makers[total.input[0]]
        sampled, weights = (self._use_def.nodes[product_].input[i] for i in (at, 1 - at))
        shape, by = self._lengths.shape(sampled), self._lengths.shape(weights)
        if shape is None or by is None or len(shape) != 4 or len(by) != 4 or by[1] != ONE or by[3] != shape[3]:
            return None
        self._nodes.add(product_)
        self._n, self._d, self._q, self._p = ([_Factor(length)] for length in shape)
        joined = self._levels(_Place(sampled, [self._n, self._d, self._q, self._p], self._p))
        late, levels = set(self._nodes), [each for each in joined if self._is_sample(each)]
        levels = [each for each in levels if self._kind(each) == self._kind(levels[0])]
        others = [each for each in joined if each not in levels]
        channels, points = shape[1].known, [_number(level.cut) for level in joined]
        if not channels or not levels or None in points or not all(map(self._is_other, others)):
            return None
        ends = [*accumulate((count or 0 for count in points), initial=0)]
        places = {id(each): range(*pair) for each, pair in zip(joined, pairwise(ends), strict=True)}
        counts = [len(places[id(level)]) for level in levels]
        samples = tuple(self._samples[level.name] for level in levels)
        lengths = tuple((self._lengths.shape(each.record.values["X"]) or ())[2:] for each in samples)
        sampling = {at for each in samples for at in (each.index, *each.helpers, *each.part)}
        images, grids = self._read(levels, lengths)
        value = self._common(images, [product(each).known for each in lengths], self._is_value)
        self._inner = [] if value is None else _leaves(self._n)[len(_leaves(value.axes[0])) :]
        heads = _number(self._inner)
        if not heads:
            return None
        locations = self._common(grids, counts, self._is_location)
        # Of one query, or where a run may find one, the weights' lengths are their own.
        start = _Place(weights, [[_Factor(by[0])], [], [_Factor(by[2])], self._p], self._p)
        fits = partial(self._is_weight, start.axes, heads)
        by_head = [] if others else [each.name for each in self._places(start, fits)]
        if by[0] != shape[0] and by[0].number < 2 and not (by_head and heads > 1):
            return None  # there may be one for all
        output, turned = (total.output[0], set[int]()) if others else self._output(total.output[0])
        names = ["" if each is None else each.name for each in (value, locations)]
        read = [*names, by_head[-1] if by_head else weights]
        path = self._private(sampling, late | turned, output, read)
        if path is None:
            return None
        return Attention(
            samples, output, bool(turned), frozenset(path), frozenset(self._nodes), heads, channels,
            tuple(counts), lengths, tuple(self._shape(each.record.values["X"]) for each in samples),
            read[0], 0 if value is None else len(value.axes), read[1], read[2], bool(by_head), by[2] == shape[2],
            tuple((each.name, places[id(each)]) for each in others),
        )  # fmt: skip

    def _kind(self, level: _Place) -> tuple[object, ...]:
        """What samples of one op have in common."""
        record = self._samples[level.name].record
        return len(self._lengths.shape(record.values["X"]) or ()), record.align_corners

    def _is_sample(self, level: _Place) -> bool:
        """Whether the axes of a sample are those of the sum: batches and heads, channels, queries and points."""
        sample = self._samples.get(level.name)
        if sample is None or len(level.axes) != len(self._lengths.shape(sample.record.values["X"]) or ()):
            return False
        n, d, *positions = level.axes
        return _same(n, self._n) and _same(d, self._d) and _same(_flat(positions), self._q + level.cut)

    def _is_other(self, level: _Place) -> bool:
        """Whether the axes of another value are (B·H, D, Q, …)."""
        n, d, q, *points = level.axes if len(level.axes) > 3 else ([], [], [])
        return all(map(_same, (n, d, q, _flat(points)), (self._n, self._d, self._q, level.cut)))

    def _read(self, levels: Sequence[_Place], lengths: Sequence[Sequence[Length]]) -> tuple[list[_Place], list[_Place]]:
        """What the samples read as X, and as grids."""
        images, grids = list[_Place](), list[_Place]()
        for level, each in zip(levels, lengths, strict=True):
            (n, d, *positions), values = level.axes, self._samples[level.name].record.values
            pixels = [[_Factor(length)] for length in each]
            images.append(_Place(values["X"], [n, d, *pixels], _flat(pixels)))
            grids.append(level._replace(name=values["grid"], axes=[n, *positions, [_Factor(Length(len(each)))]]))
        return images, grids

    def _shape(self, name: str) -> str:
        """The value that says the shape of ``name``, where a Reshape makes it and reads its lengths as they are."""
        at = self._use_def.makers.get(name)
        if at is None or not self._use_def.is_op(at, ("Reshape",)):
            return ""
        shape = self._use_def.nodes[at].input[1]
        lengths = (self._lengths.elements(shape) or [None])[2:]
        return shape if lengths and all(each and each.number > 0 for each in lengths) else ""

    def _levels(self, place: _Place) -> list[_Place]:
        """What ``place`` has of all levels: samples, or what is joined with them."""
        start, nodes = place, {*self._nodes}
        while place.name not in self._samples:
            at = self._use_def.makers.get(place.name)
            if at is not None and (joined := [*self._joined(at, place)]):
                self._nodes.add(at)
                return [level for each in joined for level in self._levels(each)]
            before = None if at is None else self._viewed(at, place)
            if before is None:
                self._nodes = nodes
                return [start]
            place = before
        return [place]

    def _joined(self, at: int, place: _Place) -> Iterator[_Place]:
        """What a Concat of all levels joins: each as a new axis, or in the axis of the points."""
        if not self._use_def.is_op(at, ("Concat",)):
            return
        node = self._use_def.nodes[at]
        axis, last = number(node, "axis", 0) % len(place.axes), len(place.axes) - 1
        shapes = [(self._lengths.shape(name) or ())[axis : axis + 1] for name in node.input]
        if axis == last and _same(place.axes[last], self._p):
            for name, length in zip(node.input, shapes, strict=True):
                points = [_Factor(each) for each in length]
                yield place._replace(name=name, axes=[*place.axes[:-1], points], cut=points)
        elif _same(place.axes[axis] + place.axes[last], self._p) and all(length == (ONE,) for length in shapes):
            axes = [[] if at == axis else each for at, each in enumerate(place.axes)]
            yield from (place._replace(name=name, axes=axes, cut=place.axes[last]) for name in node.input)

    def _private(self, samples: Set[int], late: Set[int], output: str, read: Collection[str]) -> set[int] | None:
        """The nodes of the ``samples`` and ``late`` ones, behind them to ``output``, that nobody else reads.

        None where somebody reads what a late one makes. What nobody reads in the end does not count.
        """
        self._nodes |= samples | late
        read_here = [name for at in self._nodes for name in self._use_def.scope.inputs[at]]
        # What computes the shapes of those that rearrange, and Constants.
        makers = map(self._use_def.makers.get, self._use_def.backward_closure(read_here, _OF_SHAPES))
        self._nodes |= {at for at in makers if at is not None and self._use_def.is_op(at, _OF_SHAPES)}
        unread = unread_nodes(self._use_def, late | samples, {output, *read}, self._nodes)
        made = (name for at in late for name in self._use_def.scope.outputs[at] if name and name != output)
        if not all(self._use_def.scope.readers.get(name, set()) <= late | samples | unread for name in made):
            return None
        return {*late, *unread_nodes(self._use_def, late | unread, {output, *read}, samples)}

    def _common(
        self, levels: Sequence[_Place], counts: Sequence[int | None], fits: Callable[[_Place], bool]
    ) -> _Place | None:
        """The first's place in the one value, as far back as there is one, whose pieces in order ``levels`` are."""
        found = [{each.name: each for each in self._places(level, fits)} for level in levels]
        *starts, end = accumulate((count or 0 for count in counts), initial=0)  # of their pixels or points
        ordered = [(number_, len(levels)) for number_ in range(len(levels))]
        good = [ordered, [None]] if len(levels) == 1 else [ordered]
        for name in reversed(found[0]):
            pieces = [each[name].piece for each in found if name in each]
            sliced = pieces == [(start, -1) for start in starts] and None not in counts
            if pieces in good or (sliced and _number(found[0][name].cut) == end):
                return found[0][name]
        return None

    def _places(self, place: _Place | None, fits: Callable[[_Place], bool]) -> Iterator[_Place]:
        """``place``, and where it comes from, nearest first, as far as these places fit."""
        while place is not None:
            if fits(place):
                yield place
            at = self._use_def.makers.get(place.name)
            place = None if at is None else self._viewed(at, place) or self._piece(at, place) or self._scaled(at, place)

    def _viewed(self, at: int, place: _Place) -> _Place | None:
        """Where the ``place`` comes from, if the node ``at`` a position only rearranges."""
        if not self._use_def.is_op(at, _VIEWS):
            return None
        name = self._use_def.scope.inputs[at][0]
        if self._is_checked(at):
            return None
        if self._use_def.makers.get(name, OUTSIDE) >= at:  # in a model that is not valid, it may come from itself
            return None
        if self._use_def.scope.op_types[at] == "Transpose":
            order = permutation(self._use_def.nodes[at], len(place.axes))
            axes: _Axes | None = [place.axes[order.index(axis)] for axis in range(len(order))]
        else:
            axes = _regrouped(place.axes, self._lengths.shape(name))
        if axes is None:
            return None
        self._nodes.add(at)
        return place._replace(name=name, axes=axes)

    def _is_checked(self, at: int) -> bool:
        """Whether the node at this position lets a value through that has the shape of a node's contract."""
        shape = self._use_def.scope.inputs[at][1:2]
        maker = self._use_def.makers.get(shape[0]) if shape else None
        return maker is not None and is_check(self._use_def.nodes[maker])

    def _piece(self, at: int, place: _Place) -> _Place | None:
        """Where the ``place`` comes from, if the node ``at`` a position takes one level out of all."""
        if place.piece is not None or not self._use_def.is_op(at, ("Gather", "Slice", "Split")):
            return None
        node = self._use_def.nodes[at]
        before, axes = self._lengths.shape(node.input[0]), list(place.axes)
        if not before:
            return None
        if node.op_type == "Gather":
            index, axis = self._use_def.scope.constant(node.input[1]), number(node, "axis", 0) % len(before)
            count = before[axis].known
            if index is None or index.ndim or count is None or len(before) != len(axes) + 1:
                return None
            axes.insert(axis, [_Factor(before[axis])])
            piece, cut = (int(index) % count, count), place.cut
        else:
            if node.op_type == "Split":
                axis, piece = number(node, "axis", 0), (list(node.output).index(place.name), len(node.output))
            else:
                changed, starts = (self._lengths.numbers(node, at) for at in (3, 1))
                steps = self._lengths.numbers(node, 4) if len(node.input) > 4 else [1]
                if not changed or not starts or starts[0] < 0 or len(changed) != 1 or steps != [1]:
                    return None
                axis, piece = changed[0], (starts[0], -1)
            axis %= len(axes)
            if not _same(axes[axis], place.cut):
                return None
            axes[axis] = cut = [_Factor(before[axis])]
        self._nodes.add(at)
        return place._replace(name=node.input[0], axes=axes, cut=cut, piece=piece)

    def _scaled(self, at: int, place: _Place) -> _Place | None:
        """Where the ``place`` comes from, if the node ``at`` a position is a step of 2 x - 1."""
        step = {False: ("Sub", 1), None: ("Mul", 2)}.get(place.is_unit)
        if step is None or not self._use_def.is_op(at, step[:1]):
            return None
        node = self._use_def.nodes[at]
        for x, other in ((0, 1), (1, 0))[: 1 if node.op_type == "Sub" else 2]:
            tensor = self._use_def.scope.constant(node.input[other])
            if tensor is not None and tensor.size == 1 and tensor.ndim <= len(place.axes) and tensor.item() == step[1]:
                self._nodes.add(at)
                return place._replace(name=node.input[x], is_unit=None if place.is_unit is False else True)
        return None

    def _is_value(self, place: _Place) -> bool:
        """Whether it is (B, S, H, D), or (B, S, H·D)."""
        axes = place.axes
        fits = len(axes) in (3, 4) and place.is_unit is False and _same(axes[1], place.cut)
        fits = fits and _same([*axes[0], *_flat(axes[2:])], self._n + self._d)
        return fits and (len(axes) == 3 or _same(axes[3], self._d))

    def _is_location(self, place: _Place) -> bool:
        """Whether it is (B, Q, H, P, r), or (B, Q, H, L, P, r)."""
        axes = place.axes
        fits = len(axes) in (5, 6) and place.is_unit is True and self._is_by_query(axes)
        return fits and _same(axes[2], self._inner) and _same(axes[-2], place.cut)

    def _is_weight(self, own: _Axes, heads: int, place: _Place) -> bool:
        """Whether it is (B, Q, H, P), or (B, Q, H, L, P), if its ``own`` axes are (B·H, 1, Q, P)."""
        axes = place.axes
        fits = len(axes) in (4, 5) and place.is_unit is False and _same(_flat(axes[3:]), self._p)
        return fits and _number(axes[2]) == heads and _same(axes[0] + axes[2], own[0]) and _same(axes[1], own[2])

    def _is_by_query(self, axes: _Axes) -> bool:
        return _same(axes[0] + self._inner, self._n) and _same(axes[1], self._q)

    def _output(self, name: str) -> tuple[str, set[int]]:
        """The value (B, Q, H·D) that the sum becomes, and the nodes that turn it so; itself where it becomes none."""
        axes, nodes = [self._n, self._d, self._q], set[int]()
        for at in _moving(self._use_def, name):
            node = self._use_def.nodes[at]
            if node.op_type == "Transpose":
                axes = [axes[axis] for axis in permutation(node, len(axes))]
            elif node.op_type == "Reshape":
                regrouped = _regrouped(axes, self._lengths.shape(node.output[0]))
                if regrouped is None:
                    break
                axes = regrouped
            nodes.add(at)
            if len(axes) == 3 and self._is_by_query(axes) and _same(axes[2], self._inner + self._d):
                return node.output[0], nodes
        return name, set()
