"""What computes the grid of a GridSample, and nothing else: found in a graph, to be fused into that node.

That is an AffineGrid; or arithmetic that makes coordinates of pixels, or of a flow and what it displaces; or nodes that
only rearrange coordinates. Each node on the way is stepped over by a rule of :data:`RULES`. An AffineGrid's grid is
followed as a whole, as its rank may be unknown; all else coordinate by coordinate, to where each is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx
from onnx import numpy_helper

from ..graph.element_types import type_of
from ..graph.scope import called
from ..graph.use_def import UseDef
from ..inference.types import Inference
from ..spec import newest
from .programs import MOST_SOURCES, MOST_STEPS, OPERATIONS, TYPES, Component, Program, Scalar, Step

if TYPE_CHECKING:
    from .matches import Match  # which imports this module


@dataclass(frozen=True)
class FusedGrid:
    """What computes the grid of a GridSample."""

    #: The positions of the nodes to fuse but for the AffineGrid, and of the Constants that they read.
    nodes: tuple[int, ...]
    names: tuple[str, ...]  #: the names of all nodes to fuse, in order
    type: str  #: the grid's element type; empty where it is that of an AffineGrid's theta
    affine_grid: Match | None = None  #: the AffineGrid, if it is one's grid
    programs: tuple[Program, ...] = ()  #: otherwise one for each coordinate, innermost axis first

    @property
    def sources(self) -> list[str]:
        """The values that the programs read."""
        programs = (each for program in self.programs for each in (program, *program.operands))
        return list(dict.fromkeys(each.component.name for each in programs))

    @property
    def scalars(self) -> list[Scalar]:
        """The scalar operands of the programs, in order."""
        return [scalar for program in self.programs for scalar in program.scalars]


def fused_grid(use_def: UseDef, sample: Match, inference: Inference, grids: Mapping[str, Match]) -> FusedGrid | None:
    """What can be fused into the GridSample ``sample`` in the scope of ``use_def``; None where nothing can.

    ``inference`` knows the values that lead to its grid by :data:`RULES`; ``grids`` are the scope's AffineGrids, by
    the names of their grids.
    """
    if sample.record.values["grid"] not in use_def.makers:
        return None
    return _affine_grid(use_def, sample, inference, grids) or _arithmetic_of(use_def, sample, inference)


def _affine_grid(use_def: UseDef, sample: Match, inference: Inference, grids: Mapping[str, Match]) -> FusedGrid | None:
    """The AffineGrid whose grid ``sample`` alone reads, and what lies between them."""
    walk, component = _Walk(use_def, inference), Component(sample.record.values["grid"], -1)  # any of its coordinates
    read = [component.name]
    while component.name not in grids:
        at = use_def.makers.get(component.name)
        if at is None or at in walk.nodes or not use_def.is_op(at, _OF_WHOLE_GRIDS):
            return None
        before = _OF_WHOLE_GRIDS[use_def.nodes[at].op_type](walk, use_def.nodes[at], component)
        if not isinstance(before, Component):
            return None
        component = before
        walk.nodes.add(at)
        read.append(component.name)
    affine_grid = grids[component.name]
    inside = {*walk.nodes, *_own(sample), *_own(affine_grid)}
    leaks = any(not use_def.scope.readers.get(name, set()) <= inside for name in read)
    if leaks or component.axis != -1 or sample.record.values["X"] in read:
        return None
    nodes = tuple(sorted(walk.nodes))
    names = affine_grid.record.name, *(called(use_def.nodes[index]) for index in nodes)
    return FusedGrid(nodes, names, walk.type, affine_grid)  # between them, no node reads a Constant


def _own(match: Match) -> set[int]:
    """The positions of all nodes that are replaced with ``match``."""
    return {match.index, *match.helpers, *match.part}


def _arithmetic_of(use_def: UseDef, sample: Match, inference: Inference) -> FusedGrid | None:
    """The arithmetic that computes the grid of ``sample`` from values of its type."""
    grid, X = sample.record.values["grid"], sample.record.values["X"]
    known = inference.known(sample.scope, grid)
    if known.type not in TYPES or known.shape is None or len(known.shape) < 3:
        return None
    r = len(known.shape) - 2
    if isinstance(known.shape[-1], int) and known.shape[-1] != r:
        return None
    kept: set[str] = set()
    pairs = bool(sample.record.types["X"])  # a node of several sources must declare its type
    while True:  # what other nodes read as well is not fused, and the search ends there
        walk = _Walk(use_def, inference, r + 2, kept)
        programs = [walk.back(Component(grid, r + 1, index), pairs) for index in range(r)]
        nodes = tuple(sorted(walk.nodes))
        names = tuple(called(use_def.nodes[index]) for index in nodes)
        constants = {use_def.makers.get(name, -1) for index in nodes for name in use_def.nodes[index].input}
        constants = {at for at in constants - {-1} if use_def.is_op(at, ("Constant",))}
        fused = FusedGrid((*nodes, *constants), names, known.type, programs=tuple(filter(None, programs)))
        if pairs and len(fused.sources) > MOST_SOURCES:
            pairs = False
            continue
        if not nodes or None in programs or len(fused.sources) > (MOST_SOURCES if sample.record.types["X"] else 1):
            return None
        inside, read = {*nodes, *_own(sample)}, {X, *fused.sources, *fused.scalars}
        outputs = [list(filter(None, use_def.nodes[index].output)) for index in nodes]
        leaking = {name for name, left in walk.unlike.items() if left}
        for names_of_one in outputs:
            if any(name in read or not use_def.scope.readers.get(name, set()) <= inside for name in names_of_one):
                leaking.update(names_of_one)
        if not leaking:
            return fused
        kept |= leaking


class _Walk:
    """Follows the coordinates of one grid back, not past the values ``kept``, and collects the nodes on the way.

    ``axes`` is the grid's number of axes; 0: not needed.
    ``unlike``: output of a Concat of shapes that only a run can tell to be alike -> those of its inputs not taken.
    ``type``: the one that a whole grid is cast to.
    """

    def __init__(self, use_def: UseDef, inference: Inference, axes: int = 0, kept: Collection[str] = ()) -> None:
        self.use_def, self.nodes, self.unlike, self.type = use_def, set[int](), dict[str, set[str]](), ""
        self._inference, self._axes, self._kept = inference, axes, kept

    def back(self, component: Component, pairs: bool) -> Program | None:
        """How the coordinate at ``component`` is computed; with ``pairs``, from other coordinates as well."""
        steps: list[Step] = []
        nodes = set[int]()
        while component.name not in self._kept and len(steps) < MOST_STEPS:
            at = self.use_def.makers.get(component.name)
            if at is None or at in nodes or not self.use_def.is_op(at, RULES):
                break  # in a model that is not valid, a node may come from itself
            node = self.use_def.nodes[at]
            before = RULES[node.op_type](self, node, component)
            if before is None and pairs and node.op_type in OPERATIONS:
                before = _pair(self, node, component)
            if before is None:
                break
            found, *step = before if isinstance(before, tuple) else (before,)
            if self.length(found) is None:
                break
            steps += step
            nodes.add(at)
            component = replace(found, broadcasts=True) if component.broadcasts else found
        self.nodes |= nodes
        length = self.length(component)
        return None if length is None else Program(component, length, tuple(reversed(steps)))

    def rank(self, component: Component) -> int:
        """The number of axes of the value that holds ``component``; 0 where unknown."""
        return self._axes and self._axes - (component.axis is None)

    def shape(self, name: str) -> tuple[int | str | None, ...] | None:
        """The shape of ``name``, as far as it is known."""
        return self._inference.known(self.use_def.scope, name).shape

    def along(self, component: Component, name: str) -> int | None:
        """The length of ``name`` along the axis of ``component``, if it has as many axes as what holds that."""
        shape = self.shape(name)
        if shape is None or len(shape) != self.rank(component):
            return None
        length = 1 if component.axis is None else shape[component.axis]
        return length if isinstance(length, int) else None

    def length(self, component: Component) -> int | None:
        """The length of the axis of ``component``; None where it cannot be one."""
        length = self.along(component, component.name)
        return length if length is not None and 0 <= component.index < length else None

    def integers(self, node: onnx.NodeProto, position: int, attribute: str) -> list[int] | None:
        """The integers of an input of ``node``, or of the attribute that older opsets have; None: not known."""
        if len(node.input) > position:
            value = self.use_def.scope.constant(node.input[position]) if node.input[position] else None
            return None if value is None or value.dtype.kind != "i" else [int(each) for each in value.ravel()]
        found = _attribute(node, attribute)
        return None if found is None else list(found.ints)

    def scalar(self, name: str, component: Component) -> Scalar | None:
        """The scalar that ``name`` is to ``component``, an operand of the same node; None where it is none."""
        tensor = self.use_def.scope.tensor(name)
        if tensor is None:
            shape, home = self.shape(name), self.use_def.scope.home(name)
            # onnxruntime folds what reads an initializer, even one that the session has another for.
            unread = home is not None and isinstance(home.definitions[name], onnx.TensorProto)
            return name if shape is not None and {*shape} <= {1} and not unread else None
        lengths = [1] * (self.rank(component) - len(tensor.dims)) + list(tensor.dims)
        if any(length != 1 for axis, length in enumerate(lengths) if axis != component.axis):
            return None
        row = numpy_helper.to_array(tensor).ravel()
        index = 0 if len(row) == 1 else component.index
        return float(row[index]) if index < len(row) else None


#: A rule's answer: where the coordinate comes from, and what the node does to it.
Before = Component | tuple[Component, Step]
Rule = Callable[[_Walk, onnx.NodeProto, Component], Before | None]


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    return next((each for each in node.attribute if each.name == name and not each.ref_attr_name), None)


def _axis(node: onnx.NodeProto, rank: int) -> int | None:
    """The attribute ``axis`` of ``node`` as an index from 0 to ``rank``; None where the function's caller sets it."""
    found = next((each for each in node.attribute if each.name == "axis"), onnx.AttributeProto())
    return None if found.ref_attr_name else int(found.i) + rank * (found.i < 0)


