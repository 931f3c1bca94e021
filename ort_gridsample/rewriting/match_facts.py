"""Types, lengths and Constants among the inputs of a node, as the model states them."""

from __future__ import annotations

from collections.abc import Sequence

from ..detection.match import Match
from ..errors import GridSampleError


def known_type(match: Match, argument: str) -> str:
    """Return the element type of an input.

    Raises:
        GridSampleError: the model does not state it, or calls the node's function with several.
    """
    type_name = single_type(match, argument)
    if type_name is None:
        names = {value.type or "unknown": None for value in match.record.inputs[argument]}
        found = f"of type {' or '.join(names) or 'unknown'}"
        expected = "one type that the model states, or that onnx can infer"
        raise GridSampleError(match.record.where, argument, found, expected)
    return type_name


def single_type(match: Match, argument: str) -> str | None:
    """Return the element type of an input, or None if it is unknown or differs between calls."""
    types = match.record.types[argument]
    if len(types) != 1 or match.record.varies_in_type(argument):
        return None
    return types[0]


def constants_of(match: Match) -> Sequence[int]:
    """Return the indices of the Constants that the node of ``match`` reads."""
    scope = match.scope
    makers = [scope.makers.get(name) for name in match.node.input]
    return [maker for maker in makers if maker is not None and scope.op_types[maker] == "Constant"]
