"""The use-def chains of a scope, and its subgraphs that compute one value from a few others.

Subgraphs are found by following values, never by names. Which operator a subgraph computes is
tested in :mod:`ort_gridsample.detection.decomposed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

import onnx

from .scope import NO_MAKER, Scope, domain_of

#: Operators that rearrange, repeat or cast the elements of their first input.
LAYOUT = frozenset(
    (
        "Cast",
        "Expand",
        "Flatten",
        "Identity",
        "Pad",
        "Reshape",
        "Slice",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    )
)
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
#: From the strongest dependency to the weakest.
_DEPENDENCIES: tuple[Dependency, ...] = ("data", "shape", "constant")


@dataclass(frozen=True)
class Subgraph:
    """Nodes that compute one value from a few others.

    Attributes:
        output: the value.
        inputs: the values that it is computed from.
        shapes: other values of which only the shapes are read.
        nodes: the indices of the nodes, in order.
        constants: the constants that the nodes read.
    """

    output: str
    inputs: tuple[str, ...]
    shapes: tuple[str, ...]
    nodes: tuple[int, ...]
    constants: tuple[str, ...]


class UseDef:
    """The use-def chains of ``scope``: which node makes a value, and which nodes read it."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.nodes = scope.nodes
        self.makers = scope.makers
        self._dependencies: dict[str, Dependency] = {}

    def is_op(self, index: int, op_types: Collection[str]) -> bool:
        """Whether the node at an index is one of ONNX's operators ``op_types``.

        If it is, it has an output and, unless it is a Constant, an input.
        """
        scope = self.scope
        if scope.op_types[index] not in op_types:
            return False
        if scope.domains != {""} and domain_of(self.nodes[index].domain):
            return False
        outputs = scope.outputs[index]
        if not outputs or not outputs[0]:
            return False
        inputs = scope.inputs[index]
        return scope.op_types[index] == "Constant" or bool(inputs and inputs[0])

    def backward_closure(
        self,
        names: Iterable[str],
        op_types: Collection[str],
        any_domain_types: Collection[str] = (),
    ) -> Iterator[str]:
        """Yield ``names``, and all values that they may be computed from.

        Args:
            names: values.
            op_types: the ONNX operators that are followed.
            any_domain_types: the types of nodes, in any domain, that are followed as well.
        """
        pending = list(dict.fromkeys(names))
        seen = set(pending)
        for name in pending:  # grows while it is iterated
            yield name
            maker = self.makers.get(name)
            if maker is None:
                continue
            is_of_any_domain = self.scope.op_types[maker] in any_domain_types
            if self.is_op(maker, op_types) or is_of_any_domain:
                values = (*self.scope.inputs[maker], *self.scope.outputs[maker])
                pending += dict.fromkeys(value for value in values if value and value not in seen)
                seen.update(values)

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
                dependencies, unknown = self._input_dependencies(index)
                if unknown and "data" not in dependencies:
                    pending.append(unknown[0])
                    continue
                strongest_first = (value for value in _DEPENDENCIES if value in dependencies)
                dependency = next(strongest_first, "constant")
            self._dependencies[pending.pop()] = dependency
        return self._dependencies[name]

    def _input_dependencies(self, index: int) -> tuple[set[Dependency], list[str]]:
        """Return the known dependencies of a node's inputs, and the inputs without a known one."""
        dependencies = set[Dependency]()
        unknown = []
        for name in self.scope.inputs[index]:
            if not name:
                continue
            if self.makers.get(name, NO_MAKER) >= index:
                # The model is not valid: the value is made after it is read.
                dependencies.add("data")
            elif name in self._dependencies:
                dependencies.add(self._dependencies[name])
            else:
                unknown.append(name)
        return dependencies, unknown

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
        """Yield values through which alone ``output`` depends on other data, nearest first.

        Args:
            output: a value.
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
        shapes = dict[str, None]()
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
            reads_shape = self.is_op(maker, _SHAPES) and read[0] not in seen
            if reads_shape and self.dependency(read[0]) == "data":
                # Only the shape of this value is read, unless it is computed from the inputs.
                derived = self._derived(inputs) if derived is None else derived
                if read[0] not in derived:
                    shapes[read[0]] = None
                    continue
            pending += filter(None, read)
        if not set(inputs) <= {name for index in nodes for name in self.scope.inputs[index]}:
            return None
        outer_shapes = tuple(name for name in shapes if name not in inputs)
        return Subgraph(
            output,
            tuple(inputs),
            outer_shapes,
            tuple(sorted(nodes)),
            tuple(constants),
        )

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


def unread_nodes(
    use_def: UseDef,
    replaced: Collection[int],
    read: Collection[str],
    candidates: Collection[int],
) -> set[int]:
    """Return the nodes that are not read after others are replaced.

    Args:
        use_def: the use-def chains of the scope.
        replaced: the indices of the nodes that are replaced.
        read: the values that their replacements read.
        candidates: the indices of the nodes to return, if they are not read.
    """
    gone = set(replaced)
    for index in sorted(set(candidates) - gone, reverse=True):
        outputs = [name for name in use_def.scope.outputs[index] if name]
        readers = use_def.scope.readers
        if all(name not in read and readers.get(name, set()) <= gone for name in outputs):
            gone.add(index)
    return gone - set(replaced)


def drop_initializers(scope: Scope, names: Collection[str]) -> None:
    """Drop initializers of ``scope`` that are not read, except those that can be fed.

    Args:
        scope: the scope.
        names: the names of values that are not read.
    """
    if not names or not isinstance(scope.container, onnx.GraphProto):
        return
    initializers = scope.container.initializer
    unread = [index for index, tensor in enumerate(initializers) if tensor.name in names]
    if not unread:
        return
    fed = {value.name for value in scope.container.input}
    for index in reversed(unread):
        if initializers[index].name not in fed:
            del initializers[index]
