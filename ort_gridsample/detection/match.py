"""The data that detection returns: the sampling nodes of a model and their surroundings."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ..dialects.registry import attention_signature
from ..dialects.table import ATTENTION, UNVERSIONED, AttentionSignature
from ..graph.scope import Scope
from .attention.layouts import Attention
from .coordinate_sources import CoordinateSource
from .records import NodeRecord


@dataclass(frozen=True, eq=False)
class Match:
    """A GridSample, AffineGrid or deformable attention at its place in a model.

    Attributes:
        record: the properties of the node.
        node: the node. For a decomposed operator, an equivalent node that the model does not
            have; for decomposed deformable attention, the last of its nodes.
        scope: the list of nodes that contains the node.
        index: the index of the node in ``scope``. For a decomposed operator, the index of the
            node that computes its output.
        helpers: the indices of the nodes that a patch put around the node.
        decomposed_nodes: for a decomposed operator, the indices of all nodes that compute it; also
            those of ``detected_attention``.
        preparing_nodes: for a decomposed operator, new nodes that compute inputs of ``node``.
        fused_grid: the source of coordinates that this GridSample has if it is fused with the nodes
            of its grid; None if it cannot be.
        fused_into: the GridSample that this node can be fused into.
        detected_attention: the operands of decomposed deformable attention.
        enclosing_match: the deformable attention that this GridSample is a part of.
    """

    record: NodeRecord
    node: onnx.NodeProto
    scope: Scope
    index: int
    helpers: frozenset[int] = frozenset()
    decomposed_nodes: frozenset[int] = frozenset()
    preparing_nodes: tuple[onnx.NodeProto, ...] = ()
    fused_grid: CoordinateSource | None = None
    fused_into: Match | None = None
    detected_attention: Attention | None = None
    enclosing_match: Match | None = None

    @property
    def opset(self) -> int:
        """The version of the ONNX domain in the scope of the node."""
        return self.scope.opsets.get("", 0)

    @property
    def is_composite(self) -> bool:
        """Whether this is one node that is equivalent to several nodes.

        Composite nodes are deformable attention as one node, and samplers of planar grids.
        """
        is_attention = self.record.operator == ATTENTION and self.detected_attention is None
        return is_attention or self.record.dialect.has_planar_grids

    @property
    def foreign_signature(self) -> AttentionSignature | None:
        """The signature of another package's deformable attention, or None for all other nodes."""
        return attention_signature(self.node) if self.is_composite else None

    @property
    def is_foreign_attention(self) -> bool:
        """Whether the node is deformable attention of another package."""
        return self.foreign_signature is not None

    @property
    def is_unversioned(self) -> bool:
        """Whether the node is a standard one whose model was just converted to another opset.

        It must be spelled for that opset.
        """
        return self.node.domain == UNVERSIONED

    @property
    def replaced_nodes(self) -> frozenset[int]:
        """The indices of all nodes that a replacement of the match replaces."""
        return frozenset({self.index}) | self.helpers | self.decomposed_nodes
