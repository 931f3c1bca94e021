"""Facts about another package's deformable attention node that a model states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import onnx

from .. import spec
from ..detection.foreign_attention_checks import are_contiguous
from ..detection.match import Match
from ..detection.records import NodeRecord
from ..dialects.table import ATTENTION
from ..errors import GridSampleError
from ..graph.scope import NO_MAKER, Scope, domain_of
from ..inference.types import TypeAndShape
from ..inference.views import REARRANGING

#: The operators that can lie between a Softmax and the weights.
_REARRANGING_OPS = REARRANGING | {"Cast"}


def has_unusual_starts(match: Match) -> bool:
    """Whether the model states that a level does not begin where the previous one ends."""
    signature = match.foreign_signature
    if signature is None or match.record.error is not None:
        return False
    lengths, starts = map(match.record.constants.get, signature.integer_inputs)
    if lengths is None or starts is None:
        return False
    return not are_contiguous(lengths, starts)


def known_n_levels(match: Match) -> int | None:
    """Return the number of levels, or None if the model does not state it."""
    signature = match.foreign_signature
    assert signature is not None
    argument = signature.lengths_input
    table = match.scope.constant_value(match.record.values[argument])
    if table is not None:
        return len(table)
    n_levels = match.record.length_in_all_calls(argument, 0)
    return n_levels if isinstance(n_levels, int) else None


def n_levels_of(match: Match) -> int:
    """Return the number of levels.

    Raises:
        GridSampleError: the model does not state it.
    """
    n_levels = known_n_levels(match)
    if n_levels is None:
        assert match.foreign_signature is not None
        argument = match.foreign_signature.lengths_input
        found = "of an unknown number of rows"
        expected = "one for each level, in a constant or a stated shape (L, 2)"
        raise GridSampleError(match.record.where, argument, found, expected)
    return n_levels


class _Origin(NamedTuple):
    """The value that another value is a rearrangement of.

    Attributes:
        scope: the scope that defines the value.
        name: the name of the value.
    """

    scope: Scope
    name: str


def _origin_of(scope: Scope, name: str) -> _Origin | None:
    """Go back from the value ``name`` through the operators that only rearrange values.

    Returns:
        The first value that is not the output of such an operator. It may be in a scope around
        ``scope``, but not in the caller of a function. None if the model is invalid.
    """
    while True:
        defining_scope = scope.defining_scope(name)
        if defining_scope is None:
            return None
        origin = _Origin(defining_scope, name)
        maker = defining_scope.makers.get(name)
        if maker is None or domain_of(defining_scope.nodes[maker].domain):
            return origin
        if defining_scope.op_types[maker] not in _REARRANGING_OPS:
            return origin
        source = defining_scope.inputs[maker][0]
        if not source or defining_scope.makers.get(source, NO_MAKER) >= maker:
            return None
        scope = defining_scope
        name = source


def has_softmax(scope: Scope, name: str) -> bool:
    """Whether the value ``name`` is the output of a Softmax, or a rearrangement of it.

    The Softmax may be in a scope around ``scope``. It is not found in the caller of a function,
    because each call may pass another value: see :func:`reads_weights_of_caller`.
    """
    origin = _origin_of(scope, name)
    if origin is None:
        return False
    maker = origin.scope.makers.get(origin.name)
    return (
        maker is not None
        and origin.scope.op_types[maker] == "Softmax"
        and domain_of(origin.scope.nodes[maker].domain) == ""
    )


def reads_weights_of_caller(match: Match) -> bool:
    """Whether the calls of a function decide if a Softmax precedes a node with offsets in it."""
    signature = match.foreign_signature
    if signature is None or not signature.has_offsets:
        return False
    origin = _origin_of(match.scope, match.record.values["attention_weights"])
    if origin is None or not isinstance(origin.scope.container, onnx.FunctionProto):
        return False
    return origin.name not in origin.scope.makers


def op_record(match: Match) -> NodeRecord:
    """Return the record of this package's op for another package's node, without its operands."""
    cases = []
    for case in match.record.cases:
        inputs = dict(zip(match.record.values, case, strict=True))
        value = inputs["value"]
        levels = TypeAndShape("int64")
        locations = TypeAndShape(_locations_type(inputs))
        cases.append((value, levels, locations, TypeAndShape(value.type)))
    version = spec.newest(ATTENTION)
    signature = match.foreign_signature
    assert signature is not None
    attributes = {**match.record.attributes, "output_layout": signature.output_layout}
    return replace(
        match.record,
        attributes=attributes,
        values=dict.fromkeys(version.types, ""),
        cases=list(dict.fromkeys(cases)),
        constants={},
    )


def _locations_type(inputs: Mapping[str, TypeAndShape]) -> str | None:
    """Return the type of the locations of a node with these inputs."""
    if "sampling_locations" in inputs:
        return inputs["sampling_locations"].type
    # They are computed in at least single precision.
    return "float64" if inputs["reference_points"].type == "float64" else "float32"
