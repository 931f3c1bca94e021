"""Finding the nodes concerned in a model, and reading what each of them says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from .. import spec
from ..dialects.table import (
    ATTENTION,
    DECOMPOSED,
    DOMAIN,
    SET_ASIDE,
    AttentionNode,
    AttributeValue,
    Dialect,
    attention_node,
)
from ..errors import GridSampleError, node_label
from ..graph.scope import Names, Nodes, Scope, called, domain_of, function_key, scopes
from ..graph.use_def import UseDef
from ..inference.types import Inference, Probe, Value
from ..reference.arrays import Array
from ..reference.plan import type_name
from .attention import Attention, attentions, read_values
from .decomposed import Search
from .fusion import RULES, FusedGrid, fused_grid
from .helpers import around
from .node_checks import fault_of, reason_of
from .records import NodeRecord


@dataclass(frozen=True, eq=False)
class Match:
    """A node concerned, where it was found."""

    record: NodeRecord  #: what is known of it
    node: onnx.NodeProto
    scope: Scope  #: the list of nodes that it is in
    index: int  #: its position there
    helpers: frozenset[int] = frozenset()  #: the positions of the nodes that a patch put around it
    part: frozenset[int] = frozenset()  #: of what is decomposed, the positions of all that computes it
    before: tuple[onnx.NodeProto, ...] = ()  #: nodes that make what it reads and the model does not have
    fused: FusedGrid | None = None  #: what computes the grid of this GridSample and can be fused into it
    fused_into: Match | None = None  #: the GridSample that this AffineGrid can be fused into
    attention: Attention | None = None  #: of deformable attention, what is known of it
    read_by: Match | None = None  #: the deformable attention that reads the X and the grid of this GridSample

    @property
    def is_whole(self) -> bool:
        """Whether the node stands for several: it is deformable attention, or a sampler whose grid is planes."""
        is_attention = self.record.operator == ATTENTION and self.attention is None
        return is_attention or self.record.dialect.plane_scale > 0

    @property
    def contract(self) -> AttentionNode | None:
        """Of another package's node that is a whole deformable attention, its contract."""
        return attention_node(self.node) if self.is_whole else None

    @property
    def is_set_aside(self) -> bool:
        """Whether the node is a standard one, which is to be written in the model's new opset."""
        return self.node.domain == SET_ASIDE


def records_of(model: onnx.ModelProto, probe: Probe | None = None) -> list[NodeRecord]:
    """One record for every GridSample and AffineGrid node of ``model``, in every graph and function of it.

    ``probe`` is asked whether onnxruntime runs them, and for types that onnx does not know; None: nobody is.
    """
    return [match.record for match in find(model, scopes(model), probe, asked=True)]


def find(
    model: onnx.ModelProto, found: Sequence[Scope], probe: Probe | None, asked: bool, decomposed: bool = True,
    fused: bool = True, attention: bool = True,
) -> list[Match]:  # fmt: skip
    """Every node concerned in ``found``, the scopes of ``model``.

    ``probe`` is asked for types that onnx does not know, for what is decomposed, and, where ``asked``, whether
    onnxruntime runs the nodes. What is ``decomposed``, what can be ``fused``, and deformable ``attention`` are looked
    for where they say so.
    """
    functions, op_types = {function_key(function) for function in model.functions}, operator_types()
    search = Search(found if decomposed else (), probe)
    concerned, values, searched = list[tuple[UseDef, list[int]]](), dict[int, list[str]](), search.values
    for scope in found:
        positions = [at for at, each in enumerate(scope.op_types) if each in op_types]
        wanted = searched.get(id(scope), [])
        if positions or wanted:
            concerned.append((use_def := UseDef(scope), positions))
            if fused:
                grids = (name for at in positions for name in scope.inputs[at][1:2])
                wanted = [*use_def.backward_closure([*wanted, *grids], RULES)]
            if wanted := [*wanted, *(read_values(use_def) if attention else ())]:
                values[id(scope)] = wanted
    inference, names = Inference(model, found, probe, values), Names(model)
    wholes, others = list[Match](), list[Match]()
    for use_def, positions in concerned:
        scope, matches = use_def.scope, list[Match]()
        for index in positions:
            dialect = dialect_of(scope.nodes[index], scope.opsets, functions)
            if dialect is not None:
                matches.append(_match(dialect, index, scope, inference, probe if asked else None))
        matches += _decomposed(names, scope, search, inference)
        as_one, matches = _with_attention(matches, use_def, inference) if attention else ([], matches)
        wholes += as_one
        others += _with_fused(matches, use_def, inference) if fused else matches
    return [*wholes, *others]


def _with_attention(matches: Sequence[Match], use_def: UseDef, inference: Inference) -> tuple[list[Match], list[Match]]:
    """Deformable attention as one each, and the ``matches`` in this scope, whose GridSamples know of it."""
    samples = {
        m.record.output: m
        for m in matches
        if m.record.operator == "GridSample" and m.record.error is None and not m.is_whole
    }
    wholes, read = list[Match](), dict[Match, Match]()
    for found in attentions(use_def, samples, inference):
        wholes.append(whole := _attention(found, use_def.scope, inference))
        read |= dict.fromkeys(found.samples, whole)
    return wholes, [replace(match, read_by=read[match]) if match in read else match for match in matches]


