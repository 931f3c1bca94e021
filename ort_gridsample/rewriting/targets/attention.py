"""Deformable attention as one node: this package's compiled op or Python op."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from onnx import helper

from ... import spec
from ...detection.attention.layouts import OutputLayout
from ...detection.match import Match
from ...dialects.table import ATTENTION, COMPILED_DOMAIN
from ...graph.expressions import Tensor
from ...graph.new_names import Names
from ..attention_call import AttentionCall, AttentionSource
from ..foreign_attention import ForeignAttention
from ..foreign_attention_facts import n_levels_of
from ..foreign_run_checks import check_for_package_op
from ..match_facts import constants_of
from . import Replacement, Target, with_operator
from .compiled_op import label
from .detected_attention import DetectedAttention
from .python_op import PythonOpTarget


class AttentionTarget(Target):
    """A target that writes a deformable attention as one node.

    GridSamples that it replaces are dropped, unless other nodes read them.
    """

    #: Writes the checks of the inputs of another package's node.
    check: Callable[[ForeignAttention], None] | None = None

    def needs_inlining(self, match: Match) -> bool:
        """Whether the node is in a function, where types are not known."""
        return match.scope.function is not None

    def replaces(self, match: Match) -> bool:
        return match.detected_attention is not None or match.is_foreign_attention

    def replacement_for(self, match: Match, names: Names) -> Replacement:
        source: AttentionSource
        superseded: Sequence[int] = ()
        if match.is_foreign_attention:
            source = ForeignAttention(match, names, self.check)
            superseded = constants_of(match)
        else:
            assert match.detected_attention is not None  # otherwise ``replaces`` is false
            source = DetectedAttention(match, match.detected_attention, names)
        call = source.call()
        result = self.output(match, source, call, names)
        return Replacement(source.e.finish(result, match.record.output), superseded=superseded)

    @abstractmethod
    def output(
        self, match: Match, source: AttentionSource, call: AttentionCall, names: Names
    ) -> Tensor:
        """Return the model's output from one node.

        Args:
            match: the node to replace.
            names: returns names of new values and nodes.
        """


class _OpTarget(AttentionTarget):
    """An op of this package."""

    check = staticmethod(check_for_package_op)

    def output(
        self, match: Match, source: AttentionSource, call: AttentionCall, names: Names
    ) -> Tensor:
        if match.is_foreign_attention:
            n_levels_of(match)  # it must be known
        layout = self.layout_for(source)
        output = match.record.output
        if source.is_partial or layout != source.output_layout:
            output = names.new(f"{output}_{layout}")
        operands = (call.value, call.level_table(), call.locations, call.weights)
        inputs = [source.e.name_of(operand) for operand in operands]
        result = self.op(match, source, call, inputs, output, names)
        if layout != source.output_layout:
            result = source.rearranged(result, call)
        return source.output(result)

    @abstractmethod
    def layout_for(self, source: AttentionSource) -> OutputLayout:
        """Return the layout of the op's output: that of the model's output, or ``by_query``."""

    @abstractmethod
    def op(
        self,
        match: Match,
        source: AttentionSource,
        call: AttentionCall,
        inputs: Sequence[str],
        output: str,
        names: Names,
    ) -> Tensor:
        """Return the result, called ``output``, of an op with these ``inputs``."""


class CompiledAttentionTarget(_OpTarget):
    """The compiled op."""

    def layout_for(self, source: AttentionSource) -> OutputLayout:
        return source.output_layout

    def op(
        self,
        match: Match,
        source: AttentionSource,
        call: AttentionCall,
        inputs: Sequence[str],
        output: str,
        names: Names,
    ) -> Tensor:
        node = with_operator(
            match.node, ATTENTION, COMPILED_DOMAIN, inputs=inputs, outputs=[output]
        )
        attributes = {
            **call.record.attributes,
            "node": label(match.node) or match.record.label,
            # Read when this node is detected again, if the levels are computed.
            "points": " ".join(map(str, call.levels.points or ())),
        }
        node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
        return source.e.node(node)


class PythonAttentionTarget(_OpTarget):
    """The Python op, with its helpers.

    Args:
        in_session: as in :class:`.PythonOpTarget`.
    """

    def __init__(self, in_session: bool = False) -> None:
        self._in_session = in_session

    def layout_for(self, source: AttentionSource) -> OutputLayout:
        return "by_query"

    def op(
        self,
        match: Match,
        source: AttentionSource,
        call: AttentionCall,
        inputs: Sequence[str],
        output: str,
        names: Names,
    ) -> Tensor:
        # A Reshape after the op must read its output through the guard, or it fails first.
        target = PythonOpTarget(self._in_session and output == match.record.output)
        values = dict(zip(call.record.values, inputs, strict=True))
        attributes = {
            name: value
            for name, value in call.record.attributes.items()
            if name in spec.newest(ATTENTION).attributes
        }
        record = replace(call.record, attributes=attributes, values=values, output=output)
        for node in target.replacement_for(replace(match, record=record), names).nodes:
            source.e.node(node)
        return source.e.input(output)
