"""What a patch can turn a node into: one module a kind of target.

A target says which nodes it has something for, and what stands in a node's place; where nodes are, and putting them
there, is :mod:`ort_gridsample.patch`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx

from ..graphs import Names
from ..records import NodeRecord


@dataclass(frozen=True)
class Replacement:
    """What stands in the place of a node.

    Attributes:
        nodes: in its place.
        guards: at the end of its graph, the first node's last.
        functions: model-local functions that ``nodes`` call.
    """

    nodes: Sequence[onnx.NodeProto]
    guards: Sequence[onnx.NodeProto] = ()
    functions: Sequence[onnx.FunctionProto] = ()


class Target(Protocol):
    """One kind of thing to turn nodes into."""

    def takes(self, record: NodeRecord) -> bool:
        """Whether the target has something else for a node than what it is."""

    def is_torn(self, record: NodeRecord) -> bool:
        """Whether one body of the node's function cannot serve all its calls."""

    def least_opset(self, record: NodeRecord) -> int:
        """The oldest opset of the ONNX domain in which the replacement can be written."""

    def replace(self, record: NodeRecord, names: Names) -> Replacement:
        """What stands in the node's place."""
