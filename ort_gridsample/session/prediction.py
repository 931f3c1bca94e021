"""Predict where the nodes of a model would run in a session, without opening the session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnxruntime

from ..detection.attention.quantization import quantization_between
from ..detection.find import find_matches
from ..detection.match import Match
from ..detection.node_checks import check_no_fused_nodes
from ..graph.files import Model, read_model, translate_errors
from ..graph.scope import scopes_of
from ..graph.use_def import UseDef
from ..versions import ONNXRUNTIME_STAYS_INSIDE_X, is_at_least
from . import installed_runtime
from .accelerators import AcceleratorProbe
from .decisions import context_of
from .placement import ONNXRUNTIME, REFUSED, Placement
from .placing import place_nodes, placements_of


def predict_placements(model: Model, accelerator_probe: AcceleratorProbe) -> list[Placement]:
    """Return where the nodes of a model run in a session with the default options.

    Args:
        model: the model, as :func:`ort_gridsample.inspect_model` reads it.
        accelerator_probe: finds the forms of nodes that accelerators run.

    Returns:
        A placement for each node. Kernels that read outside of their input and quantized nodes that
        prevent a fusion are mentioned in the reasons.

    Raises:
        GridSampleError: the model cannot be read.
    """
    proto = read_model(model)
    with translate_errors(proto):
        all_scopes = scopes_of(proto)
        check_no_fused_nodes(all_scopes)
        matches = find_matches(proto, all_scopes, installed_runtime.PROBE, with_reasons=True)
        context = context_of(None, accelerator_probe, is_saved=False)
        valid_matches = [match for match in matches if match.record.error is None]
        decisions = place_nodes(valid_matches, context, compiles=False)
        use_defs = _quantized_use_defs(valid_matches)
        attention_samples = {sample for match in matches for sample in match.samples}
        placements = list[Placement]()
        for match in matches:
            if match.record.error is not None:
                placements.append(Placement(match.record, REFUSED, str(match.record.error)))
                continue
            reason = ""
            if match not in attention_samples:
                reason = _quantization_reason(match, use_defs.get(id(match.scope)))
            for placement in placements_of([match], decisions):
                with_warning = _with_reason(placement, placement.reason, _kernel_warning(placement))
                placements.append(_with_reason(with_warning, with_warning.note, reason))
        return placements


def _quantized_use_defs(matches: Sequence[Match]) -> dict[int, UseDef]:
    """Return the use-def chains of the scopes with quantized values, by the id of the scope."""
    scopes = {id(match.scope): match.scope for match in matches}
    return {
        scope_id: UseDef(scope)
        for scope_id, scope in scopes.items()
        if "QuantizeLinear" in scope.indices_by_type
    }


def _quantization_reason(match: Match, use_def: UseDef | None) -> str:
    """Return which QuantizeLinear prevents fusion into deformable attention, or "" if none does."""
    if use_def is None or match.record.operator != "GridSample":
        return ""
    name = quantization_between(use_def, match.record)
    if not name:
        return ""
    return (
        f"not fused into deformable attention, as QuantizeLinear {name} lies between the sample "
        "and the sum: exclude the nodes that coordinate_nodes lists from quantization "
        "(nodes_to_exclude)"
    )


def _kernel_warning(placement: Placement) -> str:
    """Return a warning if the kernel that runs the node reads outside of its input, else ""."""
    record = placement.record
    if placement.runs_on != ONNXRUNTIME or record.operator != "GridSample" or record.decomposed:
        return ""
    if is_at_least(onnxruntime.__version__, ONNXRUNTIME_STAYS_INSIDE_X):
        return ""
    installed = onnxruntime.__version__
    fixed = ONNXRUNTIME_STAYS_INSIDE_X
    return (
        f"unsafe for untrusted grids: the kernel of onnxruntime {installed} reads outside of X at "
        f"huge coordinates; onnxruntime {fixed} fixed it (its issues 27975 and 28302)"
    )


def _with_reason(placement: Placement, reason: str, addition: str) -> Placement:
    """Return ``placement`` with ``addition`` after ``reason``; unchanged if there is none."""
    if not addition:
        return placement
    return replace(placement, reason="; ".join(filter(None, [reason, addition])))
