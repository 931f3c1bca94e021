"""The target ``tensorrt-plugins``: deformable attention as TensorRT's plugin."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ...detection.match import Match
from ...dialects.table import ATTENTION, TENSORRT_ATTENTION
from ...graph.element_types import elem_type
from ...graph.new_nodes import Names, Nodes
from ...reference.arrays import Array
from ..foreign_attention import ForeignOperands
from ..foreign_attention_facts import op_record
from ..foreign_inputs import ForeignInputs
from ..match_facts import constants_of
from . import Replacement, with_operator
from .attention import AttentionTarget
from .detected_attention import DetectedAttention

#: The types of operands that the plugin is written for. It computes in float32 for bfloat16.
_TYPES = ("float16", "bfloat16", "float32")
#: Which of the plugin's inputs are value, locations and weights.
_FLOAT_INPUTS = (0, 3, 4)


class TensorRTPluginsTarget(AttentionTarget):
    """TensorRT's plugin, for images of two axes with the same number of points on every level.

    Other nodes stay as they are. The value, the locations, the weights and the output of the plugin
    have one type, float16 or float32.
    """

    name = TENSORRT_ATTENTION.name

    def needs_expansion(self, match: Match) -> bool:
        return match.record.operator == ATTENTION and super().needs_expansion(match)

    def replaces_composite(self, match: Match) -> bool:
        return self.replaces(match)

    def replaces(self, match: Match) -> bool:
        record = match.record
        if match.is_foreign_attention:
            if match.node.op_type == TENSORRT_ATTENTION.op_type:
                return False
            return record.error is not None or bool(_plugin_type(match))
        attention = match.detected_attention
        if attention is None or attention.r != 2 or len({*attention.points}) != 1:
            return False
        if attention.points[0] == 0:
            return False  # :meth:`write` has Reshapes to the number of points, which cannot be 0
        has_levels = "levels" in record.constants
        return record.align_corners == 0 and has_levels and bool(_plugin_type(match))

    def replacement_for(self, match: Match, names: Names) -> Replacement:
        if not match.is_foreign_attention:
            return super().replacement_for(match, names)
        return self._plugin_for_node(match, names)

    def _plugin_for_node(self, match: Match, names: Names) -> Replacement:
        """Return the plugin that replaces another package's node. TensorRT checks the shapes."""
        signature = match.foreign_signature
        assert signature is not None
        output = match.record.output
        nodes = Nodes(names, output)
        foreign_inputs = ForeignInputs(match, signature, nodes)
        operands = ForeignOperands(foreign_inputs).write()
        lengths = _write_lengths(foreign_inputs)
        starts = _write_starts(foreign_inputs, lengths)
        inputs = [operands.value, lengths, starts, operands.locations, operands.weights]
        if signature.is_by_head:
            self._add_plugin(match, nodes, names, inputs, output)
        else:
            by_head = names.new(f"{output}_by_head")
            self._add_plugin(match, nodes, names, inputs, by_head)
            nodes.add("Reshape", by_head, nodes.row(0, 0, -1), output=output)
        return Replacement(nodes, superseded=constants_of(match))

    def write(self, match: Match, detected: DetectedAttention, names: Names) -> None:
        attention = detected.attention
        nodes = detected.nodes
        lengths = match.record.constants["levels"][:, 1:].astype(np.int32)
        n_levels = len(attention.points)
        n_points = attention.points[0]
        value = detected.write_value()
        lengths_name = nodes.constant(lengths)
        starts_name = nodes.constant(_starts_of(lengths).astype(np.int32))
        locations_shape = nodes.row(0, 0, 0, n_levels, n_points, 2)
        locations = nodes.add("Reshape", detected.write_locations(), locations_shape)
        weights_shape = nodes.row(0, 0, 0, n_levels, n_points)
        weights = nodes.add("Reshape", detected.write_weights(), weights_shape)
        if not attention.is_per_query:
            weights = _write_for_each_query(nodes, weights, locations)
        by_head = names.new(f"{detected.output}_by_head")
        shape = nodes.row(0, 0, attention.heads * attention.channels)
        inputs = [value, lengths_name, starts_name, locations, weights]
        self._add_plugin(match, nodes, names, inputs, by_head)
        nodes.add("Reshape", by_head, shape, output=detected.output)

    def _add_plugin(
        self,
        match: Match,
        nodes: Nodes,
        names: Names,
        inputs: list[str],
        output: str,
    ) -> None:
        """Write the plugin, and the Casts that give its inputs and its output one type."""
        plugin_type = _plugin_type(match)
        operand_types = _operand_types(match)
        for input_index, type_name in zip(_FLOAT_INPUTS, operand_types, strict=True):
            if type_name != plugin_type:
                to = elem_type(plugin_type)
                inputs[input_index] = nodes.add("Cast", inputs[input_index], to=to)
        value_type = operand_types[0]
        is_cast = value_type != plugin_type
        plugin_output = names.new(f"{output}_as_{plugin_type}") if is_cast else output
        op_type = TENSORRT_ATTENTION.op_type
        domain = TENSORRT_ATTENTION.domain
        nodes.append(
            with_operator(match.node, op_type, domain, inputs=inputs, outputs=[plugin_output])
        )
        if is_cast:
            nodes.add("Cast", plugin_output, to=elem_type(value_type), output=output)


