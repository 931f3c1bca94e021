"""Constants of the type of another value."""

from __future__ import annotations

from onnx import helper

from ..detection.match import Match
from ..graph.element_types import elem_type
from ..graph.first_opsets import FIRST_OPSET_WITH_CAST_LIKE
from ..graph.new_nodes import Nodes
from .match_facts import known_type, single_type


def write_typed_constant(nodes: Nodes, number: float, type_name: str) -> str:
    """Write a Constant of a floating-point type; return the name of its value."""
    tensor = helper.make_tensor("", elem_type(type_name), [], [number])
    return nodes.add("Constant", value=tensor)


def write_constants_like(match: Match, nodes: Nodes, argument: str, *numbers: float) -> list[str]:
    """Write constants of the type of an input; return the names of their values."""
    has_one_type = single_type(match, argument) is not None
    if has_one_type or match.opset < FIRST_OPSET_WITH_CAST_LIKE:
        return [
            write_typed_constant(nodes, number, known_type(match, argument)) for number in numbers
        ]
    constants = [write_typed_constant(nodes, number, "float32") for number in numbers]
    like = match.record.values[argument]
    return [nodes.add("CastLike", constant, like) for constant in constants]