def _identity(walk: _Walk, node: onnx.NodeProto, component: Component) -> Component:
    return Component(node.input[0], component.axis, component.index)


def _transpose(walk: _Walk, node: onnx.NodeProto, component: Component) -> Component | None:
    perm, axis = _attribute(node, "perm"), component.axis
    if perm is None or walk.rank(component) not in (0, len(perm.ints)):  # the default reverses all axes
        return None
    others = list(perm.ints)
    if axis is not None:
        axis = others.pop(axis) - (len(perm.ints) if axis < 0 else 0)  # an axis from the end stays one
    return Component(node.input[0], axis, component.index) if others == sorted(others) else None


def _cast(walk: _Walk, node: onnx.NodeProto, component: Component) -> Component | None:
    to = _attribute(node, "to")
    cast_type = None if to is None else type_of(to.i)
    if cast_type is None or walk.type or cast_type not in newest("GridSample").types["grid"]:
        return None
    walk.type = cast_type
    return Component(node.input[0], component.axis, component.index)


def _unsqueeze(walk: _Walk, node: onnx.NodeProto, component: Component) -> Component | None:
    axes = walk.integers(node, 1, "axes")
    if axes is None or component.axis is None or [axis % walk.rank(component) for axis in axes] != [component.axis]:
        return None
    return Component(node.input[0], None)


