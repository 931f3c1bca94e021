"""Types, lengths and Constants among the inputs of a node, as the model states them."""

from __future__ import annotations

from collections.abc import Sequence

from ..detection.match import Match
from ..errors import GridSampleError
from ..graph.expressions import Expressions, Tensor
from ..graph.first_opsets import FIRST_OPSET_WITH_CAST_LIKE


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


def input_of(match: Match, e: Expressions, argument: str) -> Tensor:
    """Return an input, with its type if that is known."""
    return e.input(match.record.values[argument], single_type(match, argument) or "")


def require_type(match: Match, argument: str) -> None:
    """Check that constants of the type of an input can be written.

    Raises:
        GridSampleError: the type is not known, and the opset has no CastLike.
    """
    if match.opset < FIRST_OPSET_WITH_CAST_LIKE:
        known_type(match, argument)


def constants_of(match: Match) -> Sequence[int]:
    """Return the indices of the Constants that the node of ``match`` reads."""
    scope = match.scope
    makers = [scope.makers.get(name) for name in match.node.input]
    return [maker for maker in makers if maker is not None and scope.op_types[maker] == "Constant"]
