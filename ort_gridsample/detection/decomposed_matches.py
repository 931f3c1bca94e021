"""Matches of operators that several nodes compute, each with an equivalent record.

These are decomposed GridSamples and AffineGrids (:mod:`.decomposed`), and deformable attention
around GridSamples (:mod:`.attention`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from .. import spec
from ..dialects.spelling import AttributeValue
from ..dialects.table import ATTENTION, DECOMPOSED, DECOMPOSED_DIALECTS
from ..graph.expressions import Expressions, Tensor
from ..graph.new_names import Names
from ..graph.scope import Scope, display_name
from ..inference.types import Inference, TypeAndShape
from ..reference.arrays import Array
from .attention.layouts import Attention
from .decomposed import DecomposedOperator
from .match import Match
from .node_checks import fault_of
from .records import NodeRecord


def decomposed_match(
    decomposed: DecomposedOperator,
    scope: Scope,
    names: Names,
    inference: Inference,
) -> Match:
    """Return the match of a decomposed operator, with an equivalent node."""
    output = decomposed.subgraph.output
    inputs = _decomposed_inputs(decomposed, scope, names, inference)
    index = scope.makers[output]
    node = helper.make_node(
        decomposed.name,
        list(inputs.values.values()),
        [output],
        scope.nodes[index].name,
        "",
        DECOMPOSED,
    )
    record = _decomposed_record(
        scope,
        output,
        decomposed.name,
        attributes=decomposed.result.attributes,
        cases=inputs.cases,
        values=inputs.values,
        constants=inputs.constants,
    )
    error = fault_of(record, node)
    if error is not None:
        record = replace(record, error=error)
    return Match(
        record,
        node,
        scope,
        index,
        decomposed_nodes=frozenset(decomposed.subgraph.nodes),
        preparing_nodes=tuple(inputs.preparing_nodes),
    )


class _DecomposedInputs(NamedTuple):
    """The inputs of the node that is equivalent to a decomposed operator.

    Attributes:
        values: the name of each input -> the value that the node reads, or "" for a constant that
            is not in the model.
        cases: the types and shapes of the inputs, for each way in which the function is called.
        constants: the name of each constant input -> its elements, if they are not in the model.
        preparing_nodes: nodes that compute inputs which the model does not have.
    """

    values: dict[str, str]
    cases: list[tuple[TypeAndShape, ...]]
    constants: dict[str, Array]
    preparing_nodes: list[onnx.NodeProto]


def _decomposed_inputs(
    decomposed: DecomposedOperator,
    scope: Scope,
    names: Names,
    inference: Inference,
) -> _DecomposedInputs:
    """Return the inputs of the node that is equivalent to a decomposed operator."""
    first = decomposed.subgraph.inputs[0]
    argument_names = spec.newest(decomposed.name).types
    values = dict(zip(argument_names, decomposed.subgraph.inputs, strict=False))
    cases = inference.values_by_call(scope, list(values.values()))
    constants: dict[str, Array] = {}
    computed: dict[str, Tensor] = {}
    e = Expressions(decomposed.subgraph.output, scope.opsets.get("", 0), names=names)
    size = decomposed.result.size
    if size:
        values["size"] = ""
        cases = [(case[0], TypeAndShape("int64", (len(size),))) for case in cases]
        if None in size:  # the batch is that of theta
            batch = e.lengths(e.input(first), 0)
            known_lengths = [length for length in size[1:] if length is not None]
            computed["size"] = e.shape([batch, *known_lengths])
        else:
            constants["size"] = np.array(size, np.int64)
    elif decomposed.result.image_lengths:  # X has all pixels on one axis
        lengths = decomposed.result.image_lengths
        computed["X"] = e.op("Reshape", e.input(first), e.row(0, 0, *lengths))
        cases = [(replace(X, shape=(*(X.shape or ())[:2], *lengths)), grid) for X, grid in cases]
    values.update((argument, e.name_of(value)) for argument, value in computed.items())
    nodes = e.finish_all({e.name_of(value): value for value in computed.values()})
    return _DecomposedInputs(values, cases, constants, nodes)


def _decomposed_record(
    scope: Scope,
    output: str,
    operator: str,
    *,
    attributes: Mapping[str, AttributeValue],
    cases: Sequence[tuple[TypeAndShape, ...]],
    values: Mapping[str, str],
    constants: Mapping[str, Array],
    fused: tuple[str, ...] = (),
) -> NodeRecord:
    """Return the record of a decomposed ``operator`` that computes the value ``output``."""
    return NodeRecord(
        graph=scope.path,
        name=scope.nodes[scope.makers[output]].name or f"({output})",
        operator=operator,
        op_type=operator,
        domain=DECOMPOSED,
        opset=scope.opsets.get("", 0),
        dialect=DECOMPOSED_DIALECTS[operator],
        output=output,
        reason="",
        attributes=attributes,
        cases=cases,
        values=values,
        constants=constants,
        fused=fused,
    )


def attention_match(attention: Attention, scope: Scope, inference: Inference) -> Match:
    """Return the match of a decomposed deformable attention."""
    output = attention.output.name
    index = scope.makers[output]
    sample = attention.levels[0].sample
    value = attention.value.name if attention.value is not None else sample.values["X"]
    locations = sample.values["grid"]
    if attention.locations is not None:
        locations = attention.locations.name
    weights = attention.weights.name
    known_levels = _known_levels(attention)
    levels_value = TypeAndShape("int64", (len(attention.levels), 1 + attention.r))
    argument_names = spec.newest(ATTENTION).types
    record = _decomposed_record(
        scope,
        output,
        ATTENTION,
        attributes={
            "align_corners": sample.attributes["align_corners"],
            "output_layout": attention.output_layout,
        },
        cases=[
            (value_case, levels_value, *other_cases)
            for value_case, *other_cases in inference.values_by_call(
                scope, (value, locations, weights)
            )
        ],
        values=dict(zip(argument_names, (value, "", locations, weights), strict=True)),
        constants={} if known_levels is None else {"levels": known_levels},
        fused=tuple(display_name(scope.nodes[index]) for index in sorted(attention.path)),
    )
    return Match(
        record,
        scope.nodes[index],
        scope,
        index,
        decomposed_nodes=attention.nodes,
        detected_attention=attention,
    )


def _known_levels(attention: Attention) -> Array | None:
    """Return (L, 1 + r): the number of points and the lengths of each level, if they are known."""
    if not all(level.known_lengths for level in attention.levels):
        return None
    level_rows = [[level.points, *level.known_lengths] for level in attention.levels]
    return np.array(level_rows, np.int64)
