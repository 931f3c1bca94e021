"""Find the sampling nodes of a model.

:func:`find_matches` runs the parts of this package in order: it recognizes nodes by their dialects,
finds decomposed operators (:mod:`.decomposed`), deformable attention around GridSamples
(:mod:`.attention`) and the computations of grids (:mod:`.fusion`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from .. import spec
from ..dialects.registry import attention_signature, dialect_of, is_added, operator_types
from ..dialects.spelling import AttributeValue, Dialect, attribute_input
from ..dialects.table import (
    ATTENTION,
    DECOMPOSED,
    DECOMPOSED_DIALECTS,
    DOMAIN,
    UNVERSIONED,
    standard,
)
from ..errors import GridSampleError, nested_name, where_node
from ..graph.scope import Names, Nodes, Scope, display_name, domain_of, function_key, scopes_of
from ..graph.use_def import UseDef
from ..inference.probe import Probe
from ..inference.types import Inference, TypeAndShape
from ..reference.arrays import Array
from ..reference.plan import type_name
from .attention.layouts import Attention
from .attention.matcher import find_attentions, values_to_infer
from .coordinate_rules import COORDINATE_RULES
from .decomposed import DecomposedOperator, DecomposedSearch
from .fusion import find_fused_grid
from .helper_nodes import with_helpers
from .match import Match
from .node_checks import fault_of, reason_of
from .records import NodeRecord, is_of_package


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The searches of :func:`find_matches` for more than the nodes of a dialect.

    Attributes:
        decomposed: whether to search for decomposed operators.
        fused_grids: whether to search for grids that can be fused into their GridSamples.
        attention: whether to search for deformable attention around GridSamples.
    """

    decomposed: bool = True
    fused_grids: bool = True
    attention: bool = True


ALL_SEARCHES = SearchOptions()


def records_of(model: onnx.ModelProto, probe: Probe | None = None) -> list[NodeRecord]:
    """Return a record for each sampling node in all graphs and functions of ``model``.

    Args:
        model: the model.
        probe: tests whether onnxruntime runs the nodes, and infers types that onnx does not infer.
            Without a probe, neither is done.
    """
    return [
        match.record for match in find_matches(model, scopes_of(model), probe, with_reasons=True)
    ]


def find_matches(
    model: onnx.ModelProto,
    all_scopes: Sequence[Scope],
    probe: Probe | None,
    *,
    with_reasons: bool,
    options: SearchOptions = ALL_SEARCHES,
) -> list[Match]:
    """Find the sampling nodes of a model.

    Args:
        model: the model.
        all_scopes: its scopes.
        probe: infers types that onnx does not infer, and runs candidates for decomposed operators.
        with_reasons: whether ``probe`` also tests whether onnxruntime runs the nodes.
        options: what to search for in addition to the nodes of a dialect.

    Returns:
        The matches: decomposed deformable attentions first, then all other nodes in the order of
        ``all_scopes``.
    """
    decomposed_search = DecomposedSearch(all_scopes if options.decomposed else (), probe)
    candidates = _candidate_scopes(all_scopes, decomposed_search, options)
    values = {id(candidate.use_def.scope): candidate.values for candidate in candidates}
    inference = Inference(model, all_scopes, probe, values)
    functions = {function_key(function) for function in model.functions}
    node_probe = probe if with_reasons else None
    names = Names(model, all_scopes)
    attentions: list[Match] = []
    others: list[Match] = []
    for candidate in candidates:
        use_def = candidate.use_def
        scope = use_def.scope
        matches: list[Match] = []
        for index in candidate.indices:
            dialect = dialect_of(scope.nodes[index], scope.opsets, functions)
            if dialect is not None:
                matches.append(_node_match(dialect, index, scope, inference, node_probe))
        for operator in decomposed_search.operators(scope, inference):
            matches.append(_decomposed_match(operator, scope, names, inference))
        if options.attention:
            scope_attentions, matches = _link_attentions(matches, use_def, inference)
            attentions += scope_attentions
        if options.fused_grids:
            matches = _link_fused_grids(matches, use_def, inference)
        others += matches
    return [*attentions, *others]


class _CandidateScope(NamedTuple):
    """A scope that may have sampling nodes.

    Attributes:
        use_def: its use-def chains.
        indices: the indices of the nodes that have the operator type of a dialect.
        values: the values whose types and shapes the searches need, besides the nodes' inputs.
    """

    use_def: UseDef
    indices: list[int]
    values: list[str]


