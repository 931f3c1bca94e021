"""What a runtime does with a node, as far as the facts about the runtime tell."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .. import spec
from ..dialects.spelling import AttributeReference
from ..dialects.table import AI_ONNX, ATTENTION
from ..graph.runtime_facts import Fact
from ..graph.runtimes import Runtime
from .records import NodeRecord

T = TypeVar("T")
#: The verdict on a node about which there is no fact, or too few.
NOT_KNOWN = "not known"
_VERBS = {"refuses": "refuses", "wrong": "computes wrongly", "runs": "runs"}


@dataclass(frozen=True)
class NodeForm:
    """The properties of a node of the standard on which facts depend.

    A property of which nothing is known is empty. In a function, it can have several values.

    Attributes:
        operator: the operator.
        opset: the opset.
        axes: the numbers of spatial axes.
        modes: the modes, by their names in opset 20.
        padding_modes: the padding modes.
        align_corners: the values of this attribute.
        types: the types of the first input.
    """

    operator: str
    opset: int
    axes: tuple[int, ...] = ()
    modes: tuple[str, ...] = ()
    padding_modes: tuple[str, ...] = ()
    align_corners: tuple[int, ...] = ()
    types: tuple[str, ...] = ()


def form_of(record: NodeRecord, opset: int) -> NodeForm:
    """Return the form that a node has, or would have, as a node of the standard in ``opset``."""

    def known(name: str) -> tuple[str | int, ...]:
        value = record.attributes.get(name)
        is_known = value is not None and not isinstance(value, AttributeReference)
        return (value,) if is_known else ()  # type: ignore[return-value]

    return NodeForm(
        operator=record.operator,
        opset=opset,
        axes=record.spatial_axes,
        modes=tuple(map(str, known("mode"))),
        padding_modes=tuple(map(str, known("padding_mode"))),
        align_corners=tuple(map(int, known("align_corners"))),
        types=record.types.get(next(iter(record.values), ""), ()),
    )


def facts_about(runtime: Runtime, form: NodeForm) -> list[Fact]:
    """Return the facts that hold for a node, those that depend on what is not known included."""
    return [fact for fact in runtime.facts if _holds(fact, form) is not False]


def is_refused(runtime: Runtime, form: NodeForm) -> bool:
    """Whether a release of a runtime certainly refuses a node, or computes it wrongly."""
    return any(fact.verdict != "runs" and _holds(fact, form) for fact in runtime.facts)


@dataclass(frozen=True)
class RuntimeVerdict:
    """What a runtime does with a node.

    Attributes:
        summary: "runs", "refuses", "wrong" or "not known", with the releases if others differ.
        reasons: the facts, in words.
        facts: the facts.
    """

    summary: str
    reasons: Sequence[str] = ()
    facts: Sequence[Fact] = ()


def verdict_on(runtime: Runtime, record: NodeRecord) -> RuntimeVerdict:
    """Return what a runtime does with a node."""
    if record.decomposed and record.operator != ATTENTION:
        return RuntimeVerdict(NOT_KNOWN, ["the operator is decomposed to basic operators"])
    is_standard = record.dialect.name == AI_ONNX or record.decomposed
    if record.dialect.name in runtime.dialects:
        return RuntimeVerdict("runs", [f"{runtime.title} has {record.op_type}"])
    if not is_standard:
        reason = f"{record.op_type} of {record.dialect.name} is not an operator of ONNX"
        return RuntimeVerdict("refuses", [reason])
    form = form_of(record, record.opset)
    if runtime.opset is not None and form.opset > runtime.opset:
        reason = f"{runtime.title} reads opsets up to {runtime.opset}"
        return RuntimeVerdict("refuses", [reason])
    certain = [fact for fact in runtime.facts if _holds(fact, form)]
    bad = [fact for fact in certain if fact.verdict != "runs"]
    possible = [fact for fact in facts_about(runtime, form) if fact.verdict != "runs"]
    if bad:
        return _verdict(runtime, _summary(bad), bad)
    if possible:
        return _verdict(runtime, NOT_KNOWN, possible)
    if certain:
        return _verdict(runtime, "runs", certain)
    return RuntimeVerdict(NOT_KNOWN)


def _verdict(runtime: Runtime, summary: str, facts: Sequence[Fact]) -> RuntimeVerdict:
    reasons = [reason_of(runtime, fact) for fact in facts]
    return RuntimeVerdict(summary, reasons, facts)


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


def _holds(fact: Fact, form: NodeForm) -> bool | None:
    """Whether a fact holds for a node; None if that depends on what is not known."""
    last_opset = form.opset if fact.last_opset is None else fact.last_opset
    if form.operator not in fact.operators or not fact.first_opset <= form.opset <= last_opset:
        return False
    conditions = [
        _is_within(form.axes, fact.axes),
        _is_within([spec.mode_of(mode) for mode in form.modes], fact.modes),
        _is_within(form.padding_modes, fact.padding_modes),
        _is_within(form.align_corners, fact.align_corners),
        _is_within(form.types, fact.types),
    ]
    if False in conditions:
        return False
    return None if None in conditions else True


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
