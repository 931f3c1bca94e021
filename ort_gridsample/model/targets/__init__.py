"""What a patch can turn a node into: one module a kind of target.

A target says which nodes it has something for, and what stands in a node's place; where nodes are, and putting them
there, is :mod:`ort_gridsample.model.patch`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx
from onnx import helper, numpy_helper

from ..graphs import Names
from ..helpers import cast_name, mark
from ..matches import Match
from ..records import NodeRecord

#: The first opset with CastLike.
CAST_LIKE = 15

#: The domain of the functions that lowered nodes share.
FUNCTIONS_DOMAIN = "ort_gridsample.primitives"


@dataclass(frozen=True)
class Replacement:
    """What stands in the place of a node.

    Attributes:
        nodes: in its place.
        functions: model-local functions that ``nodes`` call.
        fused: the positions of other nodes that ``nodes`` replace as well, where nobody else reads these.
    """

    nodes: Sequence[onnx.NodeProto]
    functions: Sequence[onnx.FunctionProto] = ()
    fused: Sequence[int] = ()


class Target(Protocol):
    """One kind of thing to turn nodes into."""

    @property
    def reads_shapes(self) -> bool:
        """Whether the replacements do."""

    @property
    def reads_decomposed(self) -> bool:
        """Whether it takes nodes that are decomposed."""

    @property
    def fuses(self) -> bool:
        """Whether it fuses nodes."""

    def takes(self, match: Match) -> bool:
        """Whether the target has something else for a node than what it is."""

    def needs_inlining(self, match: Match) -> bool:
        """Whether one body of the node's function cannot serve all its calls."""

    def least_opset(self, match: Match) -> int:
        """The oldest opset of the ONNX domain in which the replacement can be written."""

    def replace(self, match: Match, names: Names) -> Replacement:
        """What stands in the node's place."""


def renamed(original: onnx.NodeProto, op_type: str, domain: str) -> onnx.NodeProto:
    """What the node ``original`` has besides inputs, outputs and attributes, on a node of another operator."""
    node = onnx.NodeProto()
    node.CopyFrom(original)
    for field in ("input", "output", "attribute", "domain"):
        node.ClearField(field)
    node.op_type = op_type
    if domain:
        node.domain = domain
    return node


def typed_in_function(match: Match, first: str, names: Names) -> tuple[str, list[onnx.NodeProto]]:
    """The value that an op of this package writes, and what makes the node's output of that.

    onnxruntime infers types inside functions before it knows the op: there a CastLike says that it has the type of the
    ``first`` input.
    """
    record = match.record
    if match.scope.function is None:
        return record.output, []
    value = names.new(f"{record.output}_untyped")
    like = helper.make_node("CastLike", [value, first], [record.output], names.new(cast_name(record.where)))
    return value, [mark(like, record.where)]


def arguments(record: NodeRecord, names: Names) -> tuple[list[onnx.NodeProto], list[str]]:
    """The values that the node of ``record`` reads, and Constants for those that it holds itself."""
    constants, values = [], []
    for argument, value in record.values.items():
        if not value:
            value = names.new(f"{record.output}_{argument}")
            tensor = numpy_helper.from_array(record.constants[argument])
            constants.append(helper.make_node("Constant", [], [value], value=tensor))
        values.append(value)
    return constants, values
