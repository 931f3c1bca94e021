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
        detected_attention: the operands of decomposed deformable attention.
        samples: the matches of the GridSamples of ``detected_attention`` that it can absorb or read
            the grids of.
    """

    record: NodeRecord
    node: onnx.NodeProto
    scope: Scope
    index: int
    helpers: frozenset[int] = frozenset()
    decomposed_nodes: frozenset[int] = frozenset()
    preparing_nodes: tuple[onnx.NodeProto, ...] = ()
    fused_grid: CoordinateSource | None = None
    detected_attention: Attention | None = None
    samples: tuple[Match, ...] = ()

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
    def is_host(self) -> bool:
        """Whether an op can do the work of this node together with that of other nodes."""
        return self.fused_grid is not None or self.detected_attention is not None

    @property
    def absorbed(self) -> tuple[Match, ...]:
        """The matches of the nodes that have no op if this one is fused.

        They are the GridSamples of a deformable attention that no other node reads, or the node
        such as an AffineGrid that computes the grid of a GridSample.
        """
        if self.detected_attention is not None:
            path = self.detected_attention.path
            return tuple(sample for sample in self.samples if sample.index in path)
        if self.fused_grid is not None and self.fused_grid.absorbed is not None:
            return (self.fused_grid.absorbed,)
        return ()

    @property
    def replaced_nodes(self) -> frozenset[int]:
        """The indices of all nodes that a replacement of the match replaces."""
        return frozenset({self.index}) | self.helpers | self.decomposed_nodes
