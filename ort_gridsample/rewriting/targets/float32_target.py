"""Nodes in float32 between Casts, for execution providers that have kernels of float32 only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx
from onnx import helper

from ... import spec
from ...detection.match import Match
from ...detection.records import NodeRecord
from ...dialects.spelling import Dialect
from ...graph.element_types import elem_type
from ...graph.first_opsets import FIRST_OPSET_WITH_BFLOAT16_CAST
from ...graph.new_names import Names
from . import Replacement
from .dialect_target import DialectTarget


class Float32Target(DialectTarget):
    """The node of a dialect in float32. Casts convert its inputs of other floats, and its output.

    The output has the type of the first input, as before. The arguments are those of
    :class:`.DialectTarget`.
    """

    def _is_spelled_as(self, match: Match, dialect: Dialect) -> bool:
        return False  # the node that the model has is not between Casts

    def replaces(self, match: Match) -> bool:
        if match.record.decomposed or not _casts(match.record):
            return False
        return super().replaces(match)

    def needs_inlining(self, match: Match) -> bool:
        # A body has a Cast to one type.
        record = match.record
        varies = any(record.varies_in_type(argument) for argument in record.values)
        return varies or super().needs_inlining(match)

    def least_opset_of(self, record: NodeRecord) -> int:
        least = super().least_opset_of(_in_float32(record, record.values, record.output))
        if "bfloat16" in _casts(record).values():
            return max(least, FIRST_OPSET_WITH_BFLOAT16_CAST)
        return least

    def replacement_for(self, match: Match, names: Names) -> Replacement:
        record = match.record
        casts = _casts(record)
        values = dict(record.values)
        before = []
        for argument in casts:
            values[argument] = names.new(f"{record.values[argument]}_as_float32")
            before.append(_cast(record.values[argument], values[argument], "float32", names))
        output = record.output
        after = list[onnx.NodeProto]()
        output_type = casts.get(next(iter(record.values)))
        if output_type is not None:
            output = names.new(f"{record.output}_as_float32")
            after.append(_cast(output, record.output, output_type, names))
        in_float32 = replace(match, record=_in_float32(record, values, output))
        nodes = super().replacement_for(in_float32, names).nodes
        return Replacement([*before, *nodes, *after])


def _casts(record: NodeRecord) -> dict[str, str]:
    """Return the inputs of floats other than float32 -> their type."""
    return {
        argument: types[0]
        for argument, types in record.types.items()
        if types and types[0] in spec.FLOATS and types[0] != "float32"
    }


def _in_float32(record: NodeRecord, values: Mapping[str, str], output: str) -> NodeRecord:
    """Return the record of a node with all floats as float32.

    Args:
        record: the record of the node.
        values: input name -> the name of its value for the node in float32.
        output: the name of the output of the node in float32.
    """
    cases = [
        tuple(
            replace(value, type="float32") if value.type in spec.FLOATS else value for value in case
        )
        for case in record.cases
    ]
    return replace(record, cases=cases, values=values, output=output)


def _cast(value: str, output: str, type_name: str, names: Names) -> onnx.NodeProto:
    """Return a Cast of ``value`` to a type."""
    name = names.new(f"{output}_cast")
    return helper.make_node("Cast", [value], [output], name, to=elem_type(type_name))
