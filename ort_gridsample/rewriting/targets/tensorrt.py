"""The target ``tensorrt-plugins``: deformable attention as TensorRT's plugin."""

from __future__ import annotations

import numpy as np

from ...detection.match import Match
from ...dialects.table import ATTENTION, TENSORRT_ATTENTION
from ...graph.expressions import Expressions, Tensor
from ...graph.new_names import Names
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
        e = Expressions(output, match.opset, names=names)
        foreign_inputs = ForeignInputs(match, signature, e)
        operands = ForeignOperands(foreign_inputs).operands()
        lengths = _lengths(foreign_inputs)
        starts = _starts(foreign_inputs, lengths)
        inputs = [operands.value, lengths, starts, operands.locations, operands.weights]
        if signature.is_by_head:
            result = _plugin(match, names, inputs, output)
        else:
            by_head = _plugin(match, names, inputs, names.new(f"{output}_by_head"))
            result = e.op("Reshape", by_head, e.row(0, 0, -1))
        return Replacement(e.finish(result, output), superseded=constants_of(match))

    def op(self, match: Match, detected: DetectedAttention, output: str, names: Names) -> Tensor:
        attention = detected.attention
        e = detected.e
        lengths = match.record.constants["levels"][:, 1:]
        points = (len(attention.points), attention.points[0])
        locations = e.op("Reshape", detected.locations(), e.row(0, 0, 0, *points, 2))
        weights = e.op("Reshape", detected.weights(), e.row(0, 0, 0, *points))
        if not attention.is_per_query:
            # They may be those of one query for all.
            weights = e.expand(weights, [1, e.lengths(locations, 1), 1, 1, 1])
        inputs = [
            detected.value(),
            e.constant(lengths, "int32"),
            e.constant(_starts_of(lengths), "int32"),
            locations,
            weights,
        ]
        by_head = _plugin(match, names, inputs, names.new(f"{output}_by_head"))
        return e.op("Reshape", by_head, e.row(0, 0, attention.heads * attention.channels))


def _plugin(match: Match, names: Names, inputs: list[Tensor], output: str) -> Tensor:
    """Return the output of the plugin, with Casts that give its inputs and its output one type."""
    e = inputs[0].owner
    plugin_type = _plugin_type(match)
    operand_types = _operand_types(match)
    for index, type_name in zip(_FLOAT_INPUTS, operand_types, strict=True):
        inputs[index] = e.input(e.name_of(inputs[index]), type_name).astype(plugin_type)
    value_type = operand_types[0]
    is_cast = value_type != plugin_type
    plugin_output = names.new(f"{output}_as_{plugin_type}") if is_cast else output
    op_type = TENSORRT_ATTENTION.op_type
    domain = TENSORRT_ATTENTION.domain
    input_names = [e.name_of(x) for x in inputs]
    e.node(with_operator(match.node, op_type, domain, inputs=input_names, outputs=[plugin_output]))
    return e.input(plugin_output, plugin_type).astype(value_type)


def _starts_of(lengths: Array) -> Array:
    """Return the first pixel of each level, (L,), of levels of these ``lengths`` (L, 2)."""
    areas = lengths.prod(1, dtype=np.int64)
    return np.cumsum(areas) - areas


def _lengths(inputs: ForeignInputs) -> Tensor:
    """Return the height and the width of each level, (L, 2), as int32."""
    table = inputs.known_level_table
    if table is not None:
        return inputs.e.constant(table, "int32")
    return inputs.level_table.astype("int32")


def _starts(inputs: ForeignInputs, lengths: Tensor) -> Tensor:
    """Return the first pixel of each level, (L,), as int32."""
    e = inputs.e
    known_starts = inputs.known_starts
    table = inputs.known_level_table
    if inputs.starts is None and table is not None:
        known_starts = _starts_of(table)
    if known_starts is not None:
        return e.constant(known_starts, "int32")
    if inputs.starts is not None:
        return inputs.starts.astype("int32")
    areas = e.gather(lengths, 0, axis=1) * e.gather(lengths, 1, axis=1)
    return e.op("CumSum", areas, e.constant(0), exclusive=1)


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
