"""The target ``tensorrt-plugins``: deformable attention as TensorRT's plugin."""

from __future__ import annotations

import numpy as np

from ...detection.match import Match
from ...detection.records import NodeRecord
from ...dialects.table import ATTENTION, TENSORRT_ATTENTION
from ...graph.expressions import Tensor
from ...graph.new_names import Names
from ...reference.arrays import Array
from ..attention_call import AttentionCall, AttentionSource, Levels
from ..foreign_attention_facts import op_record
from . import with_operator
from .attention import AttentionTarget

#: The types of operands that the plugin is written for. It computes in float32 for bfloat16.
_TYPES = ("float16", "bfloat16", "float32")
#: Which of the plugin's inputs are value, locations and weights.
_FLOAT_INPUTS = (0, 3, 4)


class TensorRTPluginsTarget(AttentionTarget):
    """TensorRT's plugin, for images of two axes with the same number of points on every level.

    Other nodes stay as they are. The value, the locations, the weights and the output of the plugin
    have one type, float16 or float32. TensorRT checks the shapes of a node that it replaces.
    """

    name = TENSORRT_ATTENTION.name
    replaces_decomposed = False
    fuses = True

    def needs_expansion(self, match: Match) -> bool:
        return match.record.operator == ATTENTION and super().needs_expansion(match)

    def replaces_composite(self, match: Match) -> bool:
        return self.replaces(match)

    def replaces(self, match: Match) -> bool:
        record = match.record
        if match.is_foreign_attention:
            if match.node.op_type == TENSORRT_ATTENTION.op_type:
                return False
            return record.error is not None or bool(_plugin_type(op_record(match)))
        attention = match.detected_attention
        if attention is None or attention.r != 2 or len({*attention.points}) != 1:
            return False
        if attention.points[0] == 0:
            return False  # :meth:`write` has Reshapes to the number of points, which cannot be 0
        has_levels = "levels" in record.constants
        return record.align_corners == 0 and has_levels and bool(_plugin_type(record))

    def output(
        self, match: Match, source: AttentionSource, call: AttentionCall, names: Names
    ) -> Tensor:
        e = source.e
        levels = call.levels
        locations = call.locations
        weights = call.weights
        if not call.has_level_axis:
            assert levels.points is not None
            axes = (len(levels.points), levels.points[0])
            locations = e.op("Reshape", locations, e.row(0, 0, 0, *axes, 2))
            weights = e.op("Reshape", weights, e.row(0, 0, 0, *axes))
        if not call.is_per_query:
            # They may be those of one query for all.
            weights = e.expand(weights, [1, e.lengths(locations, 1), 1, 1, 1])
        if levels.known_lengths is not None:
            lengths = e.constant(levels.known_lengths, "int32")
        else:
            lengths = levels.lengths.astype("int32")
        inputs = [call.value, lengths, _starts(levels, lengths), locations, weights]
        if source.output_layout == "by_head":
            return _plugin(match, call, names, inputs, match.record.output)
        by_head = _plugin(match, call, names, inputs, names.new(f"{match.record.output}_by_head"))
        channels = -1
        if match.detected_attention is not None:
            channels = match.detected_attention.heads * match.detected_attention.channels
        by_query = e.op("Reshape", by_head, e.row(0, 0, channels))
        return source.output(source.rearranged(by_query, call))


def _plugin(
    match: Match, call: AttentionCall, names: Names, inputs: list[Tensor], output: str
) -> Tensor:
    """Return the output of the plugin, with Casts that give its inputs and its output one type."""
    e = call.value.owner
    plugin_type = _plugin_type(call.record)
    operand_types = _operand_types(call.record)
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


def _starts(levels: Levels, lengths: Tensor) -> Tensor:
    """Return the first pixel of each level, (L,), as int32."""
    e = lengths.owner
    starts = levels.known_starts
    if levels.starts is None and levels.known_lengths is not None:
        starts = _starts_of(levels.known_lengths)
    if starts is not None:
        return e.constant(starts, "int32")
    if levels.starts is not None:
        return levels.starts.astype("int32")
    areas = e.gather(lengths, 0, axis=1) * e.gather(lengths, 1, axis=1)
    return e.op("CumSum", areas, e.constant(0), exclusive=1)


def _operand_types(record: NodeRecord) -> list[str]:
    """Return the types of value, locations and weights; an empty name if a type is not known."""
    types = []
    for name in ("value", "sampling_locations", "attention_weights"):
        known_types = record.types[name]
        has_one_type = len(known_types) == 1 and not record.varies_in_type(name)
        types.append(known_types[0] if has_one_type else "")
    return types


def _plugin_type(record: NodeRecord) -> str:
    """Return the type of a plugin for an op; empty if there is none, or types are unknown."""
    types = {*_operand_types(record)}
    if not types <= {*_TYPES}:
        return ""
    return "float16" if types == {"float16"} else "float32"