def _candidate_scopes(
    all_scopes: Sequence[Scope],
    decomposed_search: DecomposedSearch,
    options: SearchOptions,
) -> list[_CandidateScope]:
    """Return the scopes that may have sampling nodes."""
    op_types = operator_types()
    candidates: list[_CandidateScope] = []
    for scope in all_scopes:
        indices = [index for index, op_type in enumerate(scope.op_types) if op_type in op_types]
        values = decomposed_search.values_to_infer.get(id(scope), [])
        if not indices and not values:
            continue
        use_def = UseDef(scope)
        if options.fused_grids:
            grids = [name for index in indices for name in scope.inputs[index][1:2]]
            values = list(use_def.backward_closure([*values, *grids], COORDINATE_RULES))
        if options.attention:
            values = [*values, *values_to_infer(use_def)]
        candidates.append(_CandidateScope(use_def, indices, values))
    return candidates


def _node_match(
    dialect: Dialect,
    index: int,
    scope: Scope,
    inference: Inference,
    probe: Probe | None,
) -> Match:
    """Return the match of a node of ``dialect``. Without ``probe``, the node is not tested."""
    node = scope.nodes[index]
    is_unversioned = node.domain == UNVERSIONED
    domain = "" if is_unversioned else domain_of(node.domain)
    opset = scope.opsets.get(domain, dialect.version)
    sources, output, helpers = with_helpers(scope, node)
    name = node.name or (f"({output})" if domain == DOMAIN else display_name(node))
    values, constants = _inputs_of(node, dialect, scope, sources)
    attributes: dict[str, AttributeValue] = {}
    error = None
    op_type = dialect.operator if is_of_package(dialect) else node.op_type
    try:
        note = f" (opset {opset})" if domain == "" else ""
        attributes = dialect.read(
            where_node(op_type, nested_name(name, scope.path)),
            node,
            lambda input_index: scope.constant_value(node.input[input_index]),
            note,
        )
    except GridSampleError as attribute_error:
        error = attribute_error
    record = NodeRecord(
        graph=scope.path,
        name=name,
        operator=dialect.operator,
        op_type=node.op_type,
        domain=domain,
        opset=opset,
        dialect=standard(dialect.operator, opset) if is_unversioned else dialect,
        attributes=attributes,
        cases=_cases_of(values, constants, scope, inference),
        values=values,
        constants=constants,
        output=output,
        error=error,
    )
    declared_shape = scope.declared_shape(output) if is_added(dialect) else None
    record = replace(record, error=fault_of(record, node, declared_shape))
    if probe is not None:
        record = replace(record, reason=reason_of(record, scope.opsets, probe))
    return Match(record, node, scope, index, helpers)


def _inputs_of(
    node: onnx.NodeProto,
    dialect: Dialect,
    scope: Scope,
    sources: Sequence[str],
) -> tuple[dict[str, str], dict[str, Array]]:
    """Return the values that ``node`` reads, and the constants among them, both by argument.

    A missing input has the name "". An argument that is an attribute of the node is a constant.

    Args:
        node: the node.
        dialect: its dialect.
        scope: the list of nodes that contains it.
        sources: its inputs before helper nodes.
    """
    signature = attention_signature(node)
    arguments = list(spec.newest(dialect.operator).types) if signature is None else signature.inputs
    values: dict[str, str] = {}
    constants: dict[str, Array] = {}
    for input_index, argument in enumerate(arguments):
        constant = attribute_input(node, dialect, argument)
        value = sources[input_index] if input_index < len(sources) and constant is None else ""
        if value:
            constant = scope.constant_value(value)
        values[argument] = value
        if constant is not None:
            constants[argument] = constant
    return values, constants


def _cases_of(
    values: dict[str, str],
    constants: dict[str, Array],
    scope: Scope,
    inference: Inference,
) -> list[tuple[TypeAndShape, ...]]:
    """Return the types and shapes of the inputs ``values`` in each kind of call of the scope."""
    # Inference does not know some constants, such as one in an attribute.
    known = {}
    for argument, constant in constants.items():
        known[argument] = TypeAndShape(type_name(constant.dtype), constant.shape)
    cases = []
    for case in inference.values_by_call(scope, list(values.values())):
        completed = []
        for argument, value in zip(values, case, strict=True):
            completed.append(known.get(argument, value) if value == TypeAndShape() else value)
        cases.append(tuple(completed))
    return cases


