"""Subgraphs that the provider runs as one node.

The provider first prepares a subgraph, which may fail: its nodes then run one by one. Later it
creates the state of the new node, whose failure is an error of the session.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx

from ...errors import shortened_names
from ...graph.scope import Scope
from ...graph.use_def import UseDef, unread_nodes
from ..compiled_ops import registry
from ..compiled_ops.catalog import Op
from ..compiled_ops.record_image import RecordImage, Relocation


class NotFusedError(Exception):
    """Nodes cannot be fused. The message is the reason, and they stay single nodes."""


@dataclass(frozen=True, kw_only=True)
class FusedSubgraph(ABC):
    """Nodes of a graph that one node of the provider replaces.

    Attributes:
        nodes: the indices of the nodes in their graph.
        inputs: the values that the new node reads. The new node may have more inputs, because ONNX
            Runtime passes all values that the replaced nodes read.
        output: the output of the new node: the only value of the nodes that other nodes read.
        op: the compiled op that creates the state of the new node.
        op_types: the types of the op's inputs.
        state_index: the index of the op's initial state for the attributes of the new node.
    """

    nodes: frozenset[int]
    inputs: frozenset[str]
    output: str
    op: Op
    op_types: tuple[str, ...]
    state_index: int = 0

    @property
    @abstractmethod
    def compute(self) -> Callable[..., int]:
        """Compute of OrtNodeComputeInfo, as a function to compile."""

    @abstractmethod
    def op_node(self, input_indices: Mapping[str, int]) -> onnx.NodeProto:
        """Return a node of the op, of which only the name and the attributes are read.

        Args:
            input_indices: the names of the new node's inputs -> their indices.
        """

    def add_grid(self, image: RecordImage, input_indices: Mapping[str, int]) -> Relocation | None:
        """Append the FUSED_GRID of a COMPUTE_INFO; return its offset, or None if it has none.

        Args:
            image: the image of the COMPUTE_INFO.
            input_indices: the names of the new node's inputs -> their indices.
        """
        return None

    def prepare(self) -> None:
        """Compile what the state needs, or load it from the cache."""
        registry.prepare(self.op.name, self.op_types, self.state_index)

    @contextmanager
    def new_state(self, input_indices: Mapping[str, int]) -> Iterator[int]:
        """Create the state of the new node. It is destroyed if the body raises an exception.

        Args:
            input_indices: the names of the new node's inputs -> their indices.

        Raises:
            RuntimeError: the op refuses the node.
        """
        ops = registry.compiled_ops()
        state = ops.create_state(self.op, self.op_types, self.op_node(input_indices))
        try:
            yield state
        except BaseException:
            ops.destroy_state(self.op, self.op_types, state)
            raise

    def info_fields(
        self, image: RecordImage, input_indices: Mapping[str, int], state: int
    ) -> dict[str, Any]:
        """Return the fields of the COMPUTE_INFO of the new node.

        Args:
            image: the image of the COMPUTE_INFO.
            input_indices: the names of the new node's inputs -> their indices.
            state: the address of its state.
        """
        implementation = self.op.load()
        grid = self.add_grid(image, input_indices)
        return {
            "state": state,
            "grid": 0 if grid is None else grid,
            "compute": (implementation.compute,),
            "destroy": (implementation.destroy,),
        }


def nodes_to_fuse(
    scope: Scope,
    *,
    required: Set[int],
    candidates: Set[int],
    inputs: Set[str],
    output: str,
) -> frozenset[int]:
    """Return the nodes that one node can replace.

    The output must depend on all of these nodes, and other nodes read none of their values except
    the output. So a path that leaves the nodes begins at the output, and enters them never again.

    Args:
        required: the indices of the nodes that must be replaced.
        candidates: the indices of the nodes that are replaced if no other node reads their values.
        inputs: the values that the new node reads.
        output: the value that the new node computes.

    Raises:
        NotFusedError: another node reads a value of a required node, or an input of the new node is
            not read by the nodes, or is computed by them. ONNX Runtime passes only values that the
            replaced nodes read and do not compute.
    """
    nodes = required | unread_nodes(UseDef(scope), required, inputs | {output}, candidates)
    read = {name for index in nodes for name in scope.inputs[index]}
    computed = {name for index in nodes for name in scope.outputs[index] if name}
    for name in sorted(computed - {output}):
        if not scope.readers.get(name, set()) <= nodes:
            raise NotFusedError(
                f"other nodes read {name!r}, which the fused node would not compute"
            )
    unread = sorted(inputs - read)
    if unread:
        raise NotFusedError(
            f"the fused node would read {_listed(unread)}, and onnxruntime passes only what the "
            "replaced nodes read: nodes between them are also read by other nodes"
        )
    inner = sorted(inputs & computed)
    if inner:
        raise NotFusedError(f"the fused node would read {_listed(inner)}, which it replaces")
    return frozenset(nodes)


def _listed(names: Sequence[str]) -> str:
    """Return names of values as text."""
    return shortened_names([repr(name) for name in names])
