"""Fuse nodes while ONNX Runtime creates a session.

For each graph, ONNX Runtime first calls GetCapability of the provider, which calls the field
``fuse`` of its EP. :class:`FusedNodes` then searches the graph for nodes that become one, and adds
them to the OrtEpGraphSupportInfo. If this fails, the nodes stay as they are. Afterwards ONNX
Runtime calls Compile, which creates the functions and the state of each fused node.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnxruntime

from ... import versions
from ...functions.cores import logger
from ...kernels.compilation import FunctionSpec
from ..compiled_ops import c_api, registry
from ..compiled_ops.record_image import RecordImage
from . import compute_infos, constant_functions
from .ep_api import OLDEST_WITH_FUSED_BODIES, PROVIDER_API_VERSION
from .fused_subgraph import FusedSubgraph
from .fusion import find_fused_subgraphs
from .ort_graph import Graph, OrtApi
from .structs import COMPUTE_INFO

_FUSES_IN_BODIES = versions.is_at_least(onnxruntime.__version__, OLDEST_WITH_FUSED_BODIES)


def compute_info_functions(compute: Callable[..., int]) -> dict[str, FunctionSpec]:
    """Return the functions of OrtNodeComputeInfo by their fields."""
    return {
        "CreateState": (compute_infos.create_state,),
        "Compute": (compute,),
        "ReleaseState": (constant_functions.return_nothing,),
    }


class FusedNodes:
    """The fused nodes of the sessions of this process.

    Args:
        api: the address of the OrtApi.
        ep_api: the address of the OrtEpApi.
        compile_functions: compile functions of this folder, and return their addresses.

    Attributes:
        fuse: the field of that name of an EP, as a C function.
        compile: Compile of OrtEp, as a C function.
    """

    def __init__(
        self,
        api: int,
        ep_api: int,
        compile_functions: Callable[[Sequence[FunctionSpec]], list[int]],
    ) -> None:
        self._api = OrtApi(api)
        self._ep_api = ep_api
        self._compile_provider_functions = compile_functions
        self._session = _SessionInCreation()
        self.fuse = c_api.callback(4, self._fuse, _fusion_failure)
        self.compile = c_api.callback(6, self._compile, self._compilation_failure)

    def allow(self, is_allowed: bool) -> None:
        """Set whether nodes are fused in sessions that this thread creates from now on."""
        self._session.is_fusion_allowed = is_allowed

    def _fuse(self, graph_address: int, support: int, nodes: int, count: int) -> int:
        """Fuse nodes of an OrtGraph.

        Args:
            graph_address: the OrtGraph.
            support: the OrtEpGraphSupportInfo.
            nodes: the address of an array of OrtNode*. The elements of fused nodes are set to 0.
            count: its length.
        """
        self._session.subgraphs = {}
        graph = Graph(self._api, graph_address)
        if self._session.is_fusion_allowed and (_FUSES_IN_BODIES or not graph.is_body):
            addresses = (c_api.word * count).from_address(nodes)
            self._fuse_in(graph, support, addresses)
        return 0

    def _fuse_in(self, graph: Graph, support: int, addresses: Any) -> None:
        """Fuse nodes of ``graph``.

        Args:
            support: the OrtEpGraphSupportInfo.
            addresses: the addresses of its nodes. Those of fused nodes are set to 0.
        """
        for subgraph in find_fused_subgraphs(graph):
            indices = sorted(subgraph.nodes)
            self._prepare(subgraph)
            self._add_nodes(support, [graph.nodes[index].address for index in indices])
            self._session.subgraphs[subgraph.output] = subgraph
            for index in indices:
                addresses[index] = 0

    def _add_nodes(self, support: int, nodes: Sequence[int]) -> None:
        """Add the OrtNodes of a fused node to an OrtEpGraphSupportInfo."""
        addresses = (c_api.word * len(nodes))(*nodes)
        arguments = support, ctypes.addressof(addresses), len(nodes), 0
        name = "EpGraphSupportInfo_AddNodesToFuse"
        self._api.check(c_api.call(self._ep_api, name, *arguments))

    def _prepare(self, subgraph: FusedSubgraph) -> None:
        """Compile all functions of a fused node, without its input indices.

        A failure here still leaves the single nodes. A failure of :meth:`_compile` would be an
        error of the session.
        """
        functions = compute_info_functions(subgraph.compute)
        self._compile_provider_functions([*functions.values(), (compute_infos.allocate_block,)])
        subgraph.prepare()

    def _image(
        self, subgraph: FusedSubgraph, input_indices: Mapping[str, int], state: int
    ) -> RecordImage:
        """Return the data of a fused node, which begin with its COMPUTE_INFO.

        Args:
            subgraph: the nodes that it replaces.
            input_indices: the names of the node's inputs -> their indices.
            state: the address of its state.
        """
        image = RecordImage()
        functions = compute_info_functions(subgraph.compute)
        addresses = self._compile_provider_functions([*functions.values()])
        info = dict(zip(functions, addresses, strict=True))
        offset = image.add_records(COMPUTE_INFO, {"version": PROVIDER_API_VERSION, **info})
        fields = subgraph.info_fields(image, input_indices, state)
        image.set_fields(offset, COMPUTE_INFO, fields)
        return image

    def _compile(
        self,
        ep_address: int,
        graphs: int,
        nodes: int,
        count: int,
        infos: int,
        contexts: int,
    ) -> int:
        """Compile: create the OrtNodeComputeInfo of each fused node.

        Args:
            ep_address: the OrtEp.
            graphs: the address of an array of OrtGraph*: the nodes that each node replaces.
            nodes: the address of an array of OrtNode*: the fused nodes.
            count: the length of the arrays.
            infos: the address of an array for the OrtNodeComputeInfo* of each node.
            contexts: not used.
        """
        array_type = c_api.word * count
        pairs = zip(array_type.from_address(graphs), array_type.from_address(nodes), strict=True)
        results = array_type.from_address(infos)
        for index, (graph, node) in enumerate(pairs):
            results[index] = self._compute_info(Graph(self._api, graph), node)
        return 0

    def _compilation_failure(self, error: BaseException, *_: int) -> int:
        return c_api.status_of(self._api.address, error)

    def _compute_info(self, graph: Graph, node_address: int) -> int:
        """Create the OrtNodeComputeInfo of the OrtNode ``node_address`` of ``graph``."""
        node = graph.node(node_address)
        (output,) = node.outputs
        input_indices = {name: index for index, name in enumerate(node.inputs)}
        subgraph = self._session.subgraphs[output]
        (allocate,) = self._compile_provider_functions([(compute_infos.allocate_block,)])
        with subgraph.new_state(input_indices) as state:
            image = self._image(subgraph, input_indices, state)
            compiled = registry.addresses([*image.functions.values()])
            address = int(c_api.function(allocate, 1)(len(image.data)))
            if not address:
                raise MemoryError(f"not enough memory for the fused node of {output!r}")
        registry.copy_image(image, address, compiled)
        return address


def _fusion_failure(error: BaseException, *_: int) -> int:
    logger.debug("nodes are not fused: %r", error)
    return 0  # the nodes run one by one


class _SessionInCreation(threading.local):
    """The session that a thread creates.

    Attributes:
        is_fusion_allowed: whether nodes may be fused.
        subgraphs: output -> the fused subgraph that computes it, for the last graph that was passed
            to GetCapability.
    """

    is_fusion_allowed = True

    def __init__(self) -> None:
        self.subgraphs: dict[str, FusedSubgraph] = {}
