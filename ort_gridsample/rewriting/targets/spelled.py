"""The standard operators, and every dialect, as targets: one node for one node, spelled another way."""

from __future__ import annotations

from onnx import helper

from ... import spec
from ...detection.match import Match
from ...dialects.table import AttributeReference, Dialect, dialects, standard
from ...errors import GridSampleError
from ...functions import validation
from ...graph.scope import Names, Nodes
from . import Replacement, Target, renamed


class Spelled(Target):
    """The operator as the standard or a dialect spells it.

    Args:
        name: the dialect's.
        strict: whether the standard's first version is written only for the numbers of axes that it defines. Exporters
            write it for all, and onnxruntime reads that.
        first_words: whether standard nodes get the first version's words in any opset: some providers know no others.
    """

    def __init__(self, name: str, strict: bool = False, first_words: bool = False) -> None:
        self.name, self._strict, self._first_words = name, strict, first_words
        self._dialects = {d.operator: d for d in reversed(dialects()) if d.name == name}

    def _dialect(self, match: Match) -> Dialect | None:
        if self.name == "ai.onnx":
            return standard(match.record.operator, 0 if self._first_words else match.scope.opsets.get("", 0))
        return self._dialects.get(match.record.operator)

    def takes(self, match: Match) -> bool:
        record, dialect = match.record, self._dialect(match)
        is_spelled_so = record.dialect == dialect if self._first_words else record.dialect.name == self.name
        if dialect is None or (is_spelled_so and not match.is_set_aside):
            return False
        if record.unrolled and match.scope.opsets.get("", 0) < self.least_opset(match):
            return False  # it runs as it is: no reason to convert the whole model
        return dialect.axes is None or record.has_axes_of(dialect.axes)

    def needs_inlining(self, match: Match) -> bool:
        """The node refers to an attribute of its function, whose values would have to be spelled otherwise."""
        record, dialect = match.record, self._dialect(match)
        passed = [name for name, value in record.attributes.items() if isinstance(value, AttributeReference)]
        pairs = [(record.dialect.attributes[name], dialect.attributes[name]) for name in passed] if dialect else []
        return any(not one.is_spelled_as(other) for one, other in pairs)

    def least_opset(self, match: Match) -> int:
        if self.name != "ai.onnx":
            return 1
        record, versions = match.record, spec.OPERATORS[match.record.operator]
        for first, version in sorted(versions.items()):
            axes = version.axes if self._strict else None
            has_types = all({*types} <= {*version.types[name]} for name, types in record.types.items())
            if has_types and (axes is None or record.has_axes_of(axes)):
                return first
        return max(versions)

    def replace(self, match: Match, names: Names) -> Replacement:
        record, dialect = match.record, self._dialect(match)
        assert dialect is not None  # else ``takes`` is false
        nodes = Nodes(names, record.output)
        values = [value or nodes.constant(record.constants[argument]) for argument, value in record.values.items()]
        node = renamed(match.node, dialect.op_type, dialect.domain, values, [record.output])
        plain = {}
        for name, value in record.attributes.items():
            spelling = dialect.attributes[name]
            if isinstance(value, AttributeReference):
                kind = helper.make_attribute("", next(iter(spelling.values.values()))).type
                node.attribute.add(name=spelling.name, type=kind, ref_attr_name=value.name)
            elif value in spelling.values:
                plain[name] = value
            else:
                expected = f"{validation.listed(spelling.values)} in {dialect.name}"
                raise GridSampleError(record.where, name, repr(value), expected)
        node.attribute.extend(dialect.write(plain))
        return Replacement([*nodes, node])
