"""What a runtime does with a node, as far as the facts about the runtime tell."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ..dialects.spelling import AttributeReference
from ..dialects.table import AI_ONNX, ATTENTION
from ..graph.runtime_facts import Fact
from ..graph.runtimes import Runtime
from .records import NodeRecord

T = TypeVar("T")
#: The verdict on a node about which there is no fact, or too few.
NOT_KNOWN = "not known"
_VERBS = {"refuses": "refuses", "wrong": "gets a wrong result for", "runs": "runs"}


@dataclass(frozen=True)
class NodeProperties:
    """The properties of a node of the standard on which facts about runtimes depend.

    A property of which nothing is known is empty. In a function, it can have several values.

    Attributes:
        operator: the operator.
        opset: the opset.
        axes: the numbers of spatial axes.
        modes: the modes, by their names in opset 20.
        padding_modes: the padding modes.
        align_corners: the values of this attribute.
        types: the types of the first input.
        grid_types: the types of the second input.
    """

    operator: str
    opset: int
    axes: tuple[int, ...] = ()
    modes: tuple[str, ...] = ()
    padding_modes: tuple[str, ...] = ()
    align_corners: tuple[int, ...] = ()
    types: tuple[str, ...] = ()
    grid_types: tuple[str, ...] = ()


def properties_of(record: NodeRecord, opset: int) -> NodeProperties:
    """Return the properties of a node if it is, or is written as, a node of ``opset``."""

    def known(name: str) -> tuple[str | int, ...]:
        value = record.attributes.get(name)
        is_known = value is not None and not isinstance(value, AttributeReference)
        return (value,) if is_known else ()  # type: ignore[return-value]

    types = [*record.types.values(), (), ()]
    return NodeProperties(
        operator=record.operator,
        opset=opset,
        axes=record.spatial_axes,
        modes=tuple(map(str, known("mode"))),
        padding_modes=tuple(map(str, known("padding_mode"))),
        align_corners=tuple(map(int, known("align_corners"))),
        types=types[0],
        grid_types=types[1],
    )


def is_refused(runtime: Runtime, properties: NodeProperties) -> bool:
    """Whether a release of a runtime certainly refuses a node, or computes it wrongly."""
    return any(fact.verdict != "runs" and _holds(fact, properties) for fact in runtime.facts)


@dataclass(frozen=True)
class RuntimeVerdict:
    """What a runtime does with a node.

    Attributes:
        runtime: the title of the runtime.
        summary: "runs", "refuses", "wrong" or "not known", with the releases if others differ.
        reasons: the facts, in words.
        facts: the facts.
        has_cost: whether basic operators are matrix products for the runtime.
        multiply_adds: the number of their multiply-adds, if it is known.
    """

    runtime: str
    summary: str
    reasons: Sequence[str] = ()
    facts: Sequence[Fact] = ()
    has_cost: bool = False
    multiply_adds: int | None = None


def verdict_on(runtime: Runtime, record: NodeRecord) -> RuntimeVerdict:
    """Return what a runtime does with a node."""
    verdict = _verdict_by_facts(runtime, record)
    if not runtime.lacks("Gather"):
        return verdict
    return replace(verdict, has_cost=True, multiply_adds=record.multiply_adds)


def _verdict_by_facts(runtime: Runtime, record: NodeRecord) -> RuntimeVerdict:
    """Return what a runtime does with a node, without the cost of basic operators."""
    title = runtime.title
    if record.decomposed and record.operator != ATTENTION:
        reason = f"there are no facts about the basic operators that {record.operator} became"
        return RuntimeVerdict(title, NOT_KNOWN, [reason])
    if record.dialect.name in runtime.dialects:
        return RuntimeVerdict(title, "runs", [f"{title} has {record.op_type}"])
    if record.dialect.name != AI_ONNX and not record.decomposed:
        reason = f"{record.op_type} of {record.dialect.name} is not an operator of ONNX"
        return RuntimeVerdict(title, "refuses", [reason])
    properties = properties_of(record, record.opset)
    if runtime.opset is not None and properties.opset > runtime.opset:
        return RuntimeVerdict(title, "refuses", [f"{title} reads opsets up to {runtime.opset}"])
    certain = [fact for fact in runtime.facts if _holds(fact, properties)]
    refusals = [fact for fact in certain if fact.verdict != "runs"]
    if refusals:
        return _verdict(runtime, _summary(refusals), refusals)
    possible = [
        fact
        for fact in runtime.facts
        if fact.verdict != "runs" and _holds(fact, properties) is None
    ]
    if possible or not certain:
        return _verdict(runtime, NOT_KNOWN, possible)
    return _verdict(runtime, "runs", certain)


def _verdict(runtime: Runtime, summary: str, facts: Sequence[Fact]) -> RuntimeVerdict:
    reasons = [reason_of(runtime, fact) for fact in facts]
    return RuntimeVerdict(runtime.title, summary, reasons, facts)


def _summary(facts: Sequence[Fact]) -> str:
    """Return the verdict of facts of which none is that the runtime runs the node."""
    lasting = [fact for fact in facts if not fact.until]
    if lasting:
        return lasting[0].verdict
    return f"{facts[0].verdict} before {facts[0].until}"


def reason_of(runtime: Runtime, fact: Fact) -> str:
    """Return a fact about a runtime as a sentence, with its source."""
    until = f" before {fact.until}" if fact.until else ""
    verb = _VERBS[fact.verdict]
    return f"{runtime.title} {verb} {fact.what}{until} ({fact.evidence})"


def _holds(fact: Fact, properties: NodeProperties) -> bool | None:
    """Whether a fact holds for a node; None if that depends on what is not known.

    That is so for a partial fact if its conditions hold.
    """
    last_opset = properties.opset if fact.last_opset is None else fact.last_opset
    if properties.operator not in fact.operators:
        return False
    if not fact.first_opset <= properties.opset <= last_opset:
        return False
    conditions = [
        _is_within(properties.axes, fact.axes),
        _is_within(properties.modes, fact.modes),
        _is_within(properties.padding_modes, fact.padding_modes),
        _is_within(properties.align_corners, fact.align_corners),
        _is_within(properties.types, fact.types),
        _is_within(properties.grid_types, fact.grid_types),
    ]
    if False in conditions:
        return False
    return None if fact.is_partial or None in conditions else True


def _is_within(values: Collection[T], allowed: Collection[T]) -> bool | None:
    """Whether all ``values`` are allowed; None if that is true of some, or if there are none."""
    if not allowed:
        return True
    if not values:
        return None
    n_allowed = sum(value in allowed for value in values)
    if n_allowed in (0, len(values)):
        return n_allowed > 0
    return None
