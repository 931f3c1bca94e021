"""Finding the nodes concerned in a model, and reading what each of them says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from .. import spec
from ..core.arrays import Array
from ..core.plan import type_name
from ..errors import GridSampleError, where
from .attention import Attention, Attentions, is_attended
from .decomposed import Search
from .dialects import (
    ATTENTION,
    ATTENTION_PLUGINS,
    DECOMPOSED,
    DOMAIN,
    PARTS,
    SET_ASIDE,
    AttributeValue,
    Dialect,
    constant_size,
    dialect_of,
    operator_types,
    standard,
)
from .fusion import FusedGrid, FusedGrids
from .graphs import Names, Scope, called, constant, domain_of, function_key, scopes
from .helpers import around
from .inference import Inference, Value
from .node_checks import fault_of, reason_of
from .onnxruntime_probe import OnnxruntimeProbe
from .records import NodeRecord


@dataclass(frozen=True, eq=False)
class Match:
    """A node concerned, where it was found.

    Attributes:
        record: what is known of it.
        node: the node itself.
        scope: the list of nodes that it is in.
        index: its position there.
        helpers: the positions of the nodes that a patch put around it.
        part: of what is decomposed, the positions of all that computes it.
        before: nodes that make what it reads and the model does not have.
        fused: what computes the grid of this GridSample and can be fused into it.
        fused_into: the GridSample that this AffineGrid can be fused into, or the deformable attention of this
            GridSample.
        attention: of deformable attention, what is known of it.
    """

    record: NodeRecord
    node: onnx.NodeProto
    scope: Scope
    index: int
    helpers: frozenset[int] = frozenset()
    part: frozenset[int] = frozenset()
    before: tuple[onnx.NodeProto, ...] = ()
    fused: FusedGrid | None = None
    fused_into: Match | None = None
    attention: Attention | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the node is one that stands for several, deformable attention."""
        return self.record.operator == ATTENTION and self.attention is None

    @property
    def is_set_aside(self) -> bool:
        """Whether the node is a standard one, which is to be written in the model's new opset."""
        return self.node.domain == SET_ASIDE


def records_of(model: onnx.ModelProto, probe: OnnxruntimeProbe | None = None) -> list[NodeRecord]:
    """One record for every GridSample and AffineGrid node of ``model``, in every graph and function of it.

    ``probe`` is asked whether onnxruntime runs them, and for types that onnx does not know; None: nobody is.
    """
    return [match.record for match in find(model, scopes(model), probe, asked=True)]


def find(
    model: onnx.ModelProto,
    found: Sequence[Scope],
    probe: OnnxruntimeProbe | None,
    asked: bool,
    decomposed: bool = True,
    fused: bool = True,
    attention: bool = True,
) -> list[Match]:
    """Every node concerned in ``found``, the scopes of ``model``.

    ``probe`` is asked for types that onnx does not know, for what is decomposed, and, where ``asked``, whether
    onnxruntime runs the nodes. What is ``decomposed``, what can be ``fused``, and deformable ``attention`` are looked
    for where they say so.
    """
    matches = []
    functions, op_types = {function_key(function) for function in model.functions}, operator_types()
    search = Search(found if decomposed else (), probe)
    candidates = {id(s): [(i, s.nodes[i]) for i, each in enumerate(s.op_types) if each in op_types] for s in found}
    grids = {
        scope: [*search.values.get(scope, ()), *(node.input[1] for _, node in nodes if len(node.input) > 1)]
        for scope, nodes in candidates.items()
    }
    fused_grids = FusedGrids(found, grids) if fused else None
    attentions = Attentions(found if attention else ())
    values = search.values if fused_grids is None else fused_grids.values
    values = {s: [*values.get(s, ()), *attentions.values.get(s, ())] for s in values.keys() | attentions.values.keys()}
    inference = Inference(model, found, probe, values)
    names = Names(model)
    for scope in found:
        for index, node in candidates[id(scope)]:
            dialect = dialect_of(node, scope.opsets, functions)
            if dialect is not None:
                matches.append(_match(dialect, node, index, scope, inference, probe if asked else None))
        matches += _decomposed(names, scope, search, inference)
    if fused_grids is not None:
        matches = list(_with_fused(matches, fused_grids, inference))
    return list(_with_attention(matches, attentions, inference)) if attention else matches