def _decomposed_match(
    operator: DecomposedOperator,
    scope: Scope,
    names: Names,
    inference: Inference,
) -> Match:
    """Return the match of a decomposed operator, with an equivalent node."""
    output = operator.subgraph.output
    inputs = _decomposed_inputs(operator, scope, names, inference)
    index = scope.makers[output]
    node = helper.make_node(
        operator.operator,
        list(inputs.values.values()),
        [output],
        scope.nodes[index].name,
        "",
        DECOMPOSED,
    )
    record = _decomposed_record(
        scope,
        output,
        operator.operator,
        attributes=operator.result.attributes,
        cases=inputs.cases,
        values=inputs.values,
        constants=inputs.constants,
    )
    record = replace(record, error=fault_of(record, node))
    return Match(
        record,
        node,
        scope,
        index,
        decomposed_nodes=frozenset(operator.subgraph.nodes),
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
    preparing_nodes: Nodes


def _decomposed_inputs(
    operator: DecomposedOperator,
    scope: Scope,
    names: Names,
    inference: Inference,
) -> _DecomposedInputs:
    """Return the inputs of the node that is equivalent to a decomposed operator."""
    first = operator.subgraph.inputs[0]
    argument_names = spec.newest(operator.operator).types
    values = dict(zip(argument_names, operator.subgraph.inputs, strict=False))
    cases = inference.values_by_call(scope, list(values.values()))
    constants: dict[str, Array] = {}
    nodes = Nodes(names, operator.subgraph.output)
    if operator.operator == "AffineGrid":
        size = operator.result.size
        values["size"] = ""
        cases = [(case[0], TypeAndShape("int64", (len(size),))) for case in cases]
        if None in size:  # the batch is that of theta
            batch = nodes.add("Gather", nodes.add("Shape", first), nodes.row(0))
            other_lengths = nodes.constant(np.array(size[1:], np.int64))
            values["size"] = nodes.add("Concat", batch, other_lengths, axis=0)
        else:
            constants["size"] = np.array(size, np.int64)
    elif operator.result.image_lengths:  # X has all pixels on one axis
        lengths = operator.result.image_lengths
        values["X"] = nodes.add("Reshape", first, nodes.row(0, 0, *lengths))
        cases = [(replace(X, shape=(*(X.shape or ())[:2], *lengths)), grid) for X, grid in cases]
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


def _link_attentions(
    matches: Sequence[Match],
    use_def: UseDef,
    inference: Inference,
) -> tuple[list[Match], list[Match]]:
    """Return the deformable attentions of a scope, and ``matches`` with ``enclosing_attention``."""
    samples = {}
    for match in matches:
        record = match.record
        if record.operator == "GridSample" and record.error is None and not match.is_composite:
            samples[record.output] = match
    attentions: list[Match] = []
    attention_by_sample: dict[str, Match] = {}
    for attention in find_attentions(use_def, samples, inference):
        attention_match = _attention_match(attention, use_def.scope, inference)
        attentions.append(attention_match)
        for level in attention.levels:
            attention_by_sample[level.sample.output] = attention_match
    linked = []
    for match in matches:
        is_sample = samples.get(match.record.output) is match
        enclosing = attention_by_sample.get(match.record.output) if is_sample else None
        linked.append(match if enclosing is None else replace(match, enclosing_attention=enclosing))
    return attentions, linked


def _attention_match(attention: Attention, scope: Scope, inference: Inference) -> Match:
    """Return the match of a decomposed deformable attention."""
    output = attention.output.name
    index = scope.makers[output]
    sample = attention.levels[0].sample
    value = attention.value.name if attention.value is not None else sample.values["X"]
    locations = sample.values["grid"]
    if attention.locations is not None:
        locations = attention.locations.name
    weights = attention.weights.name
    levels = []
    for level in attention.levels:
        levels.append([level.points, *(length.known for length in level.lengths)])
    constants: dict[str, Array] = {}
    if not any(None in level for level in levels):
        constants["levels"] = np.array(levels, np.int64)
    levels_value = TypeAndShape("int64", (len(levels), 1 + attention.r))
    argument_names = spec.newest(ATTENTION).types
    record = _decomposed_record(
        scope,
        output,
        ATTENTION,
        attributes={"align_corners": sample.attributes["align_corners"]},
        cases=[
            (value_case, levels_value, *other_cases)
            for value_case, *other_cases in inference.values_by_call(
                scope, (value, locations, weights)
            )
        ],
        values=dict(zip(argument_names, (value, "", locations, weights), strict=True)),
        constants=constants,
        fused=tuple(display_name(scope.nodes[index]) for index in sorted(attention.path)),
    )
    return Match(
        record,
        scope.nodes[index],
        scope,
        index,
        decomposed_nodes=attention.nodes,
        attention=attention,
    )


def _link_fused_grids(
    matches: Sequence[Match], use_def: UseDef, inference: Inference
) -> list[Match]:
    """Return the ``matches`` of a scope, with ``fused_grid`` and ``fused_into`` set."""
    affine_grids = {}
    for match in matches:
        if match.record.operator == "AffineGrid":
            affine_grids[match.record.output] = match
    changed: dict[Match, Match] = {}
    for match in matches:
        if match.record.operator != "GridSample" or match.is_composite:
            continue
        fused_grid = find_fused_grid(use_def, match, inference, affine_grids)
        if fused_grid is None:
            continue
        record = replace(match.record, fused=fused_grid.fused_names)
        sample = replace(match, record=record, fused_grid=fused_grid)
        changed[match] = sample
        affine_grid = fused_grid.affine_grid
        if affine_grid is not None:
            changed[affine_grid] = replace(affine_grid, fused_into=sample)
    return [changed.get(match, match) for match in matches]
