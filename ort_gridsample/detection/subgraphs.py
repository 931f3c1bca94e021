"""The search for subgraphs that compute one value from a few others.

Subgraphs are found by following values, never by names. :mod:`.decomposed` tests which operator a
subgraph computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

import onnx

from ..graph.scope import NO_MAKER, Scope
from ..graph.use_def import UseDef
from ..inference.views import LAYOUT_OPERATORS

#: Operators that rearrange, repeat or cast the elements of their first input.
LAYOUT = LAYOUT_OPERATORS.keys() - {"Concat", "Gather", "Split"} | {"Cast", "Pad", "Tile"}
#: Operators that are linear in one input while the others are fixed, as is a chain of them.
LINEAR = LAYOUT | {"Add", "Concat", "MatMul", "Mul", "ReduceSum", "Sub", "Sum", "Where"}
#: Operators for coordinates, indices, weights and shapes: deterministic, without side effects.
ARITHMETIC = LINEAR | {
    "Abs",
    "And",
    "BitwiseAnd",
    "Ceil",
    "Clip",
    "Constant",
    "ConstantOfShape",
    "Div",
    "Equal",
    "Floor",
    "Gather",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Min",
    "Mod",
    "Neg",
    "Not",
    "Or",
    "Pow",
    "Range",
    "Reciprocal",
    "ReduceProd",
    "Round",
    "Shape",
    "Sign",
    "Sin",
    "Size",
    "Split",
    "Sqrt",
    "Xor",
}

GATHERS = ("Gather", "GatherElements", "GatherND")
ROUNDINGS = ("Floor", "Round")
#: Operators whose output depends on the shape of their input only.
_SHAPES = ("Shape", "Size")
#: The operators in a subgraph.
_IN_SUBGRAPHS = ARITHMETIC.union(GATHERS)
#: The operators that rearrange values.
_REARRANGING = LAYOUT | {"Concat"}
#: The operators between a rounding and the indices that come from it.
_AFTER_ROUNDINGS = ARITHMETIC - {*ROUNDINGS, *_SHAPES}
#: The maximum number of nodes of a subgraph.
MAX_NODES = 4096
#: The maximum number of values that are tried as an output, or as one input, of a subgraph.
MAX_CANDIDATES = 20
#: What a value depends on: on the model only, also on the shapes of inputs, or on their values.
Dependency = Literal["constant", "shape", "data"]


@dataclass(frozen=True)
class Subgraph:
    """Nodes that compute one value from a few others.

    Attributes:
        output: the value.
        inputs: the values that it is computed from.
        shape_sources: other values of which only the shapes are read.
        nodes: the indices of the nodes, in order.
        constants: the constants that the nodes read.
    """

    output: str
    inputs: tuple[str, ...]
    shape_sources: tuple[str, ...]
    nodes: tuple[int, ...]
    constants: tuple[str, ...]


class SubgraphSearch(UseDef):
    """The use-def chains of ``scope``, and the search for its subgraphs."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self._dependencies: dict[str, Dependency] = {}

    def dependency(self, name: str) -> Dependency:
        """Return what the value ``name`` depends on."""
        # A stack, because a chain of nodes can be longer than Python's limit of recursion.
        pending = [] if name in self._dependencies else [name]
        while pending:
            index = self.makers.get(pending[-1])
            if index is None:
                is_known = self.scope.find_constant(pending[-1]) is not None
                dependency: Dependency = "constant" if is_known else "data"
            elif not self.is_op(index, ARITHMETIC):
                dependency = "data"
            elif self.scope.op_types[index] in _SHAPES:
                dependency = "shape"
            else:
                dependency, unknown = self._strongest_dependency(index)
                if unknown and dependency != "data":
                    pending.append(unknown)
                    continue
            self._dependencies[pending.pop()] = dependency
        return self._dependencies[name]

    def _strongest_dependency(self, index: int) -> tuple[Dependency, str]:
        """Return the strongest known dependency of a node's inputs.

        The second value is the first input without a known dependency, or "".
        """
        strongest: Dependency = "constant"
        unknown = ""
        for name in self.scope.inputs[index]:
            if not name:
                continue
            dependency = self._dependencies.get(name)
            # In an invalid model, a value may be made after it is read.
            if dependency == "data" or self.makers.get(name, NO_MAKER) >= index:
                return "data", unknown
            if dependency is None:
                unknown = unknown or name
            elif dependency == "shape":
                strongest = dependency
        return strongest, unknown

    def roundings_of_indices(self, gather: onnx.NodeProto) -> frozenset[int]:
        """Return the indices of the roundings that the indices of ``gather`` come from.

        The result is empty if the indices depend on other data.
        """
        roundings = set()
        sources = self.backward_closure(gather.input[1:2], _AFTER_ROUNDINGS)
        for count, name in enumerate(sources):
            maker = self.makers.get(name)
            if maker is None:
                if self.dependency(name) == "data":
                    return frozenset()
            elif count > MAX_NODES or not self.is_op(maker, ARITHMETIC):
                return frozenset()
            elif self.scope.op_types[maker] in ROUNDINGS:
                roundings.add(maker)
        return frozenset(roundings)

    def trace_layout(self, name: str) -> list[str]:
        """Return ``name`` and the values that it is a rearrangement of, nearest first."""
        values = [name]
        while len(values) < MAX_CANDIDATES:
            maker = self.makers.get(values[-1])
            if maker is None or not self.is_op(maker, _REARRANGING):
                break
            inputs = self.scope.inputs[maker]
            data = [value for value in inputs if value and self.dependency(value) == "data"]
            if self.scope.op_types[maker] == "Concat" and len(data) > 1:
                break
            values.append(data[0] if data else inputs[0])
        return values

    def post_dominators(self, starts: Collection[int]) -> Iterator[str]:
        """Yield post-dominators of the nodes ``starts`` along linear operators, nearest first.

        A value is a post-dominator if everything that depends on the starts is computed from it.
        """
        unvisited_starts = set(starts)
        # A value that depends on the starts -> the number of its readers that were not visited.
        unvisited_readers = Counter[str]()
        queued = set(starts)
        queue = sorted(starts)  # a heap: nodes are visited in their order
        while queue:
            index = heappop(queue)
            read = {name for name in self.scope.inputs[index] if name in unvisited_readers}
            if index in unvisited_starts:
                unvisited_starts.discard(index)
            elif not read:
                continue
            elif not self.is_op(index, LINEAR):
                return
            for name in read:
                unvisited_readers[name] -= 1
                if not unvisited_readers[name]:
                    del unvisited_readers[name]
            output = self.scope.outputs[index][0]
            readers = self.scope.readers.get(output, set())
            for reader in readers - queued:
                if reader > index:
                    queued.add(reader)
                    heappush(queue, reader)
            unvisited_readers[output] = len(readers)
            # If nothing else waits for a reader, all that depends on the starts is in this output.
            if not unvisited_starts and len(unvisited_readers) == 1:
                yield output
            if not unvisited_readers[output]:
                return

    def dominators(
        self,
        output: str,
        gathers: Collection[int],
        needed: Collection[int],
    ) -> Iterator[str]:
        """Yield values that are the only data from which ``output`` is computed, nearest first.

        Args:
            gathers: the indices of nodes whose first input is ignored.
            needed: the indices of nodes that lie between a value and ``output``.
        """
        # The values that are not yet replaced by the inputs of their makers.
        frontier = {output}
        unvisited = {*gathers, *needed}
        for _ in range(MAX_NODES):
            if not unvisited and len(frontier) == 1:
                yield next(iter(frontier))
            # The value of the last maker: no other value of the frontier is computed from it.
            last = max(frontier, key=lambda name: self.makers.get(name, NO_MAKER), default="")
            maker = self.makers.get(last)
            if maker is None or not (maker in gathers or self.is_op(maker, ARITHMETIC)):
                return
            frontier.difference_update(self.scope.outputs[maker])
            inputs = self.scope.inputs[maker]
            if maker in gathers:
                inputs = inputs[1:]
            frontier.update(name for name in inputs if name and self.dependency(name) == "data")
            unvisited.discard(maker)

    def subgraph(self, output: str, inputs: Sequence[str]) -> Subgraph | None:
        """Return the subgraph from ``inputs`` to ``output``; None if it reads other values."""
        derived: set[str] | None = None
        nodes = set[int]()
        shape_sources = dict[str, None]()
        constants = dict[str, None]()
        seen = set(inputs)
        pending = [output]
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            maker = self.makers.get(name)
            if maker is None:
                if self.dependency(name) != "constant":
                    return None
                constants[name] = None
                continue
            if len(nodes) > MAX_NODES or not self.is_op(maker, _IN_SUBGRAPHS):
                return None
            nodes.add(maker)
            read = self.scope.inputs[maker]
            if self._reads_only_shape(maker, seen):
                # Only the shape of this value is read, unless it is computed from the inputs.
                derived = self._derived(inputs) if derived is None else derived
                if read[0] not in derived:
                    shape_sources[read[0]] = None
                    continue
            pending += filter(None, read)
        if not set(inputs) <= {name for index in nodes for name in self.scope.inputs[index]}:
            return None
        outer_sources = tuple(name for name in shape_sources if name not in inputs)
        return Subgraph(
            output,
            tuple(inputs),
            outer_sources,
            tuple(sorted(nodes)),
            tuple(constants),
        )

    def _reads_only_shape(self, index: int, seen: AbstractSet[str]) -> bool:
        """Whether a node reads the shape of data, and these data are not yet in the subgraph."""
        if not self.is_op(index, _SHAPES):
            return False
        name = self.scope.inputs[index][0]
        return name not in seen and self.dependency(name) == "data"

    def _derived(self, inputs: Sequence[str]) -> set[str]:
        """Return ``inputs`` and the values that are computed from them by arithmetic."""
        derived = set(inputs)
        first = min((self.makers.get(name, 0) for name in inputs), default=0)
        for index in range(first, len(self.nodes)):
            reads_derived = not derived.isdisjoint(self.scope.inputs[index])
            if reads_derived and self.is_op(index, _IN_SUBGRAPHS):
                derived.update(self.scope.outputs[index])
        return derived

    def is_read_outside(self, subgraph: Subgraph, inside: AbstractSet[int]) -> bool:
        """Whether a node outside ``inside`` reads data of ``subgraph`` other than its output."""
        for index in subgraph.nodes:
            for name in self.scope.outputs[index]:
                if not name or name == subgraph.output or self.dependency(name) != "data":
                    continue
                if not self.scope.readers.get(name, set()) <= inside:
                    return True
        return False
