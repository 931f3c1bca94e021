"""The names of lowered nodes, which tell the node that they come from."""

from __future__ import annotations

import onnx

#: The part of the names of lowered nodes that follows the name of the original node.
_LOWERED = "/ort_gridsample/"
_LOWERED_GRID = f"{_LOWERED}coordinates/"


def lowered_name(where: str, name: str, is_grid_reader: bool) -> str:
    """Return the name of one of the nodes to which the node ``where`` is lowered.

    onnxruntime keeps names, but no metadata, when it optimizes a model or inlines a function.
    """
    return f"{where}{_LOWERED_GRID if is_grid_reader else _LOWERED}{name}"


def lowered_from(node: onnx.NodeProto) -> str | None:
    """Return the name of the node that ``node`` was lowered from, or None if it was not lowered."""
    name, separator, _ = node.name.partition(_LOWERED)
    return name if separator else None


def reads_grid(node: onnx.NodeProto) -> bool:
    """Whether a lowered node computes with the grid."""
    return _LOWERED_GRID in node.name
