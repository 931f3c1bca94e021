"""GridSamples that the provider runs as one node, together with the nodes that compute the grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from ...detection.coordinate_sources import CoordinateSource
from ...detection.match import Match
from ...detection.programs import Scalar
from ...dialects.table import COMPILED_DOMAIN
from ...graph.new_names import Names
from ...graph.scope import Scope, where_of
from ...graph.use_def import UseDef
from ...inference.views import REARRANGING
from ...kernels.structs import record
from ...kernels.tap_plans import COMPILED_MODES, PADDING_CODES
from ...rewriting.targets.compiled_op import FusedOpTarget
from ..compiled_ops.catalog import find_op
from ..compiled_ops.record_image import RecordImage, Relocation
from .definitions import DOMAINS, FUSED_OPERATORS
from .fused_grid import compute_grid_sample
from .fused_subgraph import FusedSubgraph, NotFusedError, nodes_to_fuse
from .structs import FUSED_GRID, WORD

#: The operators that multiply the base of a grid in decomposed AffineGrids.
_SUMS_OF_PRODUCTS = ("MatMul", "ReduceSum")


@dataclass(frozen=True, kw_only=True)
class FusedGridSample(FusedSubgraph):
    """A GridSample and the nodes that compute its grid.

    Attributes:
        op_inputs: the values that the op reads; "" for its scalars, which are not an input of the
            fused node.
        scalars: the scalars.
        node: the node of the op, as a session writes it.
    """

    op_inputs: tuple[str, ...]
    scalars: tuple[Scalar, ...]
    node: onnx.NodeProto

    @property
    def compute(self) -> Callable[..., int]:
        return compute_grid_sample

    def op_node(self, input_indices: Mapping[str, int]) -> onnx.NodeProto:
        return self.node

    def add_grid(self, image: RecordImage, input_indices: Mapping[str, int]) -> Relocation:
        op_inputs = [input_indices[name] if name else -1 for name in self.op_inputs]
        constants = [0.0 if isinstance(scalar, str) else scalar for scalar in self.scalars]
        names = [scalar if isinstance(scalar, str) else "" for scalar in self.scalars]
        has_scalars = "" in self.op_inputs
        dtype = np.dtype(self.op_types[1])
        grid = {
            "op_inputs": _add_integers(image, op_inputs),
            "scalars": image.add_records(
                record(("value", dtype)), *({"value": value} for value in constants)
            ),
            "scalar_size": dtype.itemsize if has_scalars else 0,
            "scalar_inputs": _add_integers(
                image, [input_indices[name] if name else -1 for name in names]
            ),
        }
        return image.add_records(FUSED_GRID, grid)


def values_of_grids(use_def: UseDef) -> Iterator[str]:
    """Yield the outputs of GridSamples, and the values from which their grids may be computed."""
    scope = use_def.scope
    for index in scope.indices_of(("GridSample",)):
        yield scope.outputs[index][0]
    yield from use_def.backward_closure(grids_of(scope), FUSED_OPERATORS)


def grids_of(scope: Scope) -> list[str]:
    """Return the grids of the GridSamples."""
    samples = scope.indices_of(("GridSample",))
    return [grid for index in samples for grid in scope.inputs[index][1:2]]


def fuse_grid_sample(match: Match, source: CoordinateSource) -> FusedGridSample:
    """Return the nodes of a GridSample and of its grid that become one node.

    Raises:
        NotFusedError: the nodes that compute the grid cannot be fused, there is no compiled op for
            them, or one of their values is also read by other nodes.
    """
    sample = match.record
    members = (match, *match.absorbed)
    for member in members:
        _check_kernel(member)
    all_types = (sample.types["X"], *source.input_types)
    if any(len(types) != 1 for types in all_types):
        raise NotFusedError("the type of X or of what the grid is computed from is not known")
    op_types = tuple(type_ for types in all_types for type_ in types)
    op = find_op(source.op_name, op_types)
    if op is None:
        raise NotFusedError(f"there is no compiled op for the types {', '.join(op_types)}")
    scalars = {scalar for scalar in source.scalars if isinstance(scalar, str)}
    for name in scalars:
        if _may_have_batches(match.scope, name):
            raise NotFusedError(f"{name!r} may have an element for each batch")
    inputs = scalars.union(name for name in (sample.values["X"], *source.inputs) if name)
    # Of this node, only the attributes are read.
    node = FusedOpTarget().fused_nodes(match, source, Names(onnx.ModelProto()))[-1]
    nodes = nodes_to_fuse(
        match.scope,
        required={member.index for member in members},
        candidates=set(source.nodes),
        inputs=inputs,
        output=sample.output,
    )
    return FusedGridSample(
        nodes=nodes,
        inputs=frozenset(inputs),
        output=sample.output,
        op_inputs=(sample.values["X"], *source.inputs),
        scalars=tuple(source.scalars),
        op=op,
        op_types=op_types,
        state_index=source.state_index(str(sample.mode)),
        node=node,
    )


def check_grid_is_not_computed(match: Match, outline: Scope) -> None:
    """Check that a match without a fused grid is no GridSample whose grid nodes compute.

    Args:
        outline: all nodes of the graph. The scope of ``match`` lacks those that no search visits.

    Raises:
        NotFusedError: it is one.
    """
    grid = match.record.values.get("grid", "")
    scope = match.scope
    if match.record.operator != "GridSample" or grid not in scope.makers:
        return
    if len(scope.readers.get(grid, ())) > 1:
        raise NotFusedError(f"other nodes read its grid {grid!r}")
    maker = scope.nodes[scope.makers[grid]]
    raise NotFusedError(
        f"no nodes that can be fused compute its grid {grid!r}, the output of {where_of(maker)}: "
        f"{_obstacle(outline, grid)}"
    )


def _obstacle(outline: Scope, grid: str) -> str:
    """Return what the provider cannot do with the nodes that compute ``grid``, as text.

    The node that computes the coordinates comes before those that only rearrange them.
    """
    value = grid
    while outline.op_types[outline.makers[value]] in REARRANGING:
        value = outline.inputs[outline.makers[value]][0]
        if value not in outline.makers:
            return f"the provider cannot trace the coordinates in {value!r}"
    index = outline.makers[value]
    op_type = outline.op_types[index]
    node = "this node" if value == grid else where_of(outline.nodes[index])
    if op_type in _SUMS_OF_PRODUCTS:
        return (
            f"{node} may belong to an AffineGrid, and the provider does not search for operators "
            "that are decomposed to basic ones"
        )
    if op_type not in FUSED_OPERATORS:
        return f"the provider does not fuse {node}"
    return f"the provider cannot trace the coordinates that {node} computes"


def _check_kernel(match: Match) -> None:
    """Check that the provider has a kernel for the single node of ``match``, or a compiled op.

    Raises:
        NotFusedError: it has none.
    """
    node = match.record
    if node.error is not None:
        raise NotFusedError(str(node.error))
    if node.domain not in (*DOMAINS, COMPILED_DOMAIN):
        raise NotFusedError(f"nodes of the domain {node.domain!r} are not fused")
    if node.operator != "GridSample":
        return
    if node.mode not in COMPILED_MODES or node.padding_mode not in PADDING_CODES:
        raise NotFusedError(f"no compiled op has mode {node.mode}, padding {node.padding_mode}")


def _may_have_batches(scope: Scope, scalar: str) -> bool:
    """Whether a scalar has several axes. The first one may be the axis of batches.

    A model may declare one batch, and run with more. Then the value has an element per batch, which
    the nodes of the graph broadcast, but a program reads only one element.
    """
    graph = scope.container
    assert isinstance(graph, onnx.GraphProto)
    for value in (*graph.input, *graph.value_info):
        if value.name == scalar:
            return len(value.type.tensor_type.shape.dim) > 1
    return False


def _add_integers(image: RecordImage, values: list[int]) -> Relocation:
    """Append an array of int64, and return its offset."""
    return image.add_records(WORD, *({"value": value} for value in values))
