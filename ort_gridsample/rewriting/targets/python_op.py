"""The target ``ort_gridsample``: this package's own op, with the helpers that it needs around it."""

from __future__ import annotations

import onnx
from onnx import helper

from ...detection.helpers import cast, guard_name, guards, has_status, mark
from ...detection.match import Match
from ...dialects.table import DOMAIN, OURS, AttributeReference
from ...graph.element_types import elem_type
from ...graph.scope import Names, subgraphs
from ...spec import MODE_SYNONYMS, TYPES
from . import CAST_LIKE, Replacement, typed_in_function
from .spelled import Spelled

#: The first opset whose Cast knows bfloat16, and the first with GatherND.
_BFLOAT16, _GATHER_ND = 13, 11


class PythonOp(Spelled):
    """The Python op, with its helpers.

    Args:
        in_session: whether nobody changes the model afterwards. Then the guard stands beside Y, which is not copied;
            else Y goes through the guard, as others' passes drop a node whose output nobody reads.
    """

    def __init__(self, in_session: bool = False) -> None:
        super().__init__("")  # a node of its own that stands for several is expanded too
        self._dialects, self._in_session = OURS, in_session

    def takes(self, match: Match) -> bool:
        # Sessions and earlier releases write a guard that nobody reads.
        around = (match.scope.container.node[index] for index in match.helpers)
        guarded = any(guards(node, match.node) for node in around)
        kept = guarded or (self._in_session and has_status(match.node))
        return match.record.dialect.name != DOMAIN or not kept

    def needs_inlining(self, match: Match) -> bool:
        """A call brings another type that needs a Cast, or an attribute that the op does not know; or no CastLike."""
        record, opset = match.record, match.scope.opsets.get("", 0)
        different = any(len(ts) > 1 and any(TYPES[t].transport != t for t in ts) for ts in record.types.values())
        passed = [(name, value) for name, value in record.attributes.items() if isinstance(value, AttributeReference)]
        spelled = [pair for name, _ in passed for pair in record.dialect.attributes[name].values.items()]
        # The op accepts words and their synonyms, and no other's.
        foreign = any(MODE_SYNONYMS.get(str(written), written) != value for value, written in spelled)
        several = not all(_has_one_default(value, match.scope.function) for _, value in passed)
        return different or foreign or several or opset < CAST_LIKE

    def least_opset(self, match: Match) -> int:
        types = {each for types in match.record.types.values() for each in types}
        # onnxruntime's Gather takes of each row of strings the first.
        return _BFLOAT16 if "bfloat16" in types else _GATHER_ND if "str" in types else 1

    def replace(self, match: Match, names: Names) -> Replacement:
        record = match.record
        *before, op = super().replace(match, names).nodes
        inputs = list[str]()
        for argument, value in zip(record.values, op.input, strict=True):
            if argument in record.casts:
                source, value = value, names.new(f"{value}_as_{record.casts[argument]}")
                before.append(cast("Cast", [source], value, record.where, names, to=elem_type(record.casts[argument])))
            inputs.append(value)
        first, value = next(iter(record.values)), record.output
        if first in record.casts:  # the output has the first input's type
            value = names.new(f"{value}_as_{record.casts[first]}")
            after = [cast("Cast", [value], record.output, record.where, names, to=elem_type(record.types[first][0]))]
        else:
            value, after = typed_in_function(match, inputs[0], names)
        unguarded, status = (names.new(f"{record.output}_{name}") for name in ("unguarded", "status"))
        op.input[:], op.output[:] = inputs, [value if self._in_session else unguarded, status]
        own = {"node": record.label, "num_threads": 0}  # onnxruntime creates no op that lacks a declared attribute
        op.attribute.extend(helper.make_attribute(*each) for each in own.items())
        _state_defaults(match)
        kind = "GatherND" if match.scope.opsets.get("", 0) >= _GATHER_ND else "Gather"
        if self._in_session:
            guarded = [status, status], [unguarded]
        else:
            if kind == "Gather":  # it leaves the places' own axis in the answer
                squeezed, value = value, names.new(f"{value}_gathered")
                after.insert(0, mark(helper.make_node("Squeeze", [value], [squeezed], axes=[1]), record.where))
            guarded = [unguarded, status], [value]
        guard = helper.make_node(kind, *guarded, names.new(guard_name(record.where)))
        return Replacement([*before, op, mark(guard, record.where), *after])


def _state_defaults(match: Match) -> None:
    """Let the function of ``match`` say the operator's defaults, which count where a call leaves attributes out."""
    function = match.scope.function or onnx.FunctionProto()
    for name, value in match.record.attributes.items():
        spelling = match.record.dialect.attributes[name]
        if isinstance(value, AttributeReference) and value.name in function.attribute and spelling.default is not None:
            function.attribute.remove(value.name)
            default = spelling.values[spelling.default]
            function.attribute_proto.append(helper.make_attribute(value.name, default))


def _has_one_default(reference: AttributeReference, function: onnx.FunctionProto | None) -> bool:
    """Whether all nodes that refer to the function's attribute have the same default for it, or it has its own."""
    if function is None or reference.name not in function.attribute:
        return True
    nodes = list(function.node)
    for node in nodes:  # grows while it is walked
        nodes += [inner for _, graph in subgraphs(node) for inner in graph.node]
    uses = ((node, attribute) for node in nodes for attribute in node.attribute)
    return len({(n.op_type, n.domain, a.name) for n, a in uses if a.ref_attr_name == reference.name}) == 1
