"""Deformable attention as one node: this package's compiled op or Python op, or TensorRT's plugin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from ...detection.attention.match import Attention
from ...detection.match import Match
from ...dialects.table import ATTENTION, COMPILED_DOMAIN, PLUGINS
from ...graph.element_types import elem_type
from ...graph.scope import Names, Nodes
from ..attention_nodes import OperandNodes, constants_of, op_record
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
        nodes.append(_compiled(match, nodes.operands(), nodes.output, found.points))


def _compiled(match: Match, operands: Sequence[str], output: str, points: Sequence[int]) -> onnx.NodeProto:
    """The compiled op in the place of the node of ``match``."""
    node = renamed(match.node, ATTENTION, COMPILED_DOMAIN, operands, [output])
    named = {"align_corners": match.record.align_corners, "node": label(match.node) or match.record.label}
    # By which the node is read back, where nothing else says how many there are.
    named["points"] = " ".join(map(str, points))
    node.attribute.extend(helper.make_attribute(*each) for each in named.items())
    return node


class PythonAttention(_Whole):
    """The Python op, with the helpers that it needs."""

    def __init__(self, in_session: bool = False) -> None:
        self._op = PythonOp(in_session)

    def write(self, match: Match, found: Attention, nodes: _Nodes, names: Names) -> None:
        values = dict(zip(match.record.values, nodes.operands(), strict=True))
        record = replace(match.record, values=values, output=nodes.output)
        nodes += self._op.replace(replace(match, record=record), names).nodes


class WholeNode(_Whole):
    """Another package's node that is a whole deformable attention, as one op of this package.

    Args:
        is_python: whether it is the Python op; else it is the compiled op.
        in_session: as of :class:`.PythonOp`.
    """

    def __init__(self, is_python: bool = False, in_session: bool = False) -> None:
        self._is_python, self._in_session = is_python, in_session

    def takes(self, match: Match) -> bool:
        return match.contract is not None

    def replace(self, match: Match, names: Names) -> Replacement:
        record, contract = match.record, match.contract
        assert contract is not None  # else ``takes`` is false
        nodes = Nodes(names, record.output)
        builder = OperandNodes(match, contract, nodes, is_op=True)
        operands = builder.operands()
        levels, points = builder.levels(operands)
        read = (operands.value, levels, operands.locations, operands.weights)
        output = names.new(f"{record.output}_by_query") if contract.is_by_head else record.output
        if not self._is_python:
            nodes.append(_compiled(match, read, output, points))
        else:
            record_of_op = op_record(match)
            values = dict(zip(record_of_op.values, read, strict=True))
            record_of_op = replace(record_of_op, values=values, output=output)
            # A Reshape behind the op must read its output through the guard, or it fails first.
            python_op = PythonOp(self._in_session and not contract.is_by_head)
            nodes += python_op.replace(replace(match, record=record_of_op), names).nodes
        if contract.is_by_head:
            lengths = nodes.add("Gather", nodes.add("Shape", operands.value), nodes.row(2, 3))
            nodes.add("Reshape", output, nodes.add("Concat", nodes.row(0, 0), lengths, axis=0), output=record.output)
        return Replacement(nodes, fused=constants_of(match))


#: The types that TensorRT's plugin is written with; bfloat16 becomes float32.
_PLUGIN_TYPES = ("float16", "bfloat16", "float32")


class TensorRTPlugins(_Whole):
    """The plugin of TensorRT, for images of two axes with as many points on each level; the others stay as they are.

    Its value, locations, weights and output are of one type, float16 or float32.
    """

    name = PLUGINS.name

    def expands(self, match: Match) -> bool:
        return match.record.operator == ATTENTION and super().expands(match)

    def takes_whole(self, match: Match) -> bool:
        return self.takes(match)

    def takes(self, match: Match) -> bool:
        record, found = match.record, match.attention
        if match.contract is not None:
            return match.node.op_type != PLUGINS.op_type and (record.error is not None or bool(_plugin_type(match)))
        fits = found is not None and found.axes == 2 and len({*found.points}) == 1
        return fits and record.align_corners == 0 and "levels" in record.constants and bool(_plugin_type(match))

    def replace(self, match: Match, names: Names) -> Replacement:
        return super().replace(match, names) if match.contract is None else self._of_node(match, names)

    def _of_node(self, match: Match, names: Names) -> Replacement:
        """The plugin in the place of another package's node. TensorRT checks the shapes."""
        record, contract = match.record, match.contract
        assert contract is not None
        nodes = Nodes(names, record.output)
        operands = OperandNodes(match, contract, nodes, is_checked=False).operands()
        table, starts = record.constants.get(contract.inputs[1]), record.constants.get("level_start_index")
        if table is not None:
            areas = table.prod(1, dtype=np.int64)
            starts = np.cumsum(areas) - areas if starts is None and contract.has_offsets else starts
            lengths = nodes.constant(table.astype(np.int32))
        else:
            lengths = nodes.add("Cast", operands.lengths, to=TensorProto.INT32)
        if starts is not None:
            first = nodes.constant(starts.astype(np.int32))
        elif operands.starts:
            first = nodes.add("Cast", operands.starts, to=TensorProto.INT32)
        else:
            axes = [nodes.add("Gather", lengths, nodes.constant(axis), axis=1) for axis in (0, 1)]
            first = nodes.add("CumSum", nodes.add("Mul", *axes), nodes.constant(0), exclusive=1)
        output = record.output if contract.is_by_head else names.new(f"{record.output}_by_head")
        inputs = [operands.value, lengths, first, operands.locations, operands.weights]
        self._add_plugin(match, nodes, names, inputs, output)
        if not contract.is_by_head:
            nodes.add("Reshape", output, nodes.row(0, 0, -1), output=record.output)
        return Replacement(nodes, fused=constants_of(match))

    def _add_plugin(self, match: Match, nodes: Nodes, names: Names, inputs: list[str], output: str) -> None:
        """Write the plugin, and the Casts that give its inputs and its output one type."""
        kind = _plugin_type(match)
        types = _operand_types(match)
        for position, type_name in zip((0, 3, 4), types, strict=True):
            if type_name != kind:
                inputs[position] = nodes.add("Cast", inputs[position], to=elem_type(kind))
        written = output if types[0] == kind else names.new(f"{output}_as_{kind}")
        nodes.append(renamed(match.node, PLUGINS.op_type, PLUGINS.domain, inputs, [written]))
        if written != output:
            nodes.add("Cast", written, to=elem_type(types[0]), output=output)

    def write(self, match: Match, found: Attention, nodes: _Nodes, names: Names) -> None:
        lengths = match.record.constants["levels"][:, 1:].astype(np.int32)
        areas = lengths.prod(1, dtype=np.int32)
        each = len(found.points), found.points[0]
        images = [nodes.value(), nodes.constant(lengths), nodes.constant(np.cumsum(areas, dtype=np.int32) - areas)]
        locations = nodes.add("Reshape", nodes.locations(), nodes.row(0, 0, 0, *each, 2))
        weights = nodes.add("Reshape", nodes.weights(), nodes.row(0, 0, 0, *each))
        by_head, width = names.new(f"{nodes.output}_by_head"), nodes.row(0, 0, found.heads * found.channels)
        self._add_plugin(match, nodes, names, [*images, locations, weights], by_head)
        nodes.add("Reshape", by_head, width, output=nodes.output)


