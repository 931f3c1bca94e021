"""The target ``ort_gridsample``: this package's Python op, with the helper nodes around it."""

from __future__ import annotations

import onnx
from onnx import helper

from ...detection.helper_nodes import (
    has_status,
    helper_cast,
    is_guard_of,
    mark_as_helper,
)
from ...detection.match import Match
from ...dialects.spelling import AttributeReference
from ...dialects.table import DOMAIN, PACKAGE_DIALECTS
from ...graph.element_types import elem_type
from ...graph.first_opsets import (
    FIRST_OPSET_WITH_BFLOAT16_CAST,
    FIRST_OPSET_WITH_CAST_LIKE,
    FIRST_OPSET_WITH_GATHER_ND,
)
from ...graph.new_names import Names
from ...graph.run_errors import guard_name
from ...graph.scope import graphs_of
from ...spec import MODE_SYNONYMS, TYPES
from . import Replacement, typed_in_function
from .dialect_target import DialectTarget


class PythonOpTarget(DialectTarget):
    """The Python op, with its helpers.

    Args:
        in_session: whether no other tool changes the model afterwards. Then the guard reads only
            the op's status, and Y is not copied. Otherwise Y passes through the guard, because the
            passes of other tools drop a node whose output is not read.
    """

    def __init__(self, in_session: bool = False) -> None:
        super().__init__("")  # no name: composite nodes of this package are expanded as well
        self._dialects = PACKAGE_DIALECTS
        self._in_session = in_session

    def replaces(self, match: Match) -> bool:
        if match.record.dialect.name != DOMAIN:
            return True
        # A session writes a guard whose output is not read.
        helpers = [match.scope.nodes[index] for index in match.helpers]
        is_guarded = any(is_guard_of(helper_node, match.node) for helper_node in helpers)
        is_kept = is_guarded or (self._in_session and has_status(match.node))
        return not is_kept

    def needs_inlining(self, match: Match) -> bool:
        """Whether the node's function must be inlined.

        It must be if calls differ in a type that needs a Cast, if they pass attributes that the op
        cannot read, or if the opset has no CastLike.
        """
        record = match.record
        if match.opset < FIRST_OPSET_WITH_CAST_LIKE:
            return True
        for argument, types in record.types.items():
            needs_cast = any(TYPES[type_name].transport != type_name for type_name in types)
            if needs_cast and record.varies_in_type(argument):
                return True
        for name, value in record.attributes.items():
            if not isinstance(value, AttributeReference):
                continue
            if not _has_one_default(value, match.scope.function):
                return True
            # The op reads the package's words and their synonyms.
            for plain, written in record.dialect.attributes[name].values.items():
                if MODE_SYNONYMS.get(str(written), written) != plain:
                    return True
        return False

    def least_opset(self, match: Match) -> int:
        types = {type_name for types in match.record.types.values() for type_name in types}
        if "bfloat16" in types:
            return FIRST_OPSET_WITH_BFLOAT16_CAST
        # Of each row of strings, onnxruntime's Gather gathers only the first.
        return FIRST_OPSET_WITH_GATHER_ND if "str" in types else 1

    def replacement_for(self, match: Match, names: Names) -> Replacement:
        record = match.record
        *before, op = super().replacement_for(match, names).nodes
        inputs = []
        for argument, value in zip(record.values, op.input, strict=True):
            if argument in record.casts:
                input_cast = _input_cast(match, value, record.casts[argument], names)
                before.append(input_cast)
                value = input_cast.output[0]
            inputs.append(value)
        value, after = _output_cast(match, inputs[0], names)
        op_output = value if self._in_session else names.new(f"{record.output}_unguarded")
        status = names.new(f"{record.output}_status")
        op.input[:] = inputs
        op.output[:] = [op_output, status]
        # onnxruntime creates no op that lacks a declared attribute.
        op.attribute.append(helper.make_attribute("node", record.label))
        op.attribute.append(helper.make_attribute("num_threads", 0))
        return Replacement(
            [*before, op, *self._guard_nodes(match, op, value, names), *after],
            attribute_defaults=_attribute_defaults(match),
        )

    def _guard_nodes(
        self, match: Match, op: onnx.NodeProto, value: str, names: Names
    ) -> list[onnx.NodeProto]:
        """Return the nodes that make a run fail if the op failed.

        They compute ``value`` from the op's output. In a session, ``value`` is this output itself.
        """
        record = match.record
        op_output, status = op.output
        has_gather_nd = match.opset >= FIRST_OPSET_WITH_GATHER_ND
        inputs = [op_output, status]
        output = value
        squeezes = []
        if self._in_session:
            inputs = [status, status]
            output = names.new(f"{record.output}_guard")
        elif not has_gather_nd:  # a Gather's output has an axis more
            output = names.new(f"{value}_gathered")
            squeeze = helper.make_node("Squeeze", [output], [value], axes=[1])
            squeezes.append(mark_as_helper(squeeze, record.where))
        name = names.new(guard_name(record.where))
        guard = helper.make_node("GatherND" if has_gather_nd else "Gather", inputs, [output], name)
        return [mark_as_helper(guard, record.where), *squeezes]


def _input_cast(match: Match, value: str, type_name: str, names: Names) -> onnx.NodeProto:
    """Return a Cast of an input to a type that the op has."""
    output = names.new(f"{value}_as_{type_name}")
    to = elem_type(type_name)
    return helper_cast("Cast", [value], output, match.record.where, names, to=to)


def _output_cast(
    match: Match,
    first_input: str,
    names: Names,
) -> tuple[str, list[onnx.NodeProto]]:
    """Return the name of the op's output, and the nodes that give it the node's type.

    The output has the type of the node's first input.
    """
    record = match.record
    first_argument = next(iter(record.values))
    if first_argument not in record.casts:
        return typed_in_function(match, first_input, names)
    value = names.new(f"{record.output}_as_{record.casts[first_argument]}")
    to = elem_type(record.types[first_argument][0])
    return value, [helper_cast("Cast", [value], record.output, record.where, names, to=to)]


def _attribute_defaults(match: Match) -> list[onnx.AttributeProto]:
    """Return the operator's defaults, for calls that leave out an attribute of the function."""
    defaults = []
    for name, value in match.record.attributes.items():
        spelling = match.record.dialect.attributes[name]
        if not isinstance(value, AttributeReference) or spelling.default is None:
            continue
        default = spelling.values[spelling.default]
        defaults.append(helper.make_attribute(value.name, default))
    return defaults


def _has_one_default(reference: AttributeReference, function: onnx.FunctionProto | None) -> bool:
    """Whether an attribute of a function has one default, its own or that of all its uses."""
    if function is None or reference.name not in function.attribute:
        return True
    nodes = list(function.node)
    for node in nodes:  # grows while it is iterated
        nodes += [inner for _, graph in graphs_of(node) for inner in graph.node]
    uses = set()
    for node in nodes:
        for attribute in node.attribute:
            if attribute.ref_attr_name == reference.name:
                uses.add((node.op_type, node.domain, attribute.name))
    return len(uses) == 1
