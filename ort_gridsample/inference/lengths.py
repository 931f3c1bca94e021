"""The lengths of axes as products: of numbers, and of other lengths that only a run knows.

They tell what a Reshape does to axes, also where an exporter computes its shape from the shapes of other values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import zip_longest
from operator import mul
from typing import NamedTuple

import onnx

from ..graph.use_def import UseDef
from .types import Inference

#: The most nodes that are followed to a length.
DEEPEST = 64


class Length(NamedTuple):
    """A product of a number and of unknown lengths, each an axis of a value."""

    number: int = 1
    unknown: tuple[tuple[str, int], ...] = ()

    def __mul__(self, other: Length) -> Length:  # type: ignore[override]
        return Length(self.number * other.number, tuple(sorted(self.unknown + other.unknown)))

    def over(self, other: Length) -> Length | None:
        """The quotient by the ``other``; None where that is no length."""
        left = list(self.unknown)
        for each in other.unknown:
            if each not in left:
                return None
            left.remove(each)
        whole = other.number and self.number % other.number == 0
        return Length(self.number // other.number, tuple(left)) if whole else None

    @property
    def known(self) -> int | None:
        """The number, where nothing else is multiplied."""
        return None if self.unknown else self.number


ONE = Length()
#: Lengths, or the elements of a row of integers, as far as they are known.
Row = Sequence[Length | None]


class Lengths:
    """The lengths of the values in the scope of ``use_def``, by ``inference`` and by the nodes that make them.

    ``samples`` are the outputs of GridSamples, however these are spelled, with their X and grid.
    """

    def __init__(self, use_def: UseDef, inference: Inference, samples: Mapping[str, tuple[str, str]]) -> None:
        self.use_def, self._inference, self._samples = use_def, inference, samples
        self._shapes: dict[str, tuple[Length, ...] | None] = {}
        self._depth = 0

    def shape(self, name: str) -> tuple[Length, ...] | None:
        """The lengths of the axes of ``name``; None where their number is not known."""
        if name not in self._shapes:
            self._shapes[name] = None  # in a model that is not valid, a value may come from itself
            known = self._inference.known(self.use_def.scope, name).shape
            if known is not None and all(isinstance(length, int) for length in known):
                made: Row | None = None
            elif name in self._samples:
                X, grid = map(self.shape, self._samples[name])
                made = None if X is None or grid is None else [*X[:2], *grid[1:-1]]
            else:
                made = self._from_maker(name, _SHAPES)
            if known is None and made is not None:
                known = (None,) * len(made)
            if known is not None:
                made = made if made is not None and len(made) == len(known) else [None] * len(known)
                self._shapes[name] = tuple(
                    Length(length) if isinstance(length, int) else each or Length(unknown=((name, axis),))
                    for axis, (length, each) in enumerate(zip(known, made, strict=True))
                )
        return self._shapes[name]

    def elements(self, name: str) -> Row | None:
        """The elements of the integers ``name``, of one axis or none; None where their number is not known."""
        constant = self.use_def.scope.constant(name) if name else None
        if constant is not None:
            integers = constant.ndim < 2 and constant.dtype.kind == "i"
            return [Length(int(each)) for each in constant.ravel()] if integers else None
        shape = self._inference.known(self.use_def.scope, name).shape
        if shape is None or len(shape) > 1:
            return None
        found = self._from_maker(name, _ELEMENTS)
        return [None] * shape[0] if found is None and shape and isinstance(shape[0], int) else found

    def numbers(self, node: onnx.NodeProto, position: int, attribute: str = "") -> list[int] | None:
        """The numbers of an input of ``node``, or of the ``attribute`` that older opsets have; None: not known."""
        if len(node.input) <= position:
            held = [list(each.ints) for each in node.attribute if each.name == attribute and not each.ref_attr_name]
            return held[0] if held else None
        row = self.elements(node.input[position])
        found = [None if each is None else each.known for each in row or [None]]
        return None if None in found else [each for each in found if each is not None]

    def _from_maker(self, name: str, rules: Mapping[str, _Rule]) -> Row | None:
        at = self.use_def.makers.get(name)
        if at is None or not self.use_def.is_op(at, rules) or self._depth > DEEPEST:
            return None
        self._depth += 1
        try:
            return rules[self.use_def.nodes[at].op_type](self, self.use_def.nodes[at], name)
        finally:
            self._depth -= 1


_Rule = Callable[[Lengths, onnx.NodeProto, str], "Row | None"]


def number(node: onnx.NodeProto, name: str, default: int) -> int:
    """The integer attribute ``name`` of ``node``."""
    return next((int(each.i) for each in node.attribute if each.name == name), default)


def permutation(node: onnx.NodeProto, rank: int) -> list[int]:
    """The axes of the input of a Transpose in the order of its output."""
    perm = next((list(each.ints) for each in node.attribute if each.name == "perm"), [])
    return perm if sorted(perm) == [*range(rank)] else [*range(rank)][::-1]


def product(lengths: Sequence[Length]) -> Length:
    """The product of all ``lengths``."""
    return reduce(mul, lengths, ONE)


def _broadcast(lengths: Lengths, node: onnx.NodeProto, name: str) -> Row | None:
    one, other = (lengths.shape(each) for each in node.input)
    if one is None or other is None:
        return None
    pairs = zip_longest(one[::-1], other[::-1], fillvalue=ONE)
    return [b if a == ONE else a if b in (ONE, a) else None for a, b in pairs][::-1]


def _transposed(lengths: Lengths, node: onnx.NodeProto, name: str) -> Row | None:
    before = lengths.shape(node.input[0])
    return None if before is None else [before[axis] for axis in permutation(node, len(before))]


def _reshaped(lengths: Lengths, node: onnx.NodeProto, name: str) -> Row | None:
    before, to = lengths.shape(node.input[0]), lengths.elements(node.input[1])
    if to is None:
        return None
    found, copies = list(to), not number(node, "allowzero", 0)
    for axis, each in enumerate(found):
        if each == Length(0) and copies:
            found[axis] = before[axis] if before is not None and axis < len(before) else None
    for axis in [axis for axis, each in enumerate(found) if each == Length(-1)]:
        left = None if before is None else product(before)
        for each in (*found[:axis], *found[axis + 1 :]):
            left = left and each and left.over(each)
        found[axis] = left
    return found


def _unsqueezed(lengths: Lengths, node: onnx.NodeProto, name: str) -> Row | None:
    before, axes = lengths.shape(node.input[0]), lengths.numbers(node, 1, "axes")
    if before is None or axes is None:
        return None
    left, rank = list(before), len(before) + len(axes)
    new = {axis % rank for axis in axes}
    return None if len(new) < len(axes) else [ONE if axis in new else left.pop(0) for axis in range(rank)]


def _dropped(lengths: Lengths, node: onnx.NodeProto, name: str) -> Row | None:
    """Of a Squeeze, and of a Gather of one index: all axes but its own."""
    before, axes = lengths.shape(node.input[0]), lengths.numbers(node, 1, "axes")
    if node.op_type == "Gather":
        index = lengths.use_def.scope.constant(node.input[1])
        axes = None if index is None or index.ndim else [number(node, "axis", 0)]
    if not before or axes is None:
        return None
    gone = {axis % len(before) for axis in axes}
    return [each for axis, each in enumerate(before) if axis not in gone]


def _cut(lengths: Lengths, node: onnx.NodeProto, name: str) -> list[Length | None] | None:
    """Of what changes one axis or some: the others."""
    before = lengths.shape(node.input[0])
    axes = lengths.numbers(node, 3) if node.op_type == "Slice" else [number(node, "axis", 0)]
    if not before or axes is None:
        return None
    changed = {axis % len(before) for axis in axes}
    return [None if axis in changed else each for axis, each in enumerate(before)]


def _concatenated(lengths: Lengths, node: onnx.NodeProto, name: str) -> Row | None:
    found = _cut(lengths, node, name)
    if found is not None:
        axis = number(node, "axis", 0) % len(found)
        known = [length.known for source in node.input for length in (lengths.shape(source) or ())[axis : axis + 1]]
        if None not in known and len(known) == len(node.input):
            found[axis] = Length(sum(length or 0 for length in known))
    return found


def _split(lengths: Lengths, node: onnx.NodeProto, name: str) -> Row | None:
    found, each = _cut(lengths, node, name), lengths.numbers(node, 1, "split") or []
    if found is not None and len(each) == len(node.output):
        found[number(node, "axis", 0) % len(found)] = Length(each[list(node.output).index(name)])
    return found


_SHAPES: Mapping[str, _Rule] = {
    **dict.fromkeys(("Identity", "Cast", "Softmax"), lambda lengths, node, name: lengths.shape(node.input[0])),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _broadcast),
    "Slice": _cut, "Split": _split, "Concat": _concatenated, "Transpose": _transposed, "Reshape": _reshaped,
    "Unsqueeze": _unsqueezed, **dict.fromkeys(("Squeeze", "Gather"), _dropped),
}  # fmt: skip


#: What leaves the elements of a row as they are.
_LAYOUT = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze")


def _shape_of(lengths: Lengths, node: onnx.NodeProto, name: str) -> Row | None:
    shape = lengths.shape(node.input[0])
    return None if shape is None else shape[number(node, "start", 0) : number(node, "end", len(shape))]


def _gathered(lengths: Lengths, node: onnx.NodeProto, name: str) -> Row | None:
    row, indices = lengths.elements(node.input[0]), lengths.numbers(node, 1)
    if row is None or indices is None or not all(-len(row) <= index < len(row) for index in indices):
        return None
    return [row[index] for index in indices]


def _sliced(lengths: Lengths, node: onnx.NodeProto, name: str) -> Row | None:
    row = lengths.elements(node.input[0])
    starts, ends = lengths.numbers(node, 1), lengths.numbers(node, 2)
    steps = lengths.numbers(node, 4) if len(node.input) > 4 else [1]
    return row[starts[0] : ends[0] : steps[0]] if row is not None and starts and ends and steps and steps[0] else None


def _joined(lengths: Lengths, node: onnx.NodeProto, name: str) -> Row | None:
    rows = [lengths.elements(each) for each in node.input]
    return None if None in rows else [each for row in rows for each in row or ()]


def _times(lengths: Lengths, node: onnx.NodeProto, name: str) -> Row | None:
    one, other = (lengths.elements(each) for each in node.input)
    if one is None or other is None or len(one) != len(other):
        return None
    return [None if a is None or b is None else a * b for a, b in zip(one, other, strict=True)]


_ELEMENTS: Mapping[str, _Rule] = {
    **dict.fromkeys(_LAYOUT, lambda lengths, node, name: lengths.elements(node.input[0])),
    "Shape": _shape_of, "Gather": _gathered, "Slice": _sliced, "Concat": _joined, "Mul": _times,
}  # fmt: skip
#: The operators that lead to lengths.
OPERATORS = _SHAPES.keys() | _ELEMENTS.keys()
