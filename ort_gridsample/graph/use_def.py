"""Use-def chains of one list of nodes, and its subgraphs that compute one value from a few others.

They are found by following values, never by names; which operator a subgraph computes is tried in :mod:`.decomposed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

import onnx

from .scope import OUTSIDE, Scope, domain_of

#: Operators that move the elements of their first input.
LAYOUT = frozenset(
    ("Cast", "Expand", "Flatten", "Identity", "Pad", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")
)

#: Operators of which a chain is linear in one input.
LINEAR = LAYOUT | {"Add", "Concat", "MatMul", "Mul", "ReduceSum", "Sub", "Sum", "Where"}
#: Operators for coordinates, indices, weights and shapes: deterministic, and without side effects.
ARITHMETIC = LINEAR | {
    *("Abs", "And", "BitwiseAnd", "Ceil", "Clip", "Constant", "ConstantOfShape", "Div", "Equal", "Floor", "Gather"),
    *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Neg", "Not", "Or", "Pow", "Range"),
    *("Reciprocal", "ReduceProd", "Round", "Shape", "Sign", "Size", "Split", "Sqrt", "Xor"),
}

GATHERS = ("Gather", "GatherElements", "GatherND")
ROUNDINGS = ("Floor", "Round")
#: The operators in a subgraph, those that rearrange values, and those between a rounding and the indices it makes.
_IN_SUBGRAPHS, _MOVES = ARITHMETIC.union(GATHERS), LAYOUT | {"Concat"}
_BEHIND_ROUNDINGS = ARITHMETIC - {*ROUNDINGS, "Shape", "Size"}
#: The most nodes of a subgraph, and the most values that are tried as its output, or as one of its inputs.
MOST_NODES, MOST_ENDS = 4096, 20
#: The dependencies of a value: the model alone, the shapes of inputs as well, or their values.
Kind = Literal["constant", "shape", "data"]
_KINDS: tuple[Kind, ...] = "data", "shape", "constant"


@dataclass(frozen=True)
class Subgraph:
    """Nodes, by their positions in order, that compute ``output`` from ``inputs``, ``constants`` and shapes.

    Of the values ``shapes`` they read the shapes alone.
    """

    output: str
    inputs: tuple[str, ...]
    shapes: tuple[str, ...]
    nodes: tuple[int, ...]
    constants: tuple[str, ...]


class UseDef:
    """The use-def chains of ``scope``: which node makes a value, and which read it."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.nodes, self.makers = scope, scope.nodes, scope.makers
        self._kinds: dict[str, Kind] = {}

    def is_op(self, index: int, op_types: Collection[str]) -> bool:
        """Whether the node at a position is one of ONNX's operators ``op_types``.

        It has an output then and, unless it is a Constant, an input.
        """
        scope = self.scope
        if scope.op_types[index] not in op_types or (scope.domains != {""} and domain_of(self.nodes[index].domain)):
            return False
        made, read = scope.outputs[index], scope.inputs[index]
        return bool(made and made[0] and (scope.op_types[index] == "Constant" or (read and read[0])))

    def led_from(self, names: Iterable[str], op_types: Collection[str], others: Collection[str] = ()) -> Iterator[str]:
        """``names``, and all values that nodes of these types, or of ``others`` in any domain, may make them of."""
        todo = list(dict.fromkeys(names))
        seen = set(todo)
        for name in todo:  # grows while it is walked
            yield name
            maker = self.makers.get(name)
            if maker is not None and (self.is_op(maker, op_types) or self.scope.op_types[maker] in others):
                more = (*self.scope.inputs[maker], *self.scope.outputs[maker])
                todo += dict.fromkeys(each for each in more if each and each not in seen)
                seen.update(more)

    def kind(self, name: str) -> Kind:
        """The dependencies of the value ``name``."""
        todo = [] if name in self._kinds else [name]
        while todo:  # no recursion, however long the chain of nodes
            index = self.makers.get(todo[-1])
            if index is None:
                kind: Kind = "data" if self.scope.held(todo[-1]) is None else "constant"
            elif not self.is_op(index, ARITHMETIC):
                kind = "data"
            elif self.scope.op_types[index] in ("Shape", "Size"):
                kind = "shape"
            else:
                read = [each for each in self.scope.inputs[index] if each]
                # What a node reads before another makes it, in a model that is not valid, is data.
                kinds = [self._kinds.get(each) if self.makers.get(each, OUTSIDE) < index else "data" for each in read]
                if None in kinds and "data" not in kinds:
                    todo.append(read[kinds.index(None)])
                    continue
                kind = next((each for each in _KINDS if each in kinds), "constant")
            self._kinds[todo.pop()] = kind
        return self._kinds[name]

    def indices(self, node: onnx.NodeProto) -> frozenset[int]:
        """The positions of the roundings that the indices of a Gather come from; empty if they depend on other data."""
        found = set()
        for count, name in enumerate(self.led_from(node.input[1:2], _BEHIND_ROUNDINGS)):
            maker = self.makers.get(name)
            if maker is None:
                if self.kind(name) == "data":
                    return frozenset()
            elif count > MOST_NODES or not self.is_op(maker, ARITHMETIC):
                return frozenset()
            elif self.scope.op_types[maker] in ROUNDINGS:
                found.add(maker)
        return frozenset(found)

    def behind(self, name: str) -> list[str]:
        """``name``, and the values of which it is a rearrangement, nearest first."""
        found = [name]
        while len(found) < MOST_ENDS:
            maker = self.makers.get(found[-1])
            if maker is None or not self.is_op(maker, _MOVES):
                break
            read = self.scope.inputs[maker]
            data = [each for each in read if each and self.kind(each) == "data"] or [read[0]]
            if self.scope.op_types[maker] == "Concat" and len(data) > 1:
                break
            found.append(data[0])
        return found

    def post_dominators(self, starts: Collection[int]) -> Iterator[str]:
        """Post-dominators of the nodes ``starts`` along linear operators, nearest first."""
        waiting, open_ = set(starts), Counter[str]()
        known, todo = set(starts), sorted(starts)
        while todo:
            index = heappop(todo)
            read = {name for name in self.scope.inputs[index] if name in open_}
            if index in waiting:
                waiting.discard(index)
            elif not read:
                continue
            elif not self.is_op(index, LINEAR):
                return
            for name in read:
                open_[name] -= 1
                if not open_[name]:
                    del open_[name]
            readers = self.scope.readers.get(output := self.scope.outputs[index][0], set())
            for reader in readers - known:
                if reader > index:
                    known.add(reader)
                    heappush(todo, reader)
            open_[output] = len(readers)
            if not waiting and len(open_) == 1:
                yield output
            if not open_[output]:
                return

    def dominators(self, output: str, gathers: Collection[int], needed: Collection[int]) -> Iterator[str]:
        """Values that ``output`` depends on through nothing else, nearest first.

        ``gathers`` are the positions of nodes whose first input does not count, ``needed`` of those that lie between.
        """
        left, waiting = {output}, {*gathers, *needed}
        for _ in range(MOST_NODES):
            if not waiting and len(left) == 1:
                yield next(iter(left))
            name = max(left, key=lambda each: self.makers.get(each, OUTSIDE), default="")
            maker = self.makers.get(name)
            if maker is None or not (maker in gathers or self.is_op(maker, ARITHMETIC)):
                return
            left.difference_update(self.scope.outputs[maker])
            left.update(n for n in self.scope.inputs[maker][maker in gathers :] if n and self.kind(n) == "data")
            waiting.discard(maker)

    def subgraph(self, output: str, inputs: Sequence[str]) -> Subgraph | None:
        """The subgraph from ``inputs`` to ``output``; None where it depends on other values as well."""
        derived: set[str] | None = None
        nodes, shapes, constants = set[int](), dict[str, None](), dict[str, None]()
        seen, todo = set(inputs), [output]
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            maker = self.makers.get(name)
            if maker is None:
                if self.kind(name) != "constant":
                    return None
                constants[name] = None
                continue
            if len(nodes) > MOST_NODES or not self.is_op(maker, _IN_SUBGRAPHS):
                return None
            nodes.add(maker)
            read = self.scope.inputs[maker]
            if self.is_op(maker, ("Shape", "Size")) and read[0] not in seen and self.kind(read[0]) == "data":
                derived = self._derived(inputs) if derived is None else derived
                if read[0] not in derived:
                    shapes[read[0]] = None
                    continue
            todo += filter(None, read)
        if not set(inputs) <= {name for index in nodes for name in self.scope.inputs[index]}:
            return None
        outer = [name for name in shapes if name not in inputs]
        return Subgraph(output, tuple(inputs), tuple(outer), tuple(sorted(nodes)), tuple(constants))

    def _derived(self, inputs: Sequence[str]) -> set[str]:
        """``inputs``, and the values that are computed from them by arithmetic."""
        derived = set(inputs)
        first = min((self.makers.get(name, 0) for name in inputs), default=0)
        for index in range(first, len(self.nodes)):
            if self.is_op(index, _IN_SUBGRAPHS) and not derived.isdisjoint(self.scope.inputs[index]):
                derived.update(self.scope.outputs[index])
        return derived

    def leaks(self, subgraph: Subgraph, inside: AbstractSet[int]) -> bool:
        """Whether a node outside ``inside`` reads data of ``subgraph`` besides its output."""
        made = (name for at in subgraph.nodes for name in self.scope.outputs[at] if name and name != subgraph.output)
        return any(self.kind(name) == "data" and not self.scope.readers.get(name, set()) <= inside for name in made)


def dead(use_def: UseDef, replaced: Collection[int], read: Collection[str], candidates: Collection[int]) -> set[int]:
    """The nodes among ``candidates`` that nobody reads once others, which read ``read``, replace ``replaced``."""
    gone = set(replaced)
    for index in sorted(set(candidates) - gone, reverse=True):
        outputs = [name for name in use_def.scope.outputs[index] if name]
        if all(name not in read and use_def.scope.readers.get(name, set()) <= gone for name in outputs):
            gone.add(index)
    return gone - set(replaced)


def drop_unread(scope: Scope, names: Collection[str]) -> None:
    """Drop the initializers of ``scope`` among ``names``, which nobody reads, unless somebody may feed them."""
    held = scope.container.initializer if names and isinstance(scope.container, onnx.GraphProto) else []
    if unread := [at for at, tensor in enumerate(held) if tensor.name in names]:
        fed = {value.name for value in scope.container.input}
        for index in reversed([at for at in unread if held[at].name not in fed]):
            del held[index]
