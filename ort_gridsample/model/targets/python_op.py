"""The target ``ort_gridsample``: this package's own op, with the helpers that it needs around it."""

from __future__ import annotations

import onnx
from onnx import helper

from ...spec import TYPES
from ..dialects import DOMAIN, OURS
from ..element_types import elem_type
from ..graphs import Names
from ..helpers import cast_name, guard_name
from ..records import NodeRecord, passed_on
from . import Replacement, arguments, renamed

#: The first opset with CastLike, and the first whose Cast knows bfloat16.
_CAST_LIKE, _BFLOAT16 = 15, 13


class PythonOp:
    """See :class:`ort_gridsample.model.targets.Target`."""

    def takes(self, record: NodeRecord) -> bool:
        return not record.patched

    def is_torn(self, record: NodeRecord) -> bool:
        """Calls bring different types, of which one needs a Cast; or the function is too old for a CastLike."""
        different = any(len(ts) > 1 and any(TYPES[t].carrier != t for t in ts) for ts in record.types.values())
        return different or record.scope.opsets.get("", 0) < _CAST_LIKE

    def least_opset(self, record: NodeRecord) -> int:
        return _BFLOAT16 if any("bfloat16" in types for types in record.types.values()) else 1

    def replace(self, record: NodeRecord, names: Names) -> Replacement:
        op = renamed(record, record.operator, DOMAIN)
        (before, values), after = arguments(record, names), []
        for argument, value in zip(record.values, values, strict=True):
            if argument in record.casts:
                source, value = value, names.new(f"{value}_as_{record.casts[argument]}")
                before.append(self._cast(record, names, source, value, record.casts[argument]))
            op.input.append(value)
        first, value = next(iter(record.values)), record.output
        if first in record.casts:  # the output has the first input's type
            value = names.new(f"{value}_as_{record.casts[first]}")
            after.append(self._cast(record, names, value, record.output, record.types[first][0]))
        elif record.scope.function is not None:
            # onnxruntime infers types inside functions before it knows the op; CastLike tells it the output's.
            value = names.new(f"{value}_untyped")
            after.append(
                helper.make_node("CastLike", [value, op.input[0]], [record.output], names.new(cast_name(record.where)))
            )
        op.output.extend([value, names.new(f"{record.output}_status")])
        op.attribute.extend(self._attributes(record))
        # Of one element and indexed by itself: anything but 0 is out of bounds.
        unread = names.new(f"{record.output}_unread")
        guard = helper.make_node("Gather", [op.output[1]] * 2, [unread], names.new(guard_name(record.where)))
        return Replacement([*before, op, *after], [guard])

    @staticmethod
    def _cast(record: NodeRecord, names: Names, source: str, to: str, type_name: str) -> onnx.NodeProto:
        return helper.make_node("Cast", [source], [to], names.new(cast_name(record.where)), to=elem_type(type_name))

    @staticmethod
    def _attributes(record: NodeRecord) -> list[onnx.AttributeProto]:
        """All of them written out: onnxruntime does not create an op whose declared attribute is missing."""
        written = {attribute.name: attribute for attribute in record.node.attribute}
        attributes = []
        for name, value in record.attributes.items():
            if passed_on(value):
                reference = written[record.dialect.attributes[name].name]
                attributes.append(onnx.AttributeProto(name=name, type=reference.type, ref_attr_name=str(value)[1:]))
                give_default(record, name, str(value)[1:])
            else:
                attributes.append(helper.make_attribute(name, OURS[record.operator].attributes[name].values[value]))
        attributes.append(helper.make_attribute("node", record.label))
        attributes.append(helper.make_attribute("num_threads", 0))
        return attributes


def give_default(record: NodeRecord, attribute: str, name: str) -> None:
    """Let the function's attribute ``name`` have the operator's default where a call leaves it out."""
    function, spelling = record.scope.function, record.dialect.attributes[attribute]
    if function is not None and name in function.attribute and spelling.default is not None:
        function.attribute.remove(name)
        function.attribute_proto.append(helper.make_attribute(name, spelling.values[spelling.default]))
