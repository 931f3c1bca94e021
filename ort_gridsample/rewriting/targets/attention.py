"""Deformable attention as one node: this package's compiled op or Python op."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from onnx import helper

from ...detection.match import Match
from ...detection.records import NodeRecord
from ...dialects.table import ATTENTION, COMPILED_DOMAIN
from ...graph.expressions import Expressions, Tensor
from ...graph.new_names import Names
from ..foreign_attention import ForeignOperands
from ..foreign_attention_facts import op_record
from ..foreign_run_checks import ChecksForPackageOp
from ..match_facts import constants_of
from . import Replacement, Target, with_operator
from .compiled_op import label
from .detected_attention import DetectedAttention
from .python_op import PythonOpTarget


class _OneOpTarget(Target):
    """A target that writes a deformable attention as one op."""

    def needs_inlining(self, match: Match) -> bool:
        """Whether the node is in a function, where types are not known."""
        return match.scope.function is not None


class AttentionTarget(_OneOpTarget):
    """A target that writes deformable attention around GridSamples as one node.

    The GridSamples are dropped, unless other nodes read them.
    """

    replaces_decomposed = False
    fuses = True

    def replaces(self, match: Match) -> bool:
        return match.detected_attention is not None or match.enclosing_match is not None

    def replacement_for(self, match: Match, names: Names) -> Replacement:
        if match.detected_attention is None:
            return Replacement([])  # a GridSample that the attention replaces
        detected = DetectedAttention(match, match.detected_attention, names)
        output = match.record.output
        if not detected.attention.has_output_by_query:
            output = names.new(f"{output}_by_query")
        return Replacement(detected.finish(self.op(match, detected, output, names)))

    @abstractmethod
    def op(self, match: Match, detected: DetectedAttention, output: str, names: Names) -> Tensor:
        """Return (B, Q, H·D), called ``output``, from one op."""


class CompiledAttentionTarget(AttentionTarget):
    """The compiled op."""

    def op(self, match: Match, detected: DetectedAttention, output: str, names: Names) -> Tensor:
        return _compiled_op(match, detected.operands(), output, detected.attention.points)


class PythonAttentionTarget(AttentionTarget):
    """The Python op, with its helpers.

    Args:
        in_session: as in :class:`.PythonOpTarget`.
    """

    def __init__(self, in_session: bool = False) -> None:
        self._op = PythonOpTarget(in_session)

    def op(self, match: Match, detected: DetectedAttention, output: str, names: Names) -> Tensor:
        return _python_op(match.record, match, detected.operands(), output, self._op, names)


class ForeignAttentionTarget(_OneOpTarget):
    """One op of this package for another package's node of deformable attention.

    Args:
        is_python: whether the op is the Python op; otherwise it is the compiled op.
        in_session: as in :class:`.PythonOpTarget`.
    """

    def __init__(self, is_python: bool = False, in_session: bool = False) -> None:
        self._is_python = is_python
        self._in_session = in_session

    def replaces(self, match: Match) -> bool:
        return match.is_foreign_attention

    def replacement_for(self, match: Match, names: Names) -> Replacement:
        signature = match.foreign_signature
        assert signature is not None  # otherwise ``replaces`` is false
        output = match.record.output
        e = Expressions(output, match.opset, names=names)
        foreign = ForeignOperands(ChecksForPackageOp(match, signature, e).checked_inputs())
        operands = foreign.operands()
        levels, points = foreign.levels(operands)
        inputs = (operands.value, levels, operands.locations, operands.weights)
        op_output = names.new(f"{output}_by_query") if signature.is_by_head else output
        if self._is_python:
            # A Reshape after the op must read its output through the guard, or it fails first.
            python_op = PythonOpTarget(self._in_session and not signature.is_by_head)
            result = _python_op(op_record(match), match, inputs, op_output, python_op, names)
        else:
            result = _compiled_op(match, inputs, op_output, points)
        if signature.is_by_head:
            shape = e.shape([0, 0, e.lengths(operands.value, 2, 3)])
            result = e.op("Reshape", result, shape)
        return Replacement(e.finish(result, output), superseded=constants_of(match))


def _python_op(
    record: NodeRecord,
    match: Match,
    operands: Sequence[Tensor],
    output: str,
    target: PythonOpTarget,
    names: Names,
) -> Tensor:
    """Return the output of the Python op that replaces the node of ``match``.

    Args:
        record: the record of the Python op, without its operands.
        match: the node to replace.
        operands: value, levels, locations and weights.
        output: the name of the output.
        target: writes the op and its helpers.
        names: returns names of new values and nodes.
    """
    e = operands[0].owner
    operand_names = map(e.name_of, operands)
    values = dict(zip(record.values, operand_names, strict=True))
    record = replace(record, values=values, output=output)
    for node in target.replacement_for(replace(match, record=record), names).nodes:
        e.node(node)
    return e.input(output)


def _compiled_op(
    match: Match,
    operands: Sequence[Tensor],
    output: str,
    points: Sequence[int],
) -> Tensor:
    """Return the output of the compiled op that replaces the node of ``match``.

    Args:
        match: the node to replace.
        operands: value, levels, locations and weights.
        output: the name of the output.
        points: the number of points on each level, as far as they are known.
    """
    e = operands[0].owner
    inputs = [e.name_of(operand) for operand in operands]
    node = with_operator(match.node, ATTENTION, COMPILED_DOMAIN, inputs=inputs, outputs=[output])
    attributes = {
        "align_corners": match.record.align_corners,
        "node": label(match.node) or match.record.label,
        # Read when this node is detected again, if the levels are computed.
        "points": " ".join(map(str, points)),
    }
    node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
    return e.node(node)
