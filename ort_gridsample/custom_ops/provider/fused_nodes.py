"""Fuse deformable attention while ONNX Runtime creates a session.

ONNX Runtime calls GetCapability for each graph, and then Compile for the nodes that were fused in
this graph. Both lead to :class:`FusedNodes`. A failure leaves the nodes of the graph as they are.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import onnxruntime

from ... import versions
from ...dialects.table import ATTENTION
from ...functions.cores import logger
from ...system.cpus import available_cpus
from ..compiled_ops import c_api, registry
from ..compiled_ops.c_api import ELEMENT_TYPES
from ..compiled_ops.catalog import OPS, Op
from ..compiled_ops.record_image import RecordImage, Relocation
from ..compiled_ops.sentences import create_error
from ..compiled_ops.structs import ERRORS
from . import answers, fused_attention
from .ep_api import EP_FUNCTIONS, OLDEST_WITH_FUSED_BODIES, VERSION
from .fusion import FusedAttention, find_fused_attentions
from .ort_graph import Graph, OrtApi
from .structs import COMPUTE_INFO, FUSED_ATTENTION, LEVEL, POINTER

_FUSES_IN_BODIES = versions.is_at_least(onnxruntime.__version__, OLDEST_WITH_FUSED_BODIES)
#: The functions of OrtNodeComputeInfo.
COMPUTE_INFO_FUNCTIONS = {
    "CreateState": fused_attention.create_state,
    "Compute": fused_attention.compute_attention,
    "ReleaseState": answers.return_nothing,
}


class FusedNodes:
    """The fused nodes of the sessions of this process.

    Args:
        api: the address of the OrtApi.
        ep_api: the address of the OrtEpApi.
        compile_functions: compile functions of this folder, and return their addresses.

    Attributes:
        fuse: the field of that name of a FACTORY, as a C function.
        compile: Compile of OrtEp, as a C function.
    """

    def __init__(
        self,
        api: int,
        ep_api: int,
        compile_functions: Callable[[Sequence[Any]], list[int]],
    ) -> None:
        self._api = OrtApi(api)
        self._ep_api = ep_api
        self._compile_functions = compile_functions
        self._session = _Session()
        self.fuse = c_api.function_type(4)(self._fuse)
        self.compile = c_api.function_type(6)(self._compile)

    def allow(self, is_allowed: bool) -> None:
        """Set whether nodes are fused in sessions that this thread creates from now on."""
        self._session.is_fusion_allowed = is_allowed

    def _fuse(self, graph_address: int, support: int, nodes: int, count: int) -> int:
        """Fuse the deformable attentions of an OrtGraph.

        Args:
            graph_address: the OrtGraph.
            support: the OrtEpGraphSupportInfo.
            nodes: the address of an array of OrtNode*. Those of fused nodes become 0.
            count: its length.
        """
        try:
            self._session.attentions = {}
            graph = Graph(self._api, graph_address)
            if self._session.is_fusion_allowed and (_FUSES_IN_BODIES or not graph.is_body):
                addresses = (c_api.word * count).from_address(nodes)
                self._fuse_in(graph, support, addresses)
        except BaseException as error:  # the nodes run one by one
            logger.debug("deformable attention is not fused: %r", error)
        return 0

    def _fuse_in(self, graph: Graph, support: int, addresses: Any) -> None:
        """Fuse the deformable attentions of ``graph``.

        Args:
            graph: the graph.
            support: the OrtEpGraphSupportInfo.
            addresses: the addresses of its nodes, which become 0 for fused nodes.
        """
        for attention in find_fused_attentions(graph):
            positions = sorted(attention.positions)
            nodes = [graph.nodes[index] for index in positions]
            if any(graph.is_assigned(node) for node in nodes):
                continue
            self._prepare(attention)
            self._add_nodes(support, [node.address for node in nodes])
            self._session.attentions[attention.output] = attention
            for index in positions:
                addresses[index] = 0

    def _add_nodes(self, support: int, nodes: Sequence[int]) -> None:
        """Add the OrtNodes of a fused node to an OrtEpGraphSupportInfo."""
        offset = EP_FUNCTIONS["EpGraphSupportInfo_AddNodesToFuse"]
        add_nodes = c_api.function(c_api.word.from_address(self._ep_api + offset).value, 4)
        addresses = (c_api.word * len(nodes))(*nodes)
        self._api.check(add_nodes(support, ctypes.addressof(addresses), len(nodes), 0))

    def _prepare(self, attention: FusedAttention) -> None:
        """Compile what the fused node needs, so that :meth:`_compile` does not fail."""
        indices = dict.fromkeys(attention.inputs, 0)
        image = _image(attention, indices, self._api.address, self._functions()[1:])
        registry.addresses([*image.functions.values()])

    def _functions(self) -> list[int]:
        """Return the addresses of allocate_block and of COMPUTE_INFO_FUNCTIONS."""
        return self._compile_functions(
            [fused_attention.allocate_block, *COMPUTE_INFO_FUNCTIONS.values()]
        )

    def _compile(
        self,
        ep: int,
        graphs: int,
        nodes: int,
        count: int,
        infos: int,
        contexts: int,
    ) -> int:
        """Compile: create the OrtNodeComputeInfo of each fused node.

        Args:
            ep: the OrtEp.
            graphs: the address of an array of OrtGraph*: the nodes that each node replaces.
            nodes: the address of an array of OrtNode*: the fused nodes.
            count: the length of the arrays.
            infos: the address of an array for the OrtNodeComputeInfo* of each node.
            contexts: not used.
        """
        try:
            array_type = c_api.word * count
            pairs = zip(
                array_type.from_address(graphs), array_type.from_address(nodes), strict=True
            )
            results = array_type.from_address(infos)
            for index, (graph, node) in enumerate(pairs):
                results[index] = self._compute_info(Graph(self._api, graph), node)
            return 0
        except BaseException as error:  # ctypes would print an exception and go on
            return c_api.create_status(self._api.address, f"{type(error).__name__}: {error}")

    def _compute_info(self, graph: Graph, node_address: int) -> int:
        """Create the OrtNodeComputeInfo of the OrtNode ``node_address`` of ``graph``."""
        node = graph.node(node_address)
        (output,) = node.outputs
        attention = self._session.attentions[output]
        indices = {name: index for index, name in enumerate(node.inputs)}
        allocate, *functions = self._functions()
        image = _image(attention, indices, self._api.address, functions)
        compiled = registry.addresses([*image.functions.values()])
        address = int(c_api.function(allocate, 1)(len(image.data)))
        if not address:
            raise MemoryError("not enough memory for a fused node")
        registry.copy_image(image, address, compiled)
        return address


class _Session(threading.local):
    """The session that a thread creates.

    Attributes:
        is_fusion_allowed: whether nodes may be fused.
        attentions: the fused nodes of the graph that ONNX Runtime asked for last, by their outputs.
    """

    is_fusion_allowed = True

    def __init__(self) -> None:
        self.attentions: dict[str, FusedAttention] = {}


def _attention_op() -> Op:
    return next(op for op in OPS if op.name == ATTENTION)


def _image(
    attention: FusedAttention,
    indices: dict[str, int],
    api: int,
    functions: Sequence[int],
) -> RecordImage:
    """Return the data of a fused node, which begin with its COMPUTE_INFO.

    Args:
        attention: the deformable attention.
        indices: the names of the node's inputs -> their indices.
        api: the address of the OrtApi.
        functions: the addresses of :data:`COMPUTE_INFO_FUNCTIONS`.
    """
    image = RecordImage()
    info = dict(zip(COMPUTE_INFO_FUNCTIONS, functions, strict=True))
    info_offset = image.add_records(COMPUTE_INFO, {"version": VERSION, **info})
    kernels = _attention_op().load()
    _, (initial_state,) = kernels.states(*attention.types)
    where = attention.where.encode()
    errors = {
        "create_error": (create_error,),
        "sentences": image.add_texts(kernels.sentences),
        "where": {"data": image.add_text(where), "length": len(where)},
    }
    kernel = {
        **initial_state["kernel"],
        "cpus": available_cpus(),
        "align_corners": attention.align_corners,
    }
    state = {
        "plain": {
            "kernel": kernel,
            "api": api,
            "get_shape_reference": c_api.shape_reference(api),
            "errors": image.add_records(ERRORS, errors),
        },
        "value": indices[attention.value],
        "locations": indices[attention.locations] if attention.locations else -1,
        "weights": indices[attention.weights],
        "heads": attention.heads,
        "channels": attention.channels,
        "splits_heads": attention.splits_heads,
        "has_heads_first": attention.has_heads_first,
        "grid_type": ELEMENT_TYPES[attention.grid_type],
        "levels": _add_levels(image, attention, indices),
        "n_levels": len(attention.levels),
        "r": attention.r,
    }
    state_offset = image.add_records(FUSED_ATTENTION, state)
    image.set_fields(info_offset, COMPUTE_INFO, {"state": state_offset})
    return image


def _add_levels(
    image: RecordImage, attention: FusedAttention, indices: dict[str, int]
) -> Relocation:
    """Append the array of LEVEL of a fused node; return its offset."""
    rows = []
    for level in attention.levels:
        lengths = image.add_records(POINTER, *({"value": length} for length in level.lengths))
        rows.append(
            {
                "points": level.points,
                "shape_input": indices[level.shape] if level.shape else -1,
                "lengths": lengths,
                "grid_input": indices[level.grid] if level.grid else -1,
            }
        )
    return image.add_records(LEVEL, *rows)