def _operand_types(match: Match) -> list[str]:
    """The types of value, locations and weights; an empty name where one is not known."""
    record = match.record if match.contract is None else op_record(match)
    names = ("value", "sampling_locations", "attention_weights")
    return [record.types[name][0] if len(record.types[name]) == 1 else "" for name in names]


def _plugin_type(match: Match) -> str:
    """The one type of a plugin for ``match``; empty where it has none, or types are not known."""
    types = _operand_types(match)
    if not {*types} <= {*_PLUGIN_TYPES}:
        return ""
    return "float16" if {*types} == {"float16"} else "float32"


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
        if not found.has_output_by_query:
            self.output = names.new(f"{match.record.output}_by_query")
            split = self.after.add("Reshape", self.output, self.row(0, 0, found.heads, found.channels))
            turned = self.after.add("Transpose", split, perm=[0, 2, 3, 1])
            flat = self.after.add("Flatten", turned, axis=2)  # (B·H, D·Q)
            whole = "" if found.other_levels else match.record.output
            whole = self.after.add("Reshape", flat, self.row(0, found.channels, -1), output=whole)
            if found.other_levels:
                self._add_others(whole)

    def _add_others(self, name: str) -> None:
        """Make of a sum over some levels that over all."""
        others, after = self._found.other_levels, self.after
        parts = [after.add("Reshape", other, self.row(0, 0, 0, len(points))) for other, points in others]
        by = self._of_points(after, [at for _, points in others for at in points])
        product = after.add("Mul", after.add("Concat", *parts, axis=3), by)
        rest = after.add("ReduceSum", product, self.row(-1), keepdims=0)
        after.add("Add", name, rest, output=self._match.record.output)

    def _of_points(self, nodes: Nodes, points: list[int]) -> str:
        """The weights of some points, not by head."""
        return nodes.add("Gather", self._found.weights.name, self.row(*points), axis=3)

    def operands(self) -> list[str]:
        """All of them."""
        return [self.value(), self.levels(), self.locations(), self.weights()]

    def value(self) -> str:
        """(B, S, H, D)."""
        found = self._found
        if found.value is not None and found.value.layout == "B, S, H, D":
            return found.value.name
        if found.value is not None:
            return self.add("Reshape", found.value.name, self.row(0, 0, found.heads, found.channels))
        images = [self.add("Reshape", level.sample.values["X"], self.row(0, 0, -1)) for level in found.levels]
        turned = self.add("Transpose", self._joined(images, 2), perm=[0, 2, 1])
        return self.add("Unsqueeze", turned, self.row(2))

    def levels(self) -> str:
        """(L, 1 + r), the points and the lengths of each level."""
        known = self._match.record.constants.get("levels")
        if known is not None:
            return self.constant(known)
        rows = []
        for level in self._found.levels:
            lengths = self.row(*range(2, 2 + self._found.axes))
            row = self.add("Gather", level.shape or self.add("Shape", level.sample.values["X"]), lengths)
            rows.append(self._joined([self.row(level.points), row], 0))
        return self.add("Reshape", self._joined(rows, 0), self.row(len(rows), -1))

    def locations(self) -> str:
        """(B, Q, H, L, P, r) or (B, Q, H, P, r)."""
        found = self._found
        if found.locations is not None:
            return found.locations.name
        r = found.axes
        grids = [
            self.add("Reshape", level.sample.values["grid"], self.row(0, -1, level.points, r)) for level in found.levels
        ]
        # In halves, locations would lose too much.
        kind = np.dtype("float64" if "float64" in self._match.record.types["sampling_locations"] else "float32")
        grid = self.add("Cast", self._joined(grids, 2), to=elem_type(kind.name))
        half = self.constant(np.array(0.5, kind))
        unit = self.add("Add", self.add("Mul", grid, half), half)
        by_head = self._by_head(unit, [1, 0, 2, 3], sum(found.points) * r)
        return self.add("Reshape", by_head, self.row(0, 0, 0, sum(found.points), r))

    def weights(self) -> str:
        """(B, Q, H, L, P) or (B, Q, H, P), or (B, 1, H, P) of one query for all."""
        found = self._found
        if found.has_weights_by_head and found.is_per_query:
            return found.weights.name
        if found.has_weights_by_head:  # by levels and points, an op would take them for those of each query
            return self.add("Reshape", found.weights.name, self.row(0, 0, 0, -1))
        others = {at for _, points in found.other_levels for at in points}
        own = [at for at in range(sum(found.points) + len(others)) if at not in others]
        weights = self._of_points(self, own) if others else found.weights.name
        return self._by_head(weights, [2, 0, 1, 3], sum(found.points))

    def _by_head(self, name: str, perm: list[int], size: int) -> str:
        """What is turned by ``perm`` to (Q, B·H, …), as (B, Q, H, size)."""
        turned = self.add("Transpose", name, perm=perm)
        split = self.add("Reshape", turned, self.row(0, -1, self._found.heads, size))
        return self.add("Transpose", split, perm=[1, 0, 2, 3])

    def _joined(self, names: list[str], axis: int) -> str:
        return names[0] if len(names) == 1 else self.add("Concat", *names, axis=axis)
