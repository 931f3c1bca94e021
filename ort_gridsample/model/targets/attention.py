"""Deformable attention as one node: this package's compiled op or Python op, or TensorRT's plugin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import helper

from ..attention import Attention
from ..dialects import ATTENTION, COMPILED_DOMAIN, PLUGINS
from ..element_types import elem_type
from ..graphs import Names, Nodes
from ..matches import Match
from . import Replacement, Target, renamed
from .compiled_op import label
from .python_op import PythonOp


class _Whole(Target):
    """What the targets have in common; the GridSamples go."""

    reads_decomposed, fuses = False, True

    def takes(self, match: Match) -> bool:
        return match.attention is not None or match.read_by is not None

    def needs_inlining(self, match: Match) -> bool:
        return match.scope.function is not None  # where types are not known

    def replace(self, match: Match, names: Names) -> Replacement:
        if match.attention is None:
            return Replacement([])
        nodes = _Nodes(match, match.attention, names)
        self.write(match, match.attention, nodes, names)
        return Replacement([*nodes, *nodes.after])

    def write(self, match: Match, found: Attention, nodes: _Nodes, names: Names) -> None:
        """Add the nodes that compute ``nodes.output`` from the operands."""
        raise NotImplementedError


class CompiledAttention(_Whole):
    """The compiled op."""

    def write(self, match: Match, found: Attention, nodes: _Nodes, names: Names) -> None:
        node = renamed(match.node, ATTENTION, COMPILED_DOMAIN, nodes.operands(), [nodes.output])
        named = {"align_corners": match.record.align_corners, "node": label(match.node) or match.record.label}
        # By which the node is read back, where nothing else says how many there are.
        named["points"] = " ".join(map(str, found.points))
        node.attribute.extend(helper.make_attribute(*each) for each in named.items())
        nodes.append(node)


class PythonAttention(_Whole):
    """The Python op, with the helpers that it needs."""

    def __init__(self, in_session: bool = False) -> None:
        self._op = PythonOp(in_session)

    def write(self, match: Match, found: Attention, nodes: _Nodes, names: Names) -> None:
        values = dict(zip(match.record.values, nodes.operands(), strict=True))
        record = replace(match.record, values=values, output=nodes.output)
        nodes += self._op.replace(replace(match, record=record), names).nodes


class TensorRTPlugins(_Whole):
    """The plugin of TensorRT, for images of two axes with as many points on each level; the others stay as they are."""

    name = PLUGINS.name

    def takes(self, match: Match) -> bool:
        record, found = match.record, match.attention
        fits = found is not None and found.axes == 2 and len({*found.points}) == 1
        return fits and record.align_corners == 0 and "levels" in record.constants

    def write(self, match: Match, found: Attention, nodes: _Nodes, names: Names) -> None:
        lengths = match.record.constants["levels"][:, 1:].astype(np.int32)
        areas = lengths.prod(1, dtype=np.int32)
        each = len(found.points), found.points[0]
        images = [nodes.value(), nodes.constant(lengths), nodes.constant(np.cumsum(areas, dtype=np.int32) - areas)]
        locations = nodes.add("Reshape", nodes.locations(), nodes.row(0, 0, 0, *each, 2))
        weights = nodes.add("Reshape", nodes.weights(), nodes.row(0, 0, 0, *each))
        by_head, width = names.new(f"{nodes.output}_by_head"), nodes.row(0, 0, found.heads * found.channels)
        nodes.append(renamed(match.node, PLUGINS.op_type, PLUGINS.domain, [*images, locations, weights], [by_head]))
        nodes.add("Reshape", by_head, width, output=nodes.output)


class _Nodes(Nodes):
    """Makes the operands of deformable attention where they do not lie in the graph, and of its output what was there.

    Attributes:
        output: the name of the output (B, Q, H·D).
        after: the nodes that make of it the value that was there.
    """

    def __init__(self, match: Match, found: Attention, names: Names) -> None:
        super().__init__(names, match.record.output)
        self._match, self._found, self.after = match, found, Nodes(names, match.record.output)
        self.output = match.record.output
        if not found.is_turned:
            self.output = names.new(f"{match.record.output}_by_query")
            split = self.after.add("Reshape", self.output, self.row(0, 0, found.heads, found.channels))
            turned = self.after.add("Transpose", split, perm=[0, 2, 3, 1])
            flat = self.after.add("Flatten", turned, axis=2)  # (B·H, D·Q)
            whole = "" if found.others else match.record.output
            whole = self.after.add("Reshape", flat, self.row(0, found.channels, -1), output=whole)
            if found.others:
                self._add_others(whole)

    def _add_others(self, name: str) -> None:
        """Make of a sum over some levels that over all."""
        others, after = self._found.others, self.after
        parts = [after.add("Reshape", other, self.row(0, 0, 0, len(points))) for other, points in others]
        by = self._of_points(after, [at for _, points in others for at in points])
        product = after.add("Mul", after.add("Concat", *parts, axis=3), by)
        rest = after.add("ReduceSum", product, self.row(-1), keepdims=0)
        after.add("Add", name, rest, output=self._match.record.output)

    def _of_points(self, nodes: Nodes, points: list[int]) -> str:
        """The weights of some points, not by head."""
        return nodes.add("Gather", self._found.weights, self.row(*points), axis=3)

    def operands(self) -> list[str]:
        """All of them."""
        return [self.value(), self.levels(), self.locations(), self.weights()]

    def value(self) -> str:
        """(B, S, H, D)."""
        found = self._found
        if found.value_axes == 4:
            return found.value
        if found.value:
            return self.add("Reshape", found.value, self.row(0, 0, found.heads, found.channels))
        images = [self.add("Reshape", each.record.values["X"], self.row(0, 0, -1)) for each in found.samples]
        turned = self.add("Transpose", self._joined(images, 2), perm=[0, 2, 1])
        return self.add("Unsqueeze", turned, self.row(2))

    def levels(self) -> str:
        """(L, 1 + r), the points and the lengths of each level."""
        known = self._match.record.constants.get("levels")
        if known is not None:
            return self.constant(known)
        rows = []
        for sample, points, shape in zip(self._found.samples, self._found.points, self._found.shapes, strict=True):
            lengths = self.row(*range(2, 2 + self._found.axes))
            row = self.add("Gather", shape or self.add("Shape", sample.record.values["X"]), lengths)
            rows.append(self._joined([self.row(points), row], 0))
        return self.add("Reshape", self._joined(rows, 0), self.row(len(rows), -1))

    def locations(self) -> str:
        """(B, Q, H, L, P, r) or (B, Q, H, P, r)."""
        found = self._found
        if found.locations:
            return found.locations
        r = found.axes
        each = ((s.record.values["grid"], points) for s, points in zip(found.samples, found.points, strict=True))
        grids = [self.add("Reshape", grid, self.row(0, -1, points, r)) for grid, points in each]
        # In halves, locations would lose too much.
        kind = np.dtype("float64" if "float64" in self._match.record.types["sampling_locations"] else "float32")
        grid = self.add("Cast", self._joined(grids, 2), to=elem_type(kind.name))
        half = self.constant(np.array(0.5, kind))
        unit = self.add("Add", self.add("Mul", grid, half), half)
        by_head = self._by_head(unit, [1, 0, 2, 3], sum(found.points) * r)
        return self.add("Reshape", by_head, self.row(0, 0, 0, sum(found.points), r))

    def weights(self) -> str:
        """(B, Q, H, L, P) or (B, Q, H, P)."""
        found = self._found
        if found.is_by_head:
            return found.weights
        others = {at for _, points in found.others for at in points}
        own = [at for at in range(sum(found.points) + len(others)) if at not in others]
        weights = self._of_points(self, own) if others else found.weights
        return self._by_head(weights, [2, 0, 1, 3], sum(found.points))

    def _by_head(self, name: str, perm: list[int], size: int) -> str:
        """What is turned by ``perm`` to (Q, B·H, …), as (B, Q, H, size)."""
        turned = self.add("Transpose", name, perm=perm)
        split = self.add("Reshape", turned, self.row(0, -1, self._found.heads, size))
        return self.add("Transpose", split, perm=[1, 0, 2, 3])

    def _joined(self, names: list[str], axis: int) -> str:
        return names[0] if len(names) == 1 else self.add("Concat", *names, axis=axis)