def _attention(found: Attention, scope: Scope, inference: Inference) -> Match:
    """Deformable attention, as a node that says it."""
    index, sample = scope.makers[found.output], found.samples[0].record
    levels = [[points, *(n.known for n in each)] for points, each in zip(found.points, found.lengths, strict=True)]
    first = found.value or sample.values["X"], found.locations or sample.values["grid"], found.weights
    cases = inference.cases(scope, first)
    what = {
        "attributes": {"align_corners": sample.attributes["align_corners"]},
        "cases": [(value, Value("int64", (len(levels), 1 + found.axes)), *others) for value, *others in cases],
        "values": dict(zip(spec.newest(ATTENTION).types, (first[0], "", *first[1:]), strict=True)),
        "constants": {} if any(None in each for each in levels) else {"levels": np.array(levels, np.int64)},
        "fused": tuple(called(scope.nodes[at]) for at in sorted(found.path)),
    }
    record = _part(scope, found.output, ATTENTION, **what)
    return Match(record, scope.nodes[index], scope, index, part=found.nodes, attention=found)


def _part(scope: Scope, output: str, operator: str, **known: Any) -> NodeRecord:
    """The record of what is decomposed in ``scope``, and computes ``output`` as a node of the ``operator`` would."""
    name, opset = scope.nodes[scope.makers[output]].name or f"({output})", scope.opsets.get("", 0)
    what = operator, operator, DECOMPOSED, opset, DECOMPOSED_DIALECTS[operator]
    return NodeRecord(scope.path, name, *what, **known, output=output, reason="")


def _with_fused(matches: Sequence[Match], use_def: UseDef, inference: Inference) -> list[Match]:
    """The ``matches`` in this scope; a GridSample knows what can be fused into it, and an AffineGrid into which."""
    affine_grids = {match.record.output: match for match in matches if match.record.operator == "AffineGrid"}
    changed: dict[Match, Match] = {}
    for match in (match for match in matches if match.record.operator == "GridSample" and not match.is_whole):
        fused = fused_grid(use_def, match, inference, affine_grids)
        if fused is not None:
            changed[match] = sample = replace(match, record=replace(match.record, fused=fused.names), fused=fused)
            if fused.affine_grid is not None:
                changed[fused.affine_grid] = replace(fused.affine_grid, fused_into=sample)
    return [changed.get(match, match) for match in matches]


def _decomposed(names: Names, scope: Scope, search: Search, inference: Inference) -> Iterator[Match]:
    """What is decomposed in ``scope``, as a node each that says it."""
    for part in search.found(scope, inference):
        index = scope.makers[output := part.subgraph.output]
        first, *others = part.subgraph.inputs
        values = dict(zip(spec.newest(part.operator).types, (first, *others), strict=False))
        known, before = dict[str, Array](), Nodes(names, output)
        cases = inference.cases(scope, list(values.values()))
        if part.operator == "AffineGrid":
            values["size"], cases = "", [(case[0], Value("int64", (len(part.size),))) for case in cases]
            if None in part.size:  # the batch is theta's
                batch = before.add("Gather", before.add("Shape", first), before.row(0))
                values["size"] = before.add("Concat", batch, before.constant(np.array(part.size[1:], np.int64)), axis=0)
            else:
                known["size"] = np.array(part.size, np.int64)
        elif part.size:
            values["X"] = before.add("Reshape", first, before.constant(np.array([0, 0, *part.size], np.int64)))
            cases = [(replace(X, shape=(*(X.shape or ())[:2], *part.size)), grid) for X, grid in cases]
        node = helper.make_node(part.operator, list(values.values()), [output], scope.nodes[index].name, "", DECOMPOSED)
        what = {"attributes": part.attributes, "cases": cases, "values": values, "constants": known}
        record = _part(scope, output, part.operator, **what)
        record = replace(record, error=fault_of(record, node))
        yield Match(record, node, scope, index, part=frozenset(part.subgraph.nodes), before=tuple(before))


def _match(dialect: Dialect, index: int, scope: Scope, inference: Inference, probe: Probe | None) -> Match:
    node = scope.nodes[index]
    aside = node.domain == SET_ASIDE
    domain = "" if aside else domain_of(node.domain)
    opset = scope.opsets.get(domain, dialect.version)
    sources, output, belonging = around(scope, node)
    contract = attention_node(node)
    name = node.name or (f"({output})" if domain == DOMAIN else called(node))
    values, known = {}, {}
    for position, argument in enumerate(contract.inputs if contract else spec.newest(dialect.operator).types):
        size = constant_size(node, dialect, argument)
        value = sources[position] if position < len(sources) and size is None else ""
        constant = scope.constant(value) if value else size
        values[argument] = value
        if constant is not None:
            known[argument] = constant
    # Of a constant that inference does not see, such as one in an attribute.
    held = {name: Value(type_name(each.dtype), each.shape) for name, each in known.items()}
    cases = [
        tuple(held.get(name, value) if value == Value() else value for name, value in zip(values, case, strict=True))
        for case in inference.cases(scope, list(values.values()))
    ]
    attributes: dict[str, AttributeValue] = {}
    unreadable = None
    try:
        here = node_label(node.op_type, f"{name} in {scope.path}" if scope.path else name)
        note = f" (opset {opset})" if domain == "" else ""
        attributes = dialect.read(here, node, lambda i: scope.constant(node.input[i]), note)
    except GridSampleError as error:
        unreadable = error
    spelled = standard(dialect.operator, opset) if aside else dialect
    what = dialect.operator, node.op_type, domain, opset, spelled, attributes, cases, values, known, output
    record = NodeRecord(scope.path, name, *what, error=unreadable)
    declared = scope.declared_shape(output) if is_added(dialect) else None
    record = replace(record, error=fault_of(record, node, declared))
    if probe is not None:
        record = replace(record, reason=reason_of(record, scope.opsets, probe))
    return Match(record, node, scope, index, belonging)