def _with_attention(matches: Sequence[Match], attentions: Attentions, inference: Inference) -> Iterator[Match]:
    """The ``matches``, and deformable attention as one each; its GridSamples know of it."""
    samples: dict[int, tuple[Scope, dict[str, Match]]] = {}
    for match in matches:
        if is_attended(match.record):
            samples.setdefault(id(match.scope), (match.scope, {}))[1][match.record.output] = match
    into: dict[int, Match] = {}
    for scope, by_output in samples.values():
        for found in attentions.found(scope, by_output, inference):
            whole = _attention(found, scope, inference)
            into.update((id(sample), whole) for sample in found.samples)
            yield whole
    for match in matches:
        yield replace(match, fused_into=into[id(match)]) if id(match) in into else match


def _attention(found: Attention, scope: Scope, inference: Inference) -> Match:
    """Deformable attention, as a node that says it."""
    index, sample = scope.makers[found.output], found.samples[0].record
    lengths = [[length.known for length in each] for each in found.lengths]
    levels = [[points, *each] for points, each in zip(found.points, lengths, strict=True)]
    first = found.value or sample.values["X"], found.locations or sample.values["grid"], found.weights
    cases = inference.cases(scope, first)
    record = NodeRecord(
        graph=scope.path,
        name=scope.nodes[index].name or f"({found.output})",
        operator=ATTENTION,
        op_type=ATTENTION,
        domain=DECOMPOSED,
        opset=scope.opsets.get("", 0),
        dialect=PARTS[ATTENTION],
        attributes={"align_corners": sample.attributes["align_corners"]},
        cases=[(value, Value("int64", (len(levels), 1 + found.axes)), *others) for value, *others in cases],
        values=dict(zip(spec.newest(ATTENTION).types, (first[0], "", *first[1:]), strict=True)),
        constants={} if any(None in each for each in levels) else {"levels": np.array(levels, np.int64)},
        output=found.output,
        reason="",
        fused=tuple(called(scope.nodes[at]) for at in sorted(found.path)),
    )
    return Match(record, scope.nodes[index], scope, index, part=found.nodes, attention=found)


def _with_fused(matches: Sequence[Match], fused_grids: FusedGrids, inference: Inference) -> Iterator[Match]:
    """The ``matches``; each GridSample knows what can be fused into it, and each AffineGrid into which."""
    affine_grids: dict[int, dict[str, Match]] = {}
    for match in matches:
        if match.record.operator == "AffineGrid":
            affine_grids.setdefault(id(match.scope), {})[match.record.output] = match
    samples: dict[int, Match] = {}
    into: dict[int, Match] = {}
    for match in matches:
        if match.record.operator == "GridSample":
            fused = fused_grids.found(match, inference, affine_grids.get(id(match.scope), {}))
            if fused is not None:
                sample = replace(match, record=replace(match.record, fused=fused.names), fused=fused)
                samples[id(match)] = sample
                if fused.affine_grid is not None:
                    into[id(fused.affine_grid)] = sample
    for match in matches:
        yield replace(match, fused_into=into[id(match)]) if id(match) in into else samples.get(id(match), match)


