"""The standard operators, and every dialect, as targets: one node for one node, spelled another way."""

from __future__ import annotations

from onnx import helper

from ... import checks
from ...errors import GridSampleError
from ..dialects import STANDARD, Dialect, dialects, standard
from ..graphs import Names
from ..records import NodeRecord, passed_on
from . import Replacement, arguments, renamed


class Spelled:
    """See :class:`ort_gridsample.model.targets.Target`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._dialects = {d.operator: d for d in reversed(dialects()) if d.name == name}

    def _dialect(self, record: NodeRecord) -> Dialect | None:
        if self.name == "ai.onnx":
            return standard(record.operator, record.scope.opsets.get("", 0))
        return self._dialects.get(record.operator)

    def takes(self, record: NodeRecord) -> bool:
        dialect = self._dialect(record)
        if dialect is None or record.dialect.name == self.name:
            return False
        return dialect.axes is None or not record.spatial_axes or set(record.spatial_axes) <= set(dialect.axes)

    def is_torn(self, record: NodeRecord) -> bool:
        """The function passes an attribute on, and other words for it would not do."""
        dialect = self._dialect(record)
        return any(
            passed_on(value) and dialect is not None and record.dialect.attributes[name] != dialect.attributes[name]
            for name, value in record.attributes.items()
        )

    def least_opset(self, record: NodeRecord) -> int:
        if self.name != "ai.onnx":
            return 1
        half = any("bfloat16" in types for types in record.types.values())
        return (max if half else min)(STANDARD[record.operator])

    def replace(self, record: NodeRecord, names: Names) -> Replacement:
        dialect = self._dialect(record)
        assert dialect is not None  # ``takes`` said so
        node = renamed(record, dialect.op_type, dialect.domain)
        node.output.append(record.output)
        constants, values = arguments(record, names)
        node.input.extend(values)
        for name, said in record.attributes.items():
            if not passed_on(said) and said not in dialect.attributes[name].values:
                expected = f"{checks.listed(dialect.attributes[name].values)} in {self.name}"
                raise GridSampleError(record.where, name, repr(said), expected)
        kept = {name: value for name, value in record.attributes.items() if not passed_on(value)}
        node.attribute.extend(dialect.write(kept))
        for name, passed in record.attributes.items():
            if passed_on(passed):
                spelling = dialect.attributes[name]
                kind = helper.make_attribute("", next(iter(spelling.values.values()))).type
                node.attribute.add(name=spelling.name, type=kind, ref_attr_name=str(passed)[1:])
        return Replacement([*constants, node])
