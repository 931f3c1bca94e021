"""The targets of a patch: one module for each kind.

A target decides which nodes it replaces, and writes their replacements.
:mod:`ort_gridsample.rewriting.patch` detects the nodes and inserts the replacements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import onnx

from ...detection.helper_nodes import helper_cast
from ...detection.match import Match
from ...graph.new_names import Names
from ...graph.runtimes import ANY

#: The domain of the functions that lowered nodes share.
FUNCTIONS_DOMAIN = "ort_gridsample.primitives"


@dataclass(frozen=True)
class Replacement:
    """The replacement of a node.

    Attributes:
        nodes: the nodes that replace the node.
        functions: model-local functions that ``nodes`` call.
        superseded: the indices of other nodes that ``nodes`` replace as well, unless another node
            reads them.
        value_info: the types of new values, for the graph or the function of the node.
        attribute_defaults: defaults of attributes of the node's function, which had none.
    """

    nodes: Sequence[onnx.NodeProto]
    functions: Sequence[onnx.FunctionProto] = ()
    superseded: Sequence[int] = ()
    value_info: Sequence[onnx.ValueInfoProto] = ()
    attribute_defaults: Sequence[onnx.AttributeProto] = ()


class TargetSelector(ABC):
    """Selects the targets of nodes.

    A composite node is one that is equivalent to several nodes, such as deformable attention.

    A patch calls the methods in this order:

    1. :meth:`needs_expansion` for composite nodes. Nodes that need it are expanded, and the model
       is searched again.
    2. :meth:`replaces_composite` for the composite nodes that stay.
    3. :meth:`targets_of`, for all nodes but the composite ones that are not replaced.
    4. Of these targets, :meth:`Target.needs_inlining` and :meth:`Target.least_opset`. The model is
       changed and searched again, until neither requires a change.
    5. :meth:`Target.replacement_for`.

    Attributes:
        name: the name of the dialect that composite nodes are written in, or "".
        replaces_decomposed: whether decomposed operators are replaced.
        fuses: whether a patch searches for fused grids and for attentions.
        replaces_attention: whether a patch searches for attentions.
        has_allowzero: whether Reshapes of expanded nodes may have the attribute ``allowzero``.
        runtime: the runtime that expanded nodes are for.
    """

    name = ""
    replaces_decomposed = True
    fuses = False
    replaces_attention = False
    has_allowzero = True
    runtime = ANY

    @abstractmethod
    def targets_of(self, matches: Sequence[Match]) -> dict[Match, Target]:
        """Return the targets of the nodes that are replaced, in the order of ``matches``."""

    def needs_expansion(self, match: Match) -> bool:
        """Whether a composite node must be expanded before it is replaced."""
        return match.record.dialect.name != self.name

    def replaces_composite(self, match: Match) -> bool:
        """Whether a composite node is replaced by another one, without expansion."""
        return False


class Target(TargetSelector):
    """One kind of replacement for nodes, which selects itself for the nodes that it replaces."""

    def targets_of(self, matches: Sequence[Match]) -> dict[Match, Target]:
        return {match: self for match in matches if self.replaces(match)}

    @abstractmethod
    def replaces(self, match: Match) -> bool:
        """Whether the target replaces a node."""

    @abstractmethod
    def needs_inlining(self, match: Match) -> bool:
        """Whether the node's function must be inlined, because one body cannot serve all calls."""

    def least_opset(self, match: Match) -> int:
        """Return the oldest opset of the ONNX domain in which the replacement can be written."""
        return 1

    def least_opset_reason(self, match: Match) -> str:
        """Return why an older opset than :meth:`least_opset` does not suffice, for an error."""
        return "the first in which the target can write this node"

    @abstractmethod
    def replacement_for(self, match: Match, names: Names) -> Replacement:
        """Return the replacement of a node. The model is not changed.

        Args:
            match: a node that the target replaces.
            names: returns names of new values and nodes.

        Raises:
            GridSampleError: the node cannot be written.
        """


class _NoNodes(Target):
    """The target of a node that another node's op absorbs: the node is dropped."""

    def replaces(self, match: Match) -> bool:
        return True

    def needs_inlining(self, match: Match) -> bool:
        return False  # its host is in the same function

    def replacement_for(self, match: Match, names: Names) -> Replacement:
        return Replacement([])


#: The target of nodes that are absorbed.
ABSORBED = _NoNodes()


def with_operator(
    original: onnx.NodeProto,
    op_type: str,
    domain: str,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> onnx.NodeProto:
    """Return a node of another operator, with the name, doc string and metadata of ``original``."""
    node = deepcopy(original)
    for field in ("input", "output", "attribute", "domain"):
        node.ClearField(field)
    new_fields = onnx.NodeProto(op_type=op_type, input=inputs, output=outputs)
    if domain:
        new_fields.domain = domain
    node.MergeFrom(new_fields)
    return node


def typed_in_function(
    match: Match,
    typed_input: str,
    names: Names,
) -> tuple[str, list[onnx.NodeProto]]:
    """Give the output of an op a type, if the op is in a function.

    onnxruntime infers types inside functions before it knows this package's ops. There, a CastLike
    gives the output the type of an input.

    Args:
        match: the node that the op replaces.
        typed_input: the input whose type the output has.
        names: returns names of new values and nodes.

    Returns:
        The name of the op's output, and the nodes between this output and the output of the node.
    """
    record = match.record
    if match.scope.function is None:
        return record.output, []
    untyped = names.new(f"{record.output}_untyped")
    inputs = [untyped, typed_input]
    return untyped, [helper_cast("CastLike", inputs, record.output, record.where, names)]
