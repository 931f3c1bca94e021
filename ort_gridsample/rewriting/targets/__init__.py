"""The targets of a patch: one module for each kind.

A target decides which nodes it replaces, and makes the replacements. :mod:`ort_gridsample.rewriting.patch` finds the
nodes and inserts the replacements.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import onnx

from ...detection.helpers import cast
from ...detection.match import Match
from ...graph.scope import Names

#: The first opset with CastLike.
CAST_LIKE = 15
#: The domain of the functions that lowered nodes share.
FUNCTIONS_DOMAIN = "ort_gridsample.primitives"


@dataclass(frozen=True)
class Replacement:
    """The replacement of a node."""

    nodes: Sequence[onnx.NodeProto]  #: the nodes in its place
    functions: Sequence[onnx.FunctionProto] = ()  #: model-local functions that ``nodes`` call
    #: The positions of other nodes that ``nodes`` replace as well, where nobody else reads these.
    fused: Sequence[int] = ()
    reads_shapes: bool = False  #: whether ``nodes`` depend on shapes


class Target:
    """One kind of replacement for nodes.

    Attributes:
        name: of the dialect that it writes; empty: it is none that stands for several nodes.
        reads_decomposed: whether it takes nodes that are decomposed.
        fuses: whether it fuses nodes.
    """

    name, reads_decomposed, fuses = "", True, False

    def takes(self, match: Match) -> bool:
        """Whether the target replaces a node."""
        raise NotImplementedError

    def of(self, match: Match) -> Target | None:
        """The target that replaces a node, this one where it takes the node; None: nothing replaces it."""
        return self if self.takes(match) else None

    def expands(self, match: Match) -> bool:
        """Whether it needs the nodes that one which stands for several stands for."""
        return match.record.dialect.name != self.name

    def takes_whole(self, match: Match) -> bool:
        """Whether it replaces a node that stands for several by another such node, and does not expand it."""
        return False

    def needs_inlining(self, match: Match) -> bool:
        """Whether one body of the node's function cannot serve all calls, so that it must be inlined."""
        raise NotImplementedError

    def least_opset(self, match: Match) -> int:
        """The oldest opset of the ONNX domain in which the replacement can be written."""
        return 1

    def replace(self, match: Match, names: Names) -> Replacement:
        """The replacement of a node."""
        raise NotImplementedError


def renamed(
    original: onnx.NodeProto, op_type: str, domain: str, inputs: Sequence[str], outputs: Sequence[str]
) -> onnx.NodeProto:
    """A node of another operator, with the name, doc string and metadata of the node ``original``."""
    node = deepcopy(original)
    for field in ("input", "output", "attribute", "domain"):
        node.ClearField(field)
    node.MergeFrom(onnx.NodeProto(op_type=op_type, domain=domain or None, input=inputs, output=outputs))
    return node


def typed_in_function(match: Match, first: str, names: Names) -> tuple[str, list[onnx.NodeProto]]:
    """The name of an op's output, and the nodes that make the output of the node in ``match`` from it.

    onnxruntime infers types inside functions before it knows this package's ops: there a CastLike gives the output the
    type of the input ``first``.
    """
    record = match.record
    if match.scope.function is None:
        return record.output, []
    value = names.new(f"{record.output}_untyped")
    return value, [cast("CastLike", [value, first], record.output, record.where, names)]
