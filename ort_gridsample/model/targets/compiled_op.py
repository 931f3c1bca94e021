"""The target ``compiled``: this package's op of machine code, a node for a node."""

from __future__ import annotations

from onnx import helper

from ...core.taps import MAX_TAPS, MODES
from ..dialects import COMPILED
from ..graphs import Names
from ..matches import Match
from ..records import NodeRecord
from . import CAST_LIKE, Replacement, typed_in_function
from .spelled import Spelled


class CompiledOp(Spelled):
    """See :class:`ort_gridsample.model.targets.Target`."""

    def __init__(self) -> None:
        super().__init__(COMPILED)

    def takes(self, match: Match) -> bool:
        # A wrong node is taken, as a patch raises what is wrong with those that it takes.
        return super().takes(match) and (match.record.error is not None or not unsupported(match.record))

    def needs_inlining(self, match: Match) -> bool:
        return super().needs_inlining(match) or match.scope.opsets.get("", 0) < CAST_LIKE

    def replace(self, match: Match, names: Names) -> Replacement:
        *before, op = super().replace(match, names).nodes
        op.attribute.append(helper.make_attribute("node", match.record.label))
        op.output[0], after = typed_in_function(match, op.input[0], names)
        return Replacement([*before, op, *after])


def unsupported(record: NodeRecord) -> str:
    """Why no compiled op can stand in the node's place; empty where one can, or where nothing is known against it."""
    for name, types in record.types.items():
        if "str" in types:
            return f"{name} is of type str"
    if record.mode in MODES:
        taps = MODES[str(record.mode)].taps
        for axes in record.spatial_axes:
            if taps**axes > MAX_TAPS:
                return f"{record.mode} in {axes} spatial axes has more than {MAX_TAPS} taps"
    return ""
