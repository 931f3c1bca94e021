"""The target ``compiled``: this package's op of machine code, a node for a node."""

from __future__ import annotations

from onnx import helper

from ...core.taps import MAX_TAPS, MODES
from ..dialects import COMPILED
from ..graphs import Names
from ..matches import Match
from ..records import NodeRecord
from . import Replacement
from .spelled import Spelled


class CompiledOp(Spelled):
    """See :class:`ort_gridsample.model.targets.Target`."""

    def __init__(self) -> None:
        super().__init__(COMPILED)

    def takes(self, match: Match) -> bool:
        # A wrong node is taken, as a patch raises what is wrong with those that it takes.
        return super().takes(match) and (match.record.error is not None or not unsupported(match.record))

    def replace(self, match: Match, names: Names) -> Replacement:
        replacement = super().replace(match, names)
        replacement.nodes[-1].attribute.append(helper.make_attribute("node", match.record.label))
        return replacement


def unsupported(record: NodeRecord) -> str:
    """Why no compiled op can stand in the node's place; empty where one can, or where nothing is known against it."""
    for name, types in record.types.items():
        if "str" in types:
            return f"{name} is of type str"
    if record.mode in MODES:
        taps = len(MODES[str(record.mode)].offsets)
        for axes in record.spatial_axes:
            if taps**axes > MAX_TAPS:
                return f"{record.mode} in {axes} spatial axes has more than {MAX_TAPS} taps"
    return ""
