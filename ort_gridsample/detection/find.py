"""Find the sampling nodes of a model.

:func:`search` runs the parts of this package in order: it recognizes nodes by their dialects,
finds decomposed operators (:mod:`.decomposed`), deformable attention around GridSamples
(:mod:`.attention`) and the computations of grids (:mod:`.fusion`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import onnx

from .. import spec
from ..dialects.registry import attention_signature, dialect_of, is_added, operator_types
from ..dialects.spelling import AttributeValue, Dialect, attribute_input
from ..dialects.table import AI_ONNX, DOMAIN, UNVERSIONED, standard
from ..errors import GridSampleError, nested_name, where_node
from ..functions.grid_operators import GRID_OPERATORS
from ..graph.new_names import Names
from ..graph.scope import FunctionKey, Scope, display_name, domain_of, function_key, scopes_of
from ..graph.use_def import UseDef
from ..inference.backward_slice import NamesByScope
from ..inference.lengths import InferredLengths
from ..inference.probe import Probe
from ..inference.types import Inference, TypeAndShape
from ..reference.arrays import Array
from ..reference.plan import type_name
from .attention.matcher import find_attentions, values_to_infer
from .coordinate_rules import COORDINATE_RULES
from .decomposed import DecomposedSearch
from .decomposed_matches import attention_match, decomposed_match
from .fusion import find_fused_grid
from .helper_nodes import with_helpers
from .match import Match
from .node_checks import check_no_fused_nodes, fault_of, reason_of, reason_of_attention
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
        probe: tests whether onnxruntime runs the nodes, and infers types that onnx does not infer.
            Without a probe, neither is done.

    Raises:
        GridSampleError: a session has fused a node of the model.
    """
    all_scopes = scopes_of(model)
    check_no_fused_nodes(all_scopes)
    return [match.record for match in find_matches(model, all_scopes, probe, with_reasons=True)]


def standard_records_of(model: onnx.ModelProto, probe: Probe) -> list[NodeRecord]:
    """Return the records of the standard's nodes; the arguments are those of :func:`records_of`."""
    options = SearchOptions(decomposed=False, fused_grids=False, attention=False)
    matches = find_matches(model, scopes_of(model), probe, with_reasons=True, options=options)
    return [match.record for match in matches if match.record.dialect.name == AI_ONNX]


def find_matches(
    model: onnx.ModelProto,
    all_scopes: Sequence[Scope],
    probe: Probe | None,
    *,
    with_reasons: bool,
    options: SearchOptions = ALL_SEARCHES,
) -> list[Match]:
    """Return the matches that :func:`search` finds; the arguments are the same."""
    return search(model, all_scopes, probe, with_reasons=with_reasons, options=options).matches


class SearchResult(NamedTuple):
    """What :func:`search` finds in a model.

    Attributes:
        matches: the matches: decomposed deformable attentions first, then all other nodes in the
            order of the scopes.
        inference: the inferred types of the model. It must be read before the model changes.
    """

    matches: list[Match]
    inference: Inference


def search(
    model: onnx.ModelProto,
    all_scopes: Sequence[Scope],
    probe: Probe | None,
    *,
    with_reasons: bool,
    options: SearchOptions = ALL_SEARCHES,
    names_to_confirm: NamesByScope | None = None,
) -> SearchResult:
    """Find the sampling nodes of a model.

    Args:
        probe: infers types that onnx does not infer, and runs candidates for decomposed operators.
        with_reasons: whether ``probe`` also tests whether onnxruntime runs the nodes.
        options: what to search for in addition to the nodes of a dialect.
        names_to_confirm: values whose declared shapes the inference shall confirm.
    """
    decomposed_search = DecomposedSearch(all_scopes if options.decomposed else (), probe)
    candidates = _candidate_scopes(all_scopes, decomposed_search, options)
    values = {id(candidate.use_def.scope): candidate.values for candidate in candidates}
    inference = Inference(model, all_scopes, probe, values, names_to_confirm)
    functions = {function_key(function) for function in model.functions}
    node_probe = probe if with_reasons else None
    names = Names(model, all_scopes)
    attentions: list[Match] = []
    others: list[Match] = []
    for candidate in candidates:
        use_def = candidate.use_def
        matches = _dialect_matches(candidate, functions, inference, node_probe)
        for decomposed in decomposed_search.operators(use_def.scope, inference):
            matches.append(decomposed_match(decomposed, use_def.scope, names, inference))
        if options.fused_grids:
            matches = _with_fused_grids(matches, use_def, inference)
        if options.attention:
            attentions += _attentions_of(matches, use_def, inference)
        others += matches
    return SearchResult([*attentions, *others], inference)


class _CandidateScope(NamedTuple):
    """A scope that may have sampling nodes.

    Attributes:
        use_def: its use-def chains.
        indices: the indices of the nodes that have the operator type of a dialect.
        values: the values whose types and shapes the searches need, besides the nodes' inputs.
    """

    use_def: UseDef
    indices: Sequence[int]
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
        indices = scope.indices_of(op_types)
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


