"""Deformable attention as one node: this package's compiled op or Python op."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import onnx
from onnx import helper

from ...detection.match import Match
from ...dialects.table import ATTENTION, COMPILED_DOMAIN
from ...graph.new_nodes import Names, Nodes
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
        self.write(match, detected, names)
        return Replacement([*detected.nodes, *detected.after])

    @abstractmethod
    def write(self, match: Match, detected: DetectedAttention, names: Names) -> None:
        """Add the nodes that compute ``detected.output`` to ``detected.nodes``."""


class CompiledAttentionTarget(AttentionTarget):
    """The compiled op."""

    def write(self, match: Match, detected: DetectedAttention, names: Names) -> None:
        operands = detected.write_operands()
        points = detected.attention.points
        detected.nodes.append(_compiled_op(match, operands, detected.output, points))


class PythonAttentionTarget(AttentionTarget):
    """The Python op, with its helpers.

    Args:
        in_session: as in :class:`.PythonOpTarget`.
    """

    def __init__(self, in_session: bool = False) -> None:
        self._op = PythonOpTarget(in_session)

    def write(self, match: Match, detected: DetectedAttention, names: Names) -> None:
        values = dict(zip(match.record.values, detected.write_operands(), strict=True))
        record = replace(match.record, values=values, output=detected.output)
        detected.nodes += self._op.replacement_for(replace(match, record=record), names).nodes


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
        nodes = Nodes(names, output)
        foreign_operands = ForeignOperands(ChecksForPackageOp(match, signature, nodes).write())
        operands = foreign_operands.write()
        levels, points = foreign_operands.write_levels(operands)
        inputs = (operands.value, levels, operands.locations, operands.weights)
        op_output = names.new(f"{output}_by_query") if signature.is_by_head else output
        if self._is_python:
            # A Reshape after the op must read its output through the guard, or it fails first.
            python_op = PythonOpTarget(self._in_session and not signature.is_by_head)
            record = op_record(match)
            values = dict(zip(record.values, inputs, strict=True))
            record = replace(record, values=values, output=op_output)
            nodes += python_op.replacement_for(replace(match, record=record), names).nodes
        else:
            nodes.append(_compiled_op(match, inputs, op_output, points))
        if signature.is_by_head:
            head_shape = nodes.add("Gather", nodes.add("Shape", operands.value), nodes.row(2, 3))
            shape = nodes.add("Concat", nodes.row(0, 0), head_shape, axis=0)
            nodes.add("Reshape", op_output, shape, output=output)
        return Replacement(nodes, superseded=constants_of(match))


def _compiled_op(
    match: Match,
    operands: Sequence[str],
    output: str,
    points: Sequence[int],
) -> onnx.NodeProto:
    """Return the compiled op that replaces the node of ``match``.

    Args:
        match: the node to replace.
        operands: the names of value, levels, locations and weights.
        output: the name of the output.
        points: the number of points on each level, as far as they are known.
    """
    node = with_operator(match.node, ATTENTION, COMPILED_DOMAIN, inputs=operands, outputs=[output])
    attributes = {
        "align_corners": match.record.align_corners,
        "node": label(match.node) or match.record.label,
        # Read when this node is detected again, if the levels are computed.
        "points": " ".join(map(str, points)),
    }
    node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
    return node
