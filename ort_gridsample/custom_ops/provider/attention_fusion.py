"""Deformable attention that the provider runs as one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...detection.attention.layouts import Attention, Level, Operand
from ...detection.match import Match
from ...dialects.table import ATTENTION
from ...errors import where_node
from ..compiled_ops.c_api import ELEMENT_TYPES
from ..compiled_ops.catalog import Op, find_op
from ..compiled_ops.record_image import RecordImage, Relocation
from .fused_attention import ATTENTION_SENTENCES, compute_attention
from .fused_subgraph import (
    FusedSubgraph,
    NotFusedError,
    add_errors,
    common_fields,
    nodes_to_fuse,
)
from .structs import FUSED_ATTENTION, LEVEL, WORD


@dataclass(frozen=True, kw_only=True)
class FusedAttention(FusedSubgraph):
    """The nodes of a deformable attention.

    Attributes:
        where: the place that errors name.
        attention: the deformable attention.
        value: the operand ``attention.value``, which is not None here.
        op: the compiled op.
        op_types: the types of the op's inputs: value, levels, locations and weights.
        grid_type: the type of the levels' grids, from which a run computes the locations; "" if the
            graph has the locations.
        align_corners: the attribute of the GridSamples.
    """

    where: str
    attention: Attention
    value: Operand
    op: Op
    op_types: tuple[str, ...]
    grid_type: str
    align_corners: bool

    @property
    def compute(self) -> Callable[..., int]:
        return compute_attention

    def add_state(
        self, image: RecordImage, input_indices: Mapping[str, int], api: int
    ) -> Relocation:
        attention = self.attention
        _, (initial_state,) = self.op.load().states(*self.op_types)
        kernel = {**initial_state["kernel"], "align_corners": self.align_corners}
        errors = add_errors(image, image.add_texts(ATTENTION_SENTENCES), self.where)
        locations = attention.locations
        state = {
            "basic": common_fields(kernel, errors, api),
            "value": input_indices[self.value.name],
            "locations": -1 if locations is None else input_indices[locations.name],
            "weights": input_indices[attention.weights.name],
            "heads": attention.heads,
            "channels": attention.channels,
            "n_value_axes": 3 if self.value.layout == "B, S, H·D" else 4,
            "has_weights_by_head": attention.has_weights_by_head,
            "grid_type": ELEMENT_TYPES[self.grid_type] if self.grid_type else 0,
            "levels": self._add_levels(image, input_indices),
            "n_levels": len(attention.levels),
            "r": attention.r,
        }
        return image.add_records(FUSED_ATTENTION, state)

    def _add_levels(self, image: RecordImage, input_indices: Mapping[str, int]) -> Relocation:
        """Append the array of LEVEL, and return its offset."""
        rows = []
        for level in self.attention.levels:
            lengths = _known_lengths(level)
            grid = level.sample.values["grid"]
            fields = {
                "points": level.points,
                "shape_input": -1 if lengths else input_indices[level.shape or ""],
                "lengths": image.add_records(WORD, *({"value": length} for length in lengths)),
                "grid_input": input_indices[grid] if self.grid_type else -1,
            }
            rows.append(fields)
        return image.add_records(LEVEL, *rows)


def fuse_attention(match: Match) -> FusedAttention | None:
    """Return the nodes of a deformable attention that become one node.

    Return None if the match is no deformable attention.

    Raises:
        NotFusedError: an operand of the op is not a value of the graph, or the op has no kernel.
    """
    attention = match.detected_attention
    record = match.record
    if attention is None:
        return None
    if record.error is not None:
        raise NotFusedError(str(record.error))
    if attention.value is None:
        raise NotFusedError("no value of the graph has the images of all levels")
    if attention.other_levels:
        raise NotFusedError("a level is not sampled as the others are")
    if not attention.has_output_by_query:
        raise NotFusedError("no value of the graph is the output (B, Q, H·D)")
    inputs = _inputs_of(attention, attention.value)
    for name, types in record.types.items():
        if len(types) != 1:
            raise NotFusedError(f"the type of {name} is not known, or not the same in all calls")
    value_type, levels_type, coordinate_type, weights_type = (
        type_ for types in record.types.values() for type_ in types
    )
    grid_type = coordinate_type if attention.locations is None else ""
    locations_type = coordinate_type
    if grid_type and grid_type != "float64":
        locations_type = "float32"  # half precision would lose too much of a location
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
        where=where_node(ATTENTION, match.node.name or record.name),
        attention=attention,
        value=attention.value,
        op=op,
        op_types=op_types,
        grid_type=grid_type,
        align_corners=bool(record.align_corners),
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
        if not _known_lengths(level):
            if level.shape is None:
                raise NotFusedError(
                    f"no value of the graph is the shape of {level.sample.values['X']!r}"
                )
            inputs.add(level.shape)
    return frozenset(inputs)


def _known_lengths(level: Level) -> list[int]:
    """Return the lengths of the spatial axes; an empty list if they are not all constants."""
    lengths = [length.known for length in level.lengths if length.known is not None]
    return lengths if len(lengths) == len(level.lengths) else []