def _dialect_matches(
    candidate: _CandidateScope,
    functions: Collection[FunctionKey],
    inference: Inference,
    probe: Probe | None,
) -> list[Match]:
    """Return the nodes of a scope that belong to a dialect.

    Args:
        functions: the keys of the model's functions, whose calls are no nodes of a dialect.
        inference: the inferred types and shapes.
        probe: as in :func:`_node_match`.
    """
    scope = candidate.use_def.scope
    matches = []
    for index in candidate.indices:
        dialect = dialect_of(scope.nodes[index], scope.opsets, functions)
        if dialect is not None:
            matches.append(_node_match(dialect, index, scope, inference, probe))
    return matches


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
    attributes = _read_attributes(dialect, node, name, scope, opset if domain == "" else None)
    cases = _cases_of(values, constants, scope, inference)
    record = NodeRecord(
        graph=scope.path,
        name=name,
        operator=dialect.operator,
        op_type=node.op_type,
        domain=domain,
        opset=opset,
        dialect=standard(dialect.operator, opset) if is_unversioned else dialect,
        attributes=attributes.values,
        cases=cases,
        values=values,
        constants=constants | _constants_without_elements(node, list(values), cases),
        output=output,
        error=attributes.error,
    )
    declared_shape = scope.declared_shape(output) if is_added(dialect) else None
    error = fault_of(record, node, declared_shape)
    if error is not record.error:
        record = replace(record, error=error)
    if probe is not None:
        record = replace(record, reason=reason_of(record, scope.opsets, probe))
    return Match(record, node, scope, index, helpers)


class _Attributes(NamedTuple):
    """The attributes of a node.

    Attributes:
        values: the attributes by name; empty if they are wrong.
        error: what is wrong with them.
    """

    values: dict[str, AttributeValue]
    error: GridSampleError | None = None


def _read_attributes(
    dialect: Dialect, node: onnx.NodeProto, name: str, scope: Scope, opset: int | None
) -> _Attributes:
    """Read the attributes of a node of ``dialect``.

    Args:
        name: the name of the node in errors.
        scope: the list of nodes that contains it.
        opset: the version of the ONNX domain if the node is in this domain, for errors.
    """
    op_type = dialect.operator if is_of_package(dialect) else node.op_type
    where = where_node(op_type, nested_name(name, scope.path))
    note = "" if opset is None else f" (opset {opset})"
    try:
        values = dialect.read(
            where, node, lambda input_index: scope.constant_value(node.input[input_index]), note
        )
    except GridSampleError as error:
        return _Attributes({}, error)
    return _Attributes(values)


def _inputs_of(
    node: onnx.NodeProto,
    dialect: Dialect,
    scope: Scope,
    sources: Sequence[str],
) -> tuple[dict[str, str], dict[str, Array]]:
    """Return the values that ``node`` reads, and the constants among them, both by argument.

    A missing input has the name "". An argument that is an attribute of the node is a constant.

    Args:
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


def _constants_without_elements(
    node: onnx.NodeProto,
    arguments: Sequence[str],
    cases: Sequence[tuple[TypeAndShape, ...]],
) -> dict[str, Array]:
    """Return the integer inputs of a foreign attention that have no elements, by argument.

    Without levels, such an input is fully known by its shape, even if it is fed.
    """
    signature = attention_signature(node)
    if signature is None:
        return {}
    constants: dict[str, Array] = {}
    for argument, *values in zip(arguments, *cases, strict=True):
        if argument not in signature.integer_inputs or len(set(values)) != 1:
            continue
        (value, *_) = values
        lengths = spec.known_lengths(value.shape)
        if lengths is not None and 0 in lengths and value.type in ("int32", "int64"):
            constants[argument] = np.zeros(lengths, value.type)
    return constants


def _attentions_of(matches: Sequence[Match], use_def: UseDef, inference: Inference) -> list[Match]:
    """Return the deformable attentions around GridSamples among the ``matches`` of a scope."""
    samples = {}
    for match in matches:
        record = match.record
        if record.operator == "GridSample" and record.error is None and not match.is_composite:
            samples[record.output] = match
    attentions = []
    for attention in find_attentions(use_def, samples, inference):
        match = attention_match(attention, use_def.scope, inference)
        record = replace(match.record, reason=reason_of_attention(attention.samples))
        level_samples = dict.fromkeys(samples[level.sample.output] for level in attention.levels)
        attentions.append(replace(match, record=record, samples=tuple(level_samples)))
    return attentions


def _with_fused_grids(
    matches: Sequence[Match], use_def: UseDef, inference: Inference
) -> list[Match]:
    """Return the ``matches`` of a scope, with ``fused_grid`` set."""
    grid_operators = {}
    for match in matches:
        if match.record.operator in GRID_OPERATORS:
            grid_operators[match.record.output] = match
    lengths = InferredLengths(use_def, inference)
    fused = []
    for match in matches:
        fused_grid = None
        if match.record.operator == "GridSample" and not match.is_composite:
            fused_grid = find_fused_grid(lengths, match, inference, grid_operators)
        if fused_grid is not None:
            record = replace(match.record, fused=fused_grid.fused_names)
            match = replace(match, record=record, fused_grid=fused_grid)
        fused.append(match)
    return fused
