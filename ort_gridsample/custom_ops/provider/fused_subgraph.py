"""Subgraphs that the provider runs as one node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from ...errors import shortened_names
from ...graph.scope import Scope
from ...graph.use_def import UseDef, unread_nodes
from ...system.cpus import available_cpus
from ..compiled_ops import c_api, error_loading, registry
from ..compiled_ops.catalog import Fields
from ..compiled_ops.record_image import RecordImage, Relocation
from ..compiled_ops.structs import ERRORS


class NotFusedError(Exception):
    """Why nodes that a session would fuse stay single nodes of the provider."""


@dataclass(frozen=True, kw_only=True)
class FusedSubgraph(ABC):
    """Nodes of a graph that one node of the provider replaces.

    Attributes:
        nodes: the indices of the nodes in their graph.
        inputs: the values that the new node reads. The new node may have more inputs, because ONNX
            Runtime passes all values that the replaced nodes read.
        output: the output of the new node: the only value of the nodes that other nodes read.
    """

    nodes: frozenset[int]
    inputs: frozenset[str]
    output: str

    @property
    @abstractmethod
    def compute(self) -> Callable[..., int]:
        """Compute of OrtNodeComputeInfo, as a function to compile."""

    @abstractmethod
    def info_fields(
        self, image: RecordImage, input_indices: Mapping[str, int], api: int
    ) -> dict[str, Any]:
        """Return the fields of a COMPUTE_INFO for the state that :attr:`compute` reads.

        Args:
            image: the image of the COMPUTE_INFO, to which a state can be appended.
            input_indices: the names of the new node's inputs -> their indices.
            api: the address of the OrtApi.
        """

    def compile(self, api: int) -> None:
        """Compile the functions that the state needs."""
        image = RecordImage()
        self.info_fields(image, dict.fromkeys(self.inputs, 0), api)
        registry.addresses([*image.functions.values()])


def nodes_to_fuse(
    scope: Scope,
    *,
    required: Set[int],
    candidates: Set[int],
    inputs: Set[str],
    output: str,
) -> frozenset[int]:
    """Return the nodes that one node can replace.

    The output depends on all of these nodes, and other nodes read none of their values except the
    output. So no path leaves the nodes and enters them again: it would become a cycle.

    Args:
        scope: the nodes of the graph.
        required: the indices of the nodes that must be replaced.
        candidates: the indices of the nodes that are replaced if no other node reads their values.
        inputs: the values that the new node reads.
        output: the value that the new node computes.

    Raises:
        NotFusedError: another node reads a value of a required node, or an input of the new node is
            not read by the nodes. ONNX Runtime passes only values that the replaced nodes read and
            do not compute.
    """
    nodes = required | unread_nodes(UseDef(scope), required, inputs | {output}, candidates)
    read = {name for index in nodes for name in scope.inputs[index]}
    computed = {name for index in nodes for name in scope.outputs[index] if name}
    for name in computed - {output}:
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


def common_fields(kernel: Fields, errors: Relocation, api: int) -> dict[str, Any]:
    """Return the fields that all states have.

    Args:
        kernel: the fields of the KERNEL, without ``cpus``, which depends on the process.
        errors: the offset of the ERRORS.
        api: the address of the OrtApi.
    """
    return {
        "kernel": {**kernel, "cpus": available_cpus()},
        "api": api,
        "get_shape_reference": c_api.shape_reference(api),
        "errors": errors,
    }


def add_errors(image: RecordImage, sentences: Relocation, where: str) -> Relocation:
    """Append the ERRORS of a node, and return their offset.

    Args:
        image: the image.
        sentences: the offset of the op's error messages.
        where: the place that errors name.
    """
    errors = {
        "load_create_error": error_loading.loader_address(),
        "create_brief_error": error_loading.brief_spec(),
        "sentences": sentences,
        "prefix": image.add_text(where.encode()),
    }
    return image.add_records(ERRORS, errors)


def text_fields(image: RecordImage, text: str) -> dict[str, Any]:
    """Append a text, and return the fields of its TEXT."""
    encoded = text.encode()
    return {"data": image.add_text(encoded), "length": len(encoded)}
