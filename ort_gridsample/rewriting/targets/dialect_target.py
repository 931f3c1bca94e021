"""The standard, and every dialect, as targets: one node for one node, in another spelling."""

from __future__ import annotations

import onnx
from onnx import helper

from ... import spec
from ...detection.match import Match
from ...dialects.registry import dialects
from ...dialects.spelling import AttributeReference, Dialect, Spelling
from ...dialects.table import AI_ONNX, standard
from ...errors import GridSampleError
from ...functions import validation
from ...graph.new_nodes import Names, Nodes
from . import Replacement, Target, with_operator


class DialectTarget(Target):
    """The operator as the standard or a dialect spells it.

    Args:
        name: the name of the dialect.
        strict: whether the standard's first version is written only for the numbers of axes that it
            defines. Exporters write it for all numbers, and onnxruntime reads that.
        first_words: whether standard nodes get the first version's words in any opset, because some
            execution providers have no others.
    """

    def __init__(self, name: str, strict: bool = False, first_words: bool = False) -> None:
        self.name = name
        self._strict = strict
        self._first_words = first_words
        # The dialect that was added last has precedence.
        self._dialects = {d.operator: d for d in reversed(dialects()) if d.name == name}

    def _dialect(self, match: Match) -> Dialect | None:
        """Return the dialect that a node is written in; None if there is none for its operator."""
        operator = match.record.operator
        if self.name != AI_ONNX:
            return self._dialects.get(operator)
        opset = 0 if self._first_words else match.opset
        return standard(operator, opset)

    def replaces(self, match: Match) -> bool:
        record = match.record
        dialect = self._dialect(match)
        if dialect is None:
            return False
        if self._is_spelled_as(match, dialect) and not match.is_unversioned:
            return False
        if record.decomposed and match.opset < self.least_opset(match):
            return False  # the nodes run as they are: no reason to convert the whole model
        return dialect.axes is None or record.has_axes_of(dialect.axes)

    def _is_spelled_as(self, match: Match, dialect: Dialect) -> bool:
        """Whether the node is spelled as this target would spell it."""
        if self._first_words:
            return match.record.dialect == dialect
        return match.record.dialect.name == self.name

    def needs_inlining(self, match: Match) -> bool:
        """Whether the node refers to an attribute of its function that is spelled differently."""
        record = match.record
        dialect = self._dialect(match)
        if dialect is None:
            return False
        for name, value in record.attributes.items():
            if isinstance(value, AttributeReference):
                spelling = record.dialect.attributes[name]
                if not spelling.can_be_read_as(dialect.attributes[name]):
                    return True
        return False

    def least_opset(self, match: Match) -> int:
        if self.name != AI_ONNX:
            return 1
        record = match.record
        versions = spec.OPERATORS[record.operator]
        record_types = {name: {*types} for name, types in record.types.items()}
        for first_opset, version in sorted(versions.items()):
            allowed = {name: {*types} for name, types in version.types.items()}
            has_types = all(types <= allowed[name] for name, types in record_types.items())
            has_axes = not self._strict or version.axes is None or record.has_axes_of(version.axes)
            if has_types and has_axes:
                return first_opset
        return max(versions)

    def least_opset_reason(self, match: Match) -> str:
        record = match.record
        least = self.least_opset(match)
        if least == min(spec.OPERATORS[record.operator]):
            return f"the first opset that has {record.operator}"
        version = spec.OPERATORS[record.operator][least]
        if version.axes is None and record.spatial_axes not in ((2,), ()):
            ranks = validation.format_choices(n_axes + 2 for n_axes in record.spatial_axes)
            return f"the first opset whose {record.operator} takes an input of {ranks} axes"
        return f"the first opset whose {record.operator} has these types and axes"

    def replacement_for(self, match: Match, names: Names) -> Replacement:
        record = match.record
        dialect = self._dialect(match)
        assert dialect is not None  # otherwise ``replaces`` is false
        nodes = Nodes(names, record.output)
        inputs = []
        for argument, value in record.values.items():
            inputs.append(value or nodes.constant(record.constants[argument]))
        node = with_operator(
            match.node, dialect.op_type, dialect.domain, inputs=inputs, outputs=[record.output]
        )
        plain = {}
        for name, attribute in record.attributes.items():
            spelling = dialect.attributes[name]
            if isinstance(attribute, AttributeReference):
                node.attribute.add(
                    name=spelling.name,
                    type=_reference_type(match.node, attribute, spelling),
                    ref_attr_name=attribute.name,
                )
            elif attribute in spelling.values:
                plain[name] = attribute
            else:
                expected = f"{validation.format_choices(spelling.values)} in {dialect.name}"
                raise GridSampleError(record.where, name, repr(attribute), expected)
        node.attribute.extend(dialect.write(plain))
        return Replacement([*nodes, node])


def _reference_type(
    node: onnx.NodeProto,
    reference: AttributeReference,
    spelling: Spelling,
) -> onnx.AttributeProto.AttributeType:
    """Return the type of the attribute of ``node`` that is ``reference``.

    It may be a word where the dialect writes codes (``Spelling.other_values``). If the node has no
    type, it is that of the values of ``spelling``.
    """
    for attribute in node.attribute:
        if attribute.ref_attr_name == reference.name and attribute.type:
            return attribute.type
    return helper.make_attribute("", next(iter(spelling.values.values()))).type