def _starts_of(lengths: Array) -> Array:
    """Return the first pixel of each level, (L,), of levels of these ``lengths`` (L, 2)."""
    areas = lengths.prod(1, dtype=np.int64)
    return np.cumsum(areas) - areas


def _write_lengths(inputs: ForeignInputs) -> str:
    """Write the height and the width of each level, (L, 2), as int32."""
    table = inputs.known_level_table
    if table is not None:
        return inputs.nodes.constant(table.astype(np.int32))
    return inputs.nodes.add("Cast", inputs.level_table, to=TensorProto.INT32)


def _write_starts(inputs: ForeignInputs, lengths: str) -> str:
    """Write the first pixel of each level, (L,), as int32."""
    nodes = inputs.nodes
    known_starts = inputs.known_starts
    table = inputs.known_level_table
    if not inputs.has_starts and table is not None:
        known_starts = _starts_of(table)
    if known_starts is not None:
        return nodes.constant(known_starts.astype(np.int32))
    if inputs.has_starts:
        return nodes.add("Cast", inputs.names["level_start_index"], to=TensorProto.INT32)
    heights = nodes.add("Gather", lengths, nodes.constant(0), axis=1)
    widths = nodes.add("Gather", lengths, nodes.constant(1), axis=1)
    return nodes.add("CumSum", nodes.add("Mul", heights, widths), nodes.constant(0), exclusive=1)


def _write_for_each_query(nodes: Nodes, weights: str, locations: str) -> str:
    """Write weights (B, Q, H, L, P) from weights that may be those of one query for all."""
    queries = nodes.add("Gather", nodes.add("Shape", locations), nodes.row(1))
    shape = nodes.add("Concat", nodes.row(1), queries, nodes.row(1, 1, 1), axis=0)
    return nodes.add("Expand", weights, shape)


def _operand_types(match: Match) -> list[str]:
    """Return the types of value, locations and weights; an empty name if a type is not known."""
    record = op_record(match) if match.is_foreign_attention else match.record
    types = []
    for name in ("value", "sampling_locations", "attention_weights"):
        known_types = record.types[name]
        has_one_type = len(known_types) == 1 and not record.varies_in_type(name)
        types.append(known_types[0] if has_one_type else "")
    return types


def _plugin_type(match: Match) -> str:
    """Return the type of a plugin for ``match``; empty if there is none, or types are unknown."""
    types = {*_operand_types(match)}
    if not types <= {*_TYPES}:
        return ""
    return "float16" if types == {"float16"} else "float32"
