"""The standard, and every dialect, as targets: one node for one node, in another spelling."""

from __future__ import annotations

from typing import Literal

import onnx
from onnx import helper

from ... import spec
from ...detection.match import Match
from ...detection.records import NodeRecord
from ...dialects.registry import dialects
from ...dialects.spelling import AttributeReference, Dialect, Spelling
from ...dialects.table import AI_ONNX, standard
from ...errors import GridSampleError
from ...functions import validation
from ...graph.expressions import Expressions
from ...graph.new_names import Names
from . import Replacement, Target, with_operator

#: For which nodes the standard's target writes an older version of an operator.
#:
#: ``"any"``: for all numbers of axes. Exporters write GridSample-16 so, and onnxruntime reads it.
#: ``"runnable"``: not for a number of axes that the version does not define, nor for types of
#: which onnxruntime has a kernel in a newer opset only.
#: ``"certain"``: only for numbers of axes that the version certainly defines.
OlderVersions = Literal["any", "runnable", "certain"]

#: The first opset in which onnxruntime has kernels of GridSample for float64.
_FIRST_OPSET_WITH_FLOAT64_KERNELS = 20


class DialectTarget(Target):
    """The operator as the standard or a dialect spells it.

    Args:
        name: the name of the dialect.
        older_versions: for which nodes an older version of the standard's operator is written.
        first_words: whether standard nodes get the first version's words in any opset, because some
            execution providers have no others.
    """

    def __init__(
        self,
        name: str,
        older_versions: OlderVersions = "any",
        *,
        first_words: bool = False,
    ) -> None:
        self.name = name
        self._older_versions = older_versions
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
        return self.least_opset_of(match.record)

    def least_opset_of(self, record: NodeRecord) -> int:
        """Return :meth:`least_opset` of the node with this record."""
        if self.name != AI_ONNX:
            return 1
        versions = spec.OPERATORS[record.operator]
        for first_opset, version in sorted(versions.items()):
            if self._fits(record, first_opset, version):
                return first_opset
        return max(versions)

    def _fits(self, record: NodeRecord, first_opset: int, version: spec.Version) -> bool:
        """Whether a node can be written in a version of the standard's operator."""
        has_types = all({*types} <= {*version.types[name]} for name, types in record.types.items())
        # A node of this package was another one before, which is restored.
        is_restored = record.patched
        if self._older_versions == "certain":
            has_axes = version.axes is None or record.has_axes_of(version.axes)
        elif self._older_versions == "any" or is_restored:
            has_axes = True
        else:
            n_axes = record.spatial_axes or record.dialect.axes or ()
            has_axes = version.axes is None or {*n_axes} <= {*version.axes}
            if first_opset < _FIRST_OPSET_WITH_FLOAT64_KERNELS and _is_float64(record):
                return False
        return has_types and has_axes

    def least_opset_reason(self, match: Match) -> str:
        record = match.record
        least = self.least_opset(match)
        if least == min(spec.OPERATORS[record.operator]):
            return f"the first opset that has {record.operator}"
        version = spec.OPERATORS[record.operator][least]
        if version.axes is None and record.spatial_axes not in ((2,), ()):
            ranks = validation.format_choices(n_axes + 2 for n_axes in record.spatial_axes)
            return f"the first opset whose {record.operator} takes an input of {ranks} axes"
        if least == _FIRST_OPSET_WITH_FLOAT64_KERNELS and _is_float64(record):
            return f"the first opset in which onnxruntime runs a {record.operator} of float64"
        return f"the first opset whose {record.operator} has these types and axes"

    def replacement_for(self, match: Match, names: Names) -> Replacement:
        record = match.record
        dialect = self._dialect(match)
        assert dialect is not None  # otherwise ``replaces`` is false
        e = Expressions(record.output, match.opset, names=names)
        inputs = []
        for argument, value in record.values.items():
            inputs.append(value or e.name_of(e.constant(record.constants[argument])))
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
        e.node(node)
        return Replacement(e.finish_all())


def _is_float64(record: NodeRecord) -> bool:
    """Whether both inputs of a GridSample may be of float64."""
    return all("float64" in record.types.get(name, ()) for name in ("X", "grid"))


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
