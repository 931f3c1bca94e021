"""Deformable attention that the provider runs as one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper

from ...detection.attention.layouts import Attention, Level, Operand
from ...detection.match import Match
from ...detection.records import NodeRecord
from ...dialects.table import ATTENTION
from ...kernels.structs import MAX_LEVEL_AXES
from ..compiled_ops.attention import BY_IMAGE, BY_QUERY
from ..compiled_ops.c_api import ELEMENT_TYPES
from ..compiled_ops.catalog import find_op
from ..compiled_ops.record_image import row_of
from ..compiled_ops.structs import LEVEL, OPERANDS
from . import compute_infos
from .fused_subgraph import FusedSubgraph, NotFusedError, nodes_to_fuse


@dataclass(frozen=True, kw_only=True)
class FusedAttention(FusedSubgraph):
    """The nodes of a deformable attention.

    Attributes:
        record: the properties of the deformable attention.
        node_name: the name of the node in errors.
        attention: the deformable attention.
        value: the operand ``attention.value``, which is not None here.
        grid_type: the type of the levels' grids, from which a run computes the locations; "" if the
            graph has the locations.
    """

    record: NodeRecord
    node_name: str
    attention: Attention
    value: Operand
    grid_type: str

    @property
    def compute(self) -> Callable[..., int]:
        return compute_infos.compute_as_op

    def op_node(self, input_indices: Mapping[str, int]) -> onnx.NodeProto:
        attention = self.attention
        locations = attention.locations
        operands = {
            "value": input_indices[self.value.name],
            "levels": -1,
            "starts": -1,
            "locations": -1 if locations is None else input_indices[locations.name],
            "weights": input_indices[attention.weights.name],
            "n_value_axes": 3 if self.value.layout == "B, S, H·D" else 4,
            "weights_layout": BY_QUERY if attention.has_weights_by_query else BY_IMAGE,
            "grid_type": ELEMENT_TYPES[self.grid_type] if self.grid_type else 0,
            "heads": attention.heads,
            "channels": attention.channels,
            "r": attention.r,
        }
        levels = [
            number
            for level in attention.levels
            for number in row_of(LEVEL, self._level_fields(level, input_indices))
        ]
        return helper.make_node(
            ATTENTION,
            [],
            [],
            node=self.node_name,
            align_corners=int(bool(self.record.align_corners)),
            output_layout=attention.output_layout,
            operands=row_of(OPERANDS, operands),
            levels=levels,
        )

    def _level_fields(self, level: Level, input_indices: Mapping[str, int]) -> dict[str, Any]:
        """Return the fields of a LEVEL."""
        lengths = level.known_lengths
        grid = level.sample.values["grid"]
        return {
            "points": level.points,
            "shape_input": -1 if lengths else input_indices[level.shape or ""],
            "grid_input": input_indices[grid] if self.grid_type else -1,
            "lengths": [*lengths, *[0] * (MAX_LEVEL_AXES - len(lengths))],
        }


def fuse_attention(match: Match, attention: Attention) -> FusedAttention:
    """Return the nodes of a deformable attention that become one node.

    Raises:
        NotFusedError: an operand of the op is not a value of the graph, or the op has no kernel.
    """
    record = match.record
    if record.error is not None:
        raise NotFusedError(str(record.error))
    if attention.value is None:
        raise NotFusedError("no value of the graph has the images of all levels")
    if attention.other_levels:
        raise NotFusedError("a level is not sampled as the others are")
    if attention.r > MAX_LEVEL_AXES:
        raise NotFusedError(f"its images have more than {MAX_LEVEL_AXES} spatial axes")
    inputs = _inputs_of(attention, attention.value)
    for name, types in record.types.items():
        if len(types) != 1:
            raise NotFusedError(f"the type of {name} is not known, or not the same in all calls")
    value_type, levels_type, coordinate_type, weights_type = (
        type_ for types in record.types.values() for type_ in types
    )
    grid_type = coordinate_type if attention.locations is None else ""
    locations_type = attention.locations_type(coordinate_type)
    op_types = (value_type, levels_type, locations_type, weights_type)
    op = find_op(ATTENTION, op_types)
    if op is None:
        raise NotFusedError(f"there is no compiled op for the types {', '.join(op_types)}")
    output = attention.output.name
    nodes = nodes_to_fuse(
        match.scope,
        required=attention.path,
        candidates=attention.nodes,
        inputs=inputs,
        output=output,
    )
    return FusedAttention(
        nodes=nodes,
        inputs=inputs,
        output=output,
        record=record,
        node_name=match.node.name or record.name,
        attention=attention,
        value=attention.value,
        op=op,
        op_types=op_types,
        grid_type=grid_type,
    )


def _inputs_of(attention: Attention, value: Operand) -> frozenset[str]:
    """Return the values that the fused node reads.

    Raises:
        NotFusedError: the lengths of a level are neither constants nor a value of the graph.
    """
    inputs = {value.name, attention.weights.name}
    if attention.locations is not None:
        inputs.add(attention.locations.name)
    for level in attention.levels:
        if attention.locations is None:
            inputs.add(level.sample.values["grid"])
        if not level.known_lengths:
            if level.shape is None:
                raise NotFusedError(
                    f"no value of the graph is the shape of {level.sample.values['X']!r}"
                )
            inputs.add(level.shape)
    return frozenset(inputs)