def _squeeze(walk: _Walk, node: onnx.NodeProto, component: Component) -> Component | None:
    axes = walk.integers(node, 1, "axes")
    if axes is None or len(axes) != 1:
        return None
    return Component(node.input[0], axes[0] % (walk.rank(component) + 1))


def _concat(walk: _Walk, node: onnx.NodeProto, component: Component) -> Component | None:
    if component.axis is None or _axis(node, walk.rank(component)) != component.axis:
        return None
    index = component.index
    # That all are alike is not looked at again of what is broadcast, nor of what is not taken.
    is_known = all(isinstance(length, int) for name in node.input for length in walk.shape(name) or ())
    for name in node.input:
        length = walk.along(component, name)
        if length is None or (component.broadcasts and not is_known):
            return None
        if index < length:
            if not is_known:
                walk.unlike.setdefault(node.output[0], {*node.input}).discard(name)
            return Component(name, component.axis, index)
        index -= length
    return None


def _split(walk: _Walk, node: onnx.NodeProto, component: Component) -> Component | None:
    if component.axis is None or _axis(node, walk.rank(component)) != component.axis:
        return None
    before = [walk.along(component, name) for name in node.output[: list(node.output).index(component.name)]]
    if None in before:
        return None
    return Component(node.input[0], component.axis, component.index + sum(filter(None, before)))