def _decomposed(names: Names, scope: Scope, search: Search, inference: Inference) -> Iterator[Match]:
    """What is decomposed in ``scope``, as a node each that says it."""
    for part in search.found(scope, inference):
        dialect, output = PARTS[part.operator], part.subgraph.output
        index = scope.makers[output]
        first, *others = part.subgraph.inputs
        values = dict(zip(spec.newest(part.operator).types, (first, *others), strict=False))
        known, before = dict[str, Array](), tuple[onnx.NodeProto, ...]()
        cases = inference.cases(scope, list(values.values()))
        if part.operator == "AffineGrid":
            values["size"], cases = "", [(case[0], Value("int64", (len(part.size),))) for case in cases]
            if None in part.size:
                values["size"], before = _size(names, first, part.size, output)
            else:
                known["size"] = np.array(part.size, np.int64)
        elif part.size:
            values["X"], before = _reshaped(names, first, part.size, output)
            cases = [(replace(X, shape=(*(X.shape or ())[:2], *part.size)), grid) for X, grid in cases]
        node = onnx.NodeProto(
            op_type=part.operator,
            domain=DECOMPOSED,
            input=list(values.values()),
            output=[output],
            name=scope.container.node[index].name,
        )
        record = NodeRecord(
            graph=scope.path,
            name=node.name or f"({output})",
            operator=part.operator,
            op_type=part.operator,
            domain=DECOMPOSED,
            opset=scope.opsets.get("", 0),
            dialect=dialect,
            attributes=part.attributes,
            cases=cases,
            values=values,
            constants=known,
            output=output,
            reason="",
        )
        record = replace(record, error=fault_of(record, node))
        yield Match(record, node, scope, index, part=frozenset(part.subgraph.nodes), before=before)


def _size(names: Names, theta: str, size: Sequence[int | None], output: str) -> tuple[str, tuple[onnx.NodeProto, ...]]:
    """The value that says ``size``, its first number being that of ``theta``, and the nodes that make it."""
    shape, zero, batch, rest, whole = (
        names.new(f"{output}_{name}") for name in ("shape", "zero", "batch", "rest", "size")
    )
    return whole, (
        helper.make_node("Shape", [theta], [shape]),
        constant(np.array([0], np.int64), zero),
        helper.make_node("Gather", [shape, zero], [batch]),
        constant(np.array(size[1:], np.int64), rest),
        helper.make_node("Concat", [batch, rest], [whole], axis=0),
    )


def _reshaped(names: Names, X: str, size: Sequence[int | None], output: str) -> tuple[str, tuple[onnx.NodeProto, ...]]:
    """X with its pixels in as many axes as ``size`` says, and the nodes that make it."""
    shape, image = names.new(f"{output}_shape"), names.new(f"{output}_X")
    return image, (constant(np.array([0, 0, *size], np.int64), shape), helper.make_node("Reshape", [X, shape], [image]))


def _match(
    dialect: Dialect,
    node: onnx.NodeProto,
    index: int,
    scope: Scope,
    inference: Inference,
    probe: OnnxruntimeProbe | None,
) -> Match:
    aside = node.domain == SET_ASIDE
    domain = "" if aside else domain_of(node.domain)
    opset = scope.opsets.get(domain, dialect.version)
    sources, output, belonging = around(scope, node)
    if node.op_type in ATTENTION_PLUGINS:
        sources = [*sources[:2], *sources[3:]]  # the first pixels follow from the lengths
    name = node.name or (f"({output})" if domain == DOMAIN else called(node))
    values, known = {}, {}
    for position, argument in enumerate(spec.newest(dialect.operator).types):
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
        here = where(node.op_type, f"{name} in {scope.path}" if scope.path else name)
        note = f" (opset {opset})" if domain == "" else ""
        attributes = dialect.read(here, node, lambda i: scope.constant(node.input[i]), note)
    except GridSampleError as error:
        unreadable = error
    record = NodeRecord(
        graph=scope.path,
        name=name,
        operator=dialect.operator,
        op_type=node.op_type,
        domain=domain,
        opset=opset,
        dialect=standard(dialect.operator, opset) if aside else dialect,
        attributes=attributes,
        cases=cases,
        values=values,
        constants=known,
        output=output,
    )
    record = replace(record, error=fault_of(record, node, unreadable))
    if probe is not None:
        record = replace(record, reason=reason_of(record, scope.opsets, probe))
    return Match(record, node, scope, index, belonging)
