"""The standard operators, and every dialect, as targets: one node for one node, spelled another way."""

from __future__ import annotations

from onnx import helper

from ... import checks
from ...errors import GridSampleError
from ..dialects import STANDARD, Dialect, PassedOn, dialects, standard
from ..graphs import Names
from ..matches import Match
from . import Replacement, arguments, renamed


class Spelled:
    """See :class:`ort_gridsample.model.targets.Target`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._dialects = {d.operator: d for d in reversed(dialects()) if d.name == name}

    def _dialect(self, match: Match) -> Dialect | None:
        if self.name == "ai.onnx":
            return standard(match.record.operator, match.scope.opsets.get("", 0))
        return self._dialects.get(match.record.operator)

    def takes(self, match: Match) -> bool:
        record, dialect = match.record, self._dialect(match)
        if dialect is None or record.dialect.name == self.name:
            return False
        if record.unrolled and match.scope.opsets.get("", 0) < self.least_opset(match):
            return False  # it runs as it is: no reason to convert the whole model
        return dialect.axes is None or not record.spatial_axes or set(record.spatial_axes) <= set(dialect.axes)

    def needs_inlining(self, match: Match) -> bool:
        """The function passes an attribute on, and other words for it would not do."""
        record, dialect = match.record, self._dialect(match)
        return any(
            isinstance(value, PassedOn)
            and dialect is not None
            and not record.dialect.attributes[name].says_as(dialect.attributes[name])
            for name, value in record.attributes.items()
        )

    def least_opset(self, match: Match) -> int:
        if self.name != "ai.onnx":
            return 1
        half = any("bfloat16" in types for types in match.record.types.values())
        return (max if half else min)(STANDARD[match.record.operator])

    def replace(self, match: Match, names: Names) -> Replacement:
        record, dialect = match.record, self._dialect(match)
        assert dialect is not None  # ``takes`` said so
        node = renamed(match.node, dialect.op_type, dialect.domain)
        node.output.append(record.output)
        constants, values = arguments(record, names)
        node.input.extend(values)
        said = {}
        for name, value in record.attributes.items():
            spelling = dialect.attributes[name]
            if isinstance(value, PassedOn):
                kind = helper.make_attribute("", next(iter(spelling.values.values()))).type
                node.attribute.add(name=spelling.name, type=kind, ref_attr_name=value.name)
            elif value in spelling.values:
                said[name] = value
            else:
                expected = f"{checks.listed(spelling.values)} in {self.name}"
                raise GridSampleError(record.where, name, repr(value), expected)
        node.attribute.extend(dialect.write(said))
        return Replacement([*constants, node])