def _gather(walk: _Walk, node: onnx.NodeProto, component: Component) -> Component | None:
    indices, shape = walk.use_def.scope.constant(node.input[1]), walk.shape(node.input[0])
    if indices is None or shape is None or indices.size <= component.index:
        return None
    axis = _axis(node, len(shape))
    if axis is None or not 0 <= axis < len(shape) or component.axis not in (None, axis):
        return None
    index, length = int(indices.ravel()[component.index]), shape[axis]
    if index < 0 and isinstance(length, int):
        index += length
    return Component(node.input[0], axis, index)


def _slice(walk: _Walk, node: onnx.NodeProto, component: Component) -> Component | None:
    length = walk.along(component, node.input[0])
    starts, ends = walk.integers(node, 1, "starts"), walk.integers(node, 2, "ends")
    axes = walk.integers(node, 3, "axes") if len(node.input) > 3 or _attribute(node, "axes") else [0]
    steps = walk.integers(node, 4, "steps") if len(node.input) > 4 else [1]
    if component.axis is None or length is None or not (starts and ends and axes and steps and steps[0] > 0):
        return None
    if [axis % walk.rank(component) for axis in axes] != [component.axis] or len(starts) != 1 or len(steps) != 1:
        return None
    taken = range(length)[starts[0] : ends[0] : steps[0]]
    return Component(node.input[0], component.axis, taken[component.index]) if component.index < len(taken) else None


def _arithmetic(walk: _Walk, node: onnx.NodeProto, component: Component) -> tuple[Component, Step] | None:
    for at in (1, 0):
        scalar = walk.scalar(node.input[at], component)
        length = walk.along(component, node.input[1 - at])
        if scalar is not None and length is not None:
            index = 0 if length == 1 else component.index  # broadcast to all
            return Component(node.input[1 - at], component.axis, index), Step(node.op_type, scalar, first=at == 0)
    return None


def _pair(walk: _Walk, node: onnx.NodeProto, component: Component) -> tuple[Component, Step] | None:
    """A rule for arithmetic with another coordinate; None where more than batches and coordinates are broadcast."""
    shapes = [walk.shape(name) or () for name in node.input]
    if any(len(shape) != walk.rank(component) for shape in shapes):
        return None
    batch, places = 1 if component.axis == 0 else 0, []
    others = [pair for axis, pair in enumerate(zip(*shapes, strict=True)) if axis not in (component.axis, batch)]
    if any(isinstance(one, int) and isinstance(other, int) and one != other for one, other in others):
        return None
    # Of lengths that only a run knows, one may be 1 and be broadcast: symbols do not say that they are the same.
    lengths = [*others, (shapes[0][batch], shapes[1][batch])]
    broadcasts = component.broadcasts or any(one != other or not isinstance(one, int) for one, other in lengths)
    for name, shape in zip(node.input, shapes, strict=True):
        index = 0 if component.axis is None or shape[component.axis] == 1 else component.index
        places.append(Component(name, component.axis, index, broadcasts))
    if any(walk.length(each) is None for each in places):
        return None
    # The other is not followed back over pairs again.
    makers = [walk.use_def.makers.get(name) for name in node.input]
    first = makers[0] is None or not walk.use_def.is_op(makers[0], RULES)
    operand = walk.back(places[1 - first], pairs=False)
    return None if operand is None else (places[first], Step(node.op_type, operand, first))


#: Operator -> the rule for what makes a coordinate.
RULES: Mapping[str, Rule] = {
    "Identity": _identity, "Transpose": _transpose, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Concat": _concat,
    "Split": _split, "Gather": _gather, "Slice": _slice, **dict.fromkeys(OPERATIONS, _arithmetic),
}  # fmt: skip

#: The rules for what stands between an AffineGrid and its GridSample, for any rank.
_OF_WHOLE_GRIDS: Mapping[str, Rule] = {"Identity": _identity, "Transpose": _transpose, "Cast": _cast}
