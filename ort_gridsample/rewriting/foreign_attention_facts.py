"""Facts about another package's deformable attention node that a model states."""

from __future__ import annotations

from dataclasses import replace

from ..detection.foreign_attention_checks import are_contiguous
from ..detection.match import Match
from ..detection.records import NodeRecord
from ..errors import GridSampleError
from ..graph.scope import NO_MAKER, Scope, domain_of
from ..inference.types import TypeAndShape

#: The operators that can lie between a Softmax and the weights.
_REARRANGING_OPS = (
    "Cast",
    "Flatten",
    "Identity",
    "Reshape",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)


def has_unusual_starts(match: Match) -> bool:
    """Whether the model states that a level does not begin where the previous one ends."""
    constants = match.record.constants
    lengths = constants.get("spatial_shapes")
    starts = constants.get("level_start_index")
    if match.record.error is not None or lengths is None or starts is None:
        return False
    return not are_contiguous(lengths, starts)


def n_levels_of(match: Match) -> int:
    """Return the number of levels.

    Raises:
        GridSampleError: the model does not state it.
    """
    table = match.scope.constant_value(match.node.input[1])
    if table is not None:
        return len(table)
    argument = list(match.record.values)[1]
    n_levels = match.record.length_in_all_calls(argument, 0)
    if not isinstance(n_levels, int):
        found = "of an unknown number of rows"
        expected = "one for each level, in a constant or a stated shape (L, 2)"
        raise GridSampleError(match.record.where, argument, found, expected)
    return n_levels


def has_softmax(scope: Scope, name: str) -> bool:
    """Whether the value ``name`` is the output of a Softmax, or a rearrangement of it.

    The Softmax may be in a scope around ``scope``. It is not found across calls of functions.
    """
    defining_scope = scope.defining_scope(name)
    while defining_scope is not None:
        maker = defining_scope.makers.get(name)
        if maker is None or domain_of(defining_scope.nodes[maker].domain):
            return False
        op_type = defining_scope.op_types[maker]
        if op_type == "Softmax":
            return True
        if op_type not in _REARRANGING_OPS:
            return False
        source = defining_scope.inputs[maker][0]
        # The model may be invalid.
        if not source or defining_scope.makers.get(source, NO_MAKER) >= maker:
            return False
        name = source
        defining_scope = defining_scope.defining_scope(name)
    return False


def op_record(match: Match) -> NodeRecord:
    """Return the record of this package's op for another package's node, without its operands."""
    signature = match.foreign_signature
    cases = []
    for value, _, third, fourth, *_ in match.record.cases:
        # The locations, or the reference points that they are computed from.
        locations_type = fourth.type
        if signature is not None and signature.has_offsets:
            locations_type = "float64" if third.type == "float64" else "float32"
        cases.append(
            (value, TypeAndShape("int64"), TypeAndShape(locations_type), TypeAndShape(value.type))
        )
    names = ("value", "levels", "sampling_locations", "attention_weights")
    values = dict.fromkeys(names, "")
    return replace(match.record, values=values, cases=list(dict.fromkeys(cases)), constants={})
