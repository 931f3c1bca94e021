"""The sampling nodes of a model, as data: where each is, and what was detected around it."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ..dialects.registry import attention_node
from ..dialects.table import ATTENTION, SET_ASIDE, AttentionNode
from ..graph.scope import Scope
from .attention.match import Attention
from .programs import Program, Scalar
from .records import NodeRecord


@dataclass(frozen=True, eq=False)
class Match:
    """A sampling node in a model: GridSample, AffineGrid or deformable attention.

    Attributes:
        record: the properties of the node.
        node: the node. If the operator is decomposed, an equivalent node.
        scope: the list of nodes that contains it.
        index: its position there. If the operator is decomposed, that of the node that computes its
            output.
        helpers: the positions of the nodes that a patch put around it.
        part: the positions of all nodes that compute a decomposed operator.
        before: new nodes that compute inputs of an equivalent node that the model does not have.
        fused: the computation of this GridSample's grid that can be fused into it.
        fused_into: the GridSample that this AffineGrid can be fused into.
        attention: the operands of decomposed deformable attention.
        enclosing_attention: the deformable attention that this GridSample is a part of.
    """

    record: NodeRecord
    node: onnx.NodeProto
    scope: Scope
    index: int
    helpers: frozenset[int] = frozenset()
    part: frozenset[int] = frozenset()
    before: tuple[onnx.NodeProto, ...] = ()
    fused: FusedGrid | None = None
    fused_into: Match | None = None
    attention: Attention | None = None
    enclosing_attention: Match | None = None

    @property
    def is_whole(self) -> bool:
        """Whether one node represents several.

        It is deformable attention, or a sampler whose grid is planes.
        """
        is_attention = self.record.operator == ATTENTION and self.attention is None
        return is_attention or self.record.dialect.plane_scale > 0

    @property
    def contract(self) -> AttentionNode | None:
        """The contract of another package's node that is a whole deformable attention.

        None: it is another node.
        """
        return attention_node(self.node) if self.is_whole else None

    @property
    def is_set_aside(self) -> bool:
        """Whether the node is a standard one that must be written in the model's new opset."""
        return self.node.domain == SET_ASIDE

    @property
    def replaced_nodes(self) -> frozenset[int]:
        """The positions of all nodes that a replacement of the match replaces."""
        return frozenset({self.index}) | self.helpers | self.part


@dataclass(frozen=True)
class FusedGrid:
    """The computation of a GridSample's grid.

    It is either an AffineGrid or a program for each coordinate.

    Attributes:
        nodes: the positions of the nodes to fuse except the AffineGrid, and of the Constants that
            they read.
        names: the names of all nodes to fuse, in order.
        type: the grid's element type. Empty if it is that of an AffineGrid's theta.
        affine_grid: the AffineGrid.
        programs: one program for each coordinate, innermost axis first.
    """

    nodes: tuple[int, ...]
    names: tuple[str, ...]
    type: str
    affine_grid: Match | None = None
    programs: tuple[Program, ...] = ()

    @property
    def sources(self) -> list[str]:
        """The values that the programs read, each once."""
        names: dict[str, None] = {}
        for program in self.programs:
            names[program.component.name] = None
            names.update((operand.component.name, None) for operand in program.operands)
        return list(names)

    @property
    def scalars(self) -> list[Scalar]:
        """The scalar operands of the programs, in order."""
        return [scalar for program in self.programs for scalar in program.scalars]
