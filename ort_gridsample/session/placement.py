"""What each node of a session runs on: another provider than the CPU's, an op or onnxruntime's own kernel; and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Literal

import onnxruntime

from .. import settings
from ..custom_ops.compiled_ops import library_file as library
from ..custom_ops.compiled_ops import registry
from ..detection.attention.quantization import quantization_between
from ..detection.find import find
from ..detection.helpers import has_status
from ..detection.match import Match
from ..detection.node_checks import reason_of
from ..detection.records import NodeRecord
from ..dialects.table import ATTENTION, COMPILED, DOMAIN, OLD_COMPILED
from ..functions.cores import logger
from ..graph.files import Model, explaining_invalid, read_model
from ..graph.scope import scopes
from ..graph.use_def import UseDef
from ..reference.taps import COMPILED_MODES
from ..rewriting.attention_nodes import has_unusual_starts, op_record
from ..rewriting.expansion import points_of
from ..rewriting.patch import Selection
from ..rewriting.targets import Target
from ..rewriting.targets.attention import CompiledAttention, PythonAttention, WholeNode
from ..rewriting.targets.compiled_op import CompiledOp, FusedOp, unsupported
from ..rewriting.targets.python_op import PythonOp
from ..rewriting.unfusing import unfused
from ..settings import OpsName
from ..versions import ONNXRUNTIME_STAYS_INSIDE_X, at_least
from . import native
from .accelerators import Accelerators


def set_ops(name: OpsName | None) -> None:
    """Choose the ops that the nodes of every :class:`ort_gridsample.InferenceSession` run on that is made from now on.

    ``"compiled"`` are the ops of machine code, of the extra ``ort-gridsample[jit]``, and what they cannot do, strings,
    is left to ``"python"``, the ops defined in Python, which run anywhere; ``"auto"`` is ``"compiled"`` where those can
    be had. None goes back to the environment variable ``ORT_GRIDSAMPLE_OPS``, or to ``"auto"``.

    Raises:
        ValueError: there are no such ops.
        ImportError: ``"compiled"`` was asked for and cannot be had; it says why.
    """
    if name == "compiled":
        why_no_compiled_ops(name)
    settings.OPS.set(name)


def get_ops() -> Literal["compiled", "python"]:
    """The ops that the next session's nodes run on, if they can; how they are chosen: :func:`set_ops`.

    Raises:
        ImportError: the environment variable asks for ``"compiled"``, and they cannot be had.
    """
    return "python" if why_no_compiled_ops() else "compiled"


def why_no_compiled_ops(wanted: OpsName | None = None) -> str:
    """Why a session has no compiled ops, empty where it has; ImportError where they are ``wanted``, by the settings."""
    wanted = wanted or settings.OPS.get()
    reason = "Python ops were asked for" if wanted == "python" else registry.unavailable_reason()
    if reason and wanted == "compiled":
        raise ImportError(f"compiled ops cannot be had: {reason}")
    return reason


@dataclass(frozen=True)
class Placement:
    """What a node of a session runs on.

    Attributes:
        record: what is known of the node.
        runs_on: ``"compiled op"``, ``"Python op"``, the execution provider that comes before the CPU's, or
            ``"onnxruntime"``, whose own kernel it is then. Empty where a session refuses the node.
        reason: why a session refuses the node; why it is no compiled op, or the GridSample that it is fused into; empty
            where it is one by itself. Of another provider: what it is written as for that, and why; empty where it
            stays as it is.
        fused: the names of the nodes that are fused into it, as they compute its grid and nothing else.
        library: the library that a compiled op is of, and what this says of itself; empty where it is compiled here.
    """

    record: NodeRecord
    runs_on: str
    reason: str = ""
    fused: tuple[str, ...] = ()
    library: str = ""

    def __str__(self) -> str:
        of = self.library and f" of {self.library}"
        return f"{self.record.where}: {self.runs_on or 'refused'}{of}{self.note and f' ({self.note})'}"

    @property
    def ours(self) -> bool:
        """Whether it is an op of this package."""
        return self.runs_on in ("compiled op", "Python op")

    @property
    def note(self) -> str:
        """The reason, or how many nodes are fused into it."""
        count = len(self.fused)
        if self.record.operator == ATTENTION and not self.reason and count:
            return f"in place of {count} nodes"
        nodes = "node that computes" if count == 1 else f"{count} nodes that compute"
        return self.reason or (f"fused with the {nodes} its grid" if count else "")


def foreseen(model: Model, accelerators: Accelerators) -> list[Placement]:
    """What the nodes of a model run on in a session by default; it is taken, and refused, as by ``inspect_model``."""
    proto = read_model(model)
    with explaining_invalid(proto):
        whole = unfused(proto)
        matches = find(whole, scopes(whole), native, asked=True)
        ops = Ops(None, accelerators, saved=False, prepares=False)
        valid = [match for match in matches if match.record.error is None]
        for match in valid:
            ops.choose(match)
        use_defs = {id(match.scope): UseDef(match.scope) for match in valid if "QuantizeLinear" in match.scope.op_types}
        placements = list[Placement]()
        for match in matches:
            if match.record.error is not None:
                placements.append(Placement(match.record, "", str(match.record.error)))
                continue
            found = map(_with_warning, ops.placements([match.record]))
            use_def = use_defs.get(id(match.scope))
            quantizing = ""
            if use_def is not None and match.record.operator == "GridSample" and match.read_by is None:
                quantizing = quantization_between(use_def, match.record)
            placements += (_with_quantization(each, quantizing) if quantizing else each for each in found)
        return placements


def _with_quantization(placement: Placement, name: str) -> Placement:
    """``placement`` of a GridSample that is not fused into deformable attention because of the QuantizeLinear."""
    reason = (
        f"not fused into deformable attention, as QuantizeLinear {name} lies between the sample and the sum: exclude "
        "the nodes between them from quantization (nodes_to_exclude)"
    )
    return replace(placement, reason="; ".join(filter(None, [placement.note, reason])))


def _with_warning(placement: Placement) -> Placement:
    """``placement``, with a warning where the kernel that runs it reads outside its input."""
    record = placement.record
    is_native = placement.runs_on == "onnxruntime" and record.operator == "GridSample" and not record.unrolled
    if not is_native or at_least(onnxruntime.__version__, ONNXRUNTIME_STAYS_INSIDE_X):
        return placement
    warning = (
        f"unsafe for untrusted grids: the kernel of onnxruntime {onnxruntime.__version__} reads outside of X at huge "
        f"coordinates; onnxruntime {ONNXRUNTIME_STAYS_INSIDE_X} fixed it (its issues 27975 and 28302)"
    )
    return replace(placement, reason="; ".join(filter(None, [placement.reason, warning])))


class Ops(Target):
    """A target: for each node what it runs on.

    ``nodes`` may not stay onnxruntime's own; None: those that have a compiled op, or that it does not run. Where they
    do not ask for ops, ``accelerators`` are asked. Others may change a model that is ``saved``. What a node needs is
    compiled where this ``prepares`` it, or loaded, to see whether that can be done.
    """

    fuses = True

    def __init__(self, nodes: Selection | None, accelerators: Accelerators, saved: bool, prepares: bool = True) -> None:
        self._nodes, self._prepares = nodes, prepares
        self._accelerators = accelerators if nodes in (None, "unsupported") else None
        self._ours: dict[str, Target] = {"compiled op": CompiledOp(), "Python op": PythonOp(in_session=not saved)}
        self._attention = {"compiled op": CompiledAttention(), "Python op": PythonAttention(in_session=not saved)}
        self._whole_nodes: dict[str, Target] = {
            "compiled op": WholeNode(),
            "Python op": WholeNode(is_python=True, in_session=not saved),
        }
        self._fused = FusedOp()
        self._alone: dict[int, tuple[Placement, Target | None]] = {}
        self._chosen: dict[int, tuple[Placement, Target | None]] = {}

    @cached_property
    def _why_no_compiled_ops(self) -> str:
        return why_no_compiled_ops()  # which few need, as it imports Numba

    def placements(self, records: Sequence[NodeRecord]) -> list[Placement]:
        """Those of the nodes of ``records``: deformable attention that nothing replaces is several."""
        left = {COMPILED: "compiled op", DOMAIN: "Python op"}  # as they are
        found = (
            self._chosen[id(r)][0] if id(r) in self._chosen else Placement(r, left.get(r.dialect.name, "onnxruntime"))
            for r in records
        )
        return [each for each in found if each.ours or each.record.operator != ATTENTION]

    def choose(self, match: Match) -> tuple[Placement, Target | None]:
        """What the node of ``match`` runs on, and the target that writes it; None: it stays."""
        record = match.record
        if id(record) not in self._chosen:  # kept in there, a record is no other's by its id
            self._chosen[id(record)] = self._choose(match)
        return self._chosen[id(record)]

    def _choose(self, match: Match) -> tuple[Placement, Target | None]:
        sample = match.fused_into or match
        whole = sample.read_by if sample.read_by and self._choose_alone(sample.read_by)[1] else None
        if whole is not None and whole.attention is not None and match.index in whole.attention.path:
            as_one, target = self._choose_alone(whole)  # which leaves this one without a reader
            return replace(as_one, record=match.record, reason=f"fused into {whole.record.where}"), target
        placement, target = self._choose_alone(match)
        if match.attention is not None:
            return replace(placement, fused=match.record.fused), target
        if sample.fused is not None and not (whole and sample.fused.affine_grid):  # whose grid that reads
            nodes = filter(None, (sample, sample.fused.affine_grid))
            if all(self._choose_alone(each)[0].runs_on == "compiled op" for each in nodes):
                into = {"fused": match.record.fused} if match.fused else {"reason": f"fused into {sample.record.where}"}
                return replace(placement, **into), self._fused
        return placement, target

    def _choose_alone(self, match: Match) -> tuple[Placement, Target | None]:
        """What the node of ``match`` runs on where nothing is fused."""
        if id(match.record) not in self._alone:
            self._alone[id(match.record)] = self._decide(match)
        return self._alone[id(match.record)]

    def _decide(self, match: Match) -> tuple[Placement, Target | None]:
        record, opsets = match.record, match.scope.opsets
        if record.operator == ATTENTION and self._accelerators:
            return Placement(record, "onnxruntime", "its GridSamples may run on another provider"), None

        def ask() -> NodeRecord:
            return replace(record, reason=reason_of(record, opsets, native))

        if callable(self._nodes) and not record.patched and not self._nodes(ask()):
            return Placement(record, "onnxruntime", "the function given as nodes leaves it"), None
        if self._nodes == "unsupported" and ask().native:
            return Placement(record, "onnxruntime", "onnxruntime runs it, and nodes is 'unsupported'"), None
        if self._accelerators and (way := self._accelerators.way(record, opsets)):
            reason = f"written as {way.name}, as it does not run the node itself: {way.why}" if way.name else ""
            return Placement(record, self._accelerators.name, reason), way.target
        targets = self._ours if match.attention is None else self._attention
        if match.contract is not None:
            targets = self._whole_nodes
        reason = self._why_no_compiled_ops or unsupported(record)
        if not reason and record.error is None and self._prepares and not record.passes_on:
            mode = COMPILED_MODES.index(str(record.mode)) if record.operator == "GridSample" else 0
            try:
                of_op = record if match.contract is None else op_record(match)
                for types in product(*of_op.types.values()):
                    registry.prepare(record.operator, types, mode)
            except Exception as error:
                logger.warning("compiling %s failed, it runs on the Python op: %r", record.where, error)
                reason = f"compiling it failed: {error}"
        if not reason:
            path = library.found()
            of = "" if path is None else f"{path}, {library.checked(path)}"
            return Placement(record, "compiled op", library=of), targets["compiled op"]
        if self._nodes is None and ask().native:
            return Placement(record, "onnxruntime", reason), None
        return Placement(record, "Python op", reason), targets["Python op"]

    def of(self, match: Match) -> Target | None:
        target = self.choose(match)[1]
        return target and target.of(match)

    def takes_whole(self, match: Match) -> bool:
        return match.contract is not None and not self._accelerators and not self.expands(match)

    def expands(self, match: Match) -> bool:
        if match.record.dialect.plane_scale:
            return True
        if match.contract is not None:
            return not self._accelerators and has_unusual_starts(match)
        if match.record.dialect.name == OLD_COMPILED:
            return True
        if match.record.patched:  # as other ops than it is
            if why_no_compiled_ops():
                return match.record.dialect.name == COMPILED or not has_status(match.node)
            # Where a run may sample any number of points on each level, it stays.
            return match.record.dialect.name != COMPILED and bool(points_of(match) or not has_status(match.node))
        return not self._accelerators  # which may know the plugin
