"""Checks of sampling nodes: faults in a model, and why onnxruntime does not run a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx

from .. import spec
from ..dialects.registry import attention_signature
from ..dialects.table import ATTENTION, COMPILED_DOMAIN, FUSED_TYPES
from ..errors import GridSampleError, where_node
from ..functions import error_templates as templates
from ..functions import validation
from ..functions.grid_operators import GRID_OPERATORS
from ..graph.scope import Scope, attribute_named, display_name, domain_of
from ..inference.probe import Probe
from ..inference.runtime_probe import NOT_INSTALLED
from ..inference.types import TypeAndShape
from ..reference.taps import MODE_RULES
from .foreign_attention_checks import check_inputs
from .records import NOT_ASKED, NodeRecord, n_spatial_axes

#: The reason for refusing a type that the specification has.
_COMPLEX_HINT = (
    "as ONNX Runtime has no complex tensors: sample the real and the imaginary part separately"
)
_WITHOUT_FUSED_NODES = (
    "the source model, which should be kept, or a model saved by a session with "
    "nodes=lambda record: not record.fused"
)
UNKNOWN_UNTIL_RUN = "types or ranks of its inputs are known only when it runs"


def fused_nodes(all_scopes: Iterable[Scope]) -> Iterator[tuple[Scope, onnx.NodeProto]]:
    """Yield the GridSamples that a session fused with their grids, and their scopes.

    Such a node is in models that onnxruntime saved. It lacks the nodes that computed its grid.
    """
    for scope in all_scopes:
        for index in scope.indices_of(FUSED_TYPES):
            if scope.nodes[index].domain == COMPILED_DOMAIN:
                yield scope, scope.nodes[index]


def check_no_fused_nodes(all_scopes: Iterable[Scope]) -> None:
    """Check that a model has no :func:`fused_nodes`.

    Raises:
        GridSampleError: it has one.
    """
    for _, node in fused_nodes(all_scopes):
        label = attribute_named(node, "node")
        name = label.s.decode() if label is not None else display_name(node)
        found = "saved by a session that fused this node"
        raise GridSampleError(
            where_node(node.op_type, name), "the model", found, _WITHOUT_FUSED_NODES
        )


def fault_of(
    record: NodeRecord,
    node: onnx.NodeProto,
    declared: Sequence[spec.Dim] | None = None,
) -> GridSampleError | None:
    """Return the first fault of a node, or None.

    Args:
        declared: the shape that the graph declares for the output. If it is None, the output may
            have any shape.
    """
    try:
        _check(record, node)
        if declared is not None:
            _check_output_shape(record, declared)
    except GridSampleError as error:
        return error
    return None


def reason_of(record: NodeRecord, opsets: Mapping[str, int], probe: Probe) -> str:
    """Return why onnxruntime does not run a node by itself, or why this is unknown.

    A decomposed GridSample or AffineGrid was found by running it in onnxruntime. For decomposed
    deformable attention, see :func:`reason_of_attention`.

    Args:
        opsets: domain -> version, as the graph of the node imports them.
        probe: tests whether onnxruntime runs the node.

    Returns:
        The reason, or "" if onnxruntime runs the node.
    """
    if record.patched:
        return "it is a node of this package"
    if record.decomposed:
        return ""
    if record.error is not None:
        return str(record.error)
    if record.operator == ATTENTION:
        return "onnxruntime has no such operator"
    node = record.node_without_values()
    for case in record.cases:
        types = {}
        for name, value in zip(record.values, case, strict=True):
            if value.type is not None:
                types[name] = value.type
        n_axes = n_spatial_axes(record.operator, case)
        if len(types) < len(case) or n_axes is None:
            return UNKNOWN_UNTIL_RUN
        refusal = probe.refusal(node, opsets, record.operator, types, n_axes)
        if refusal:
            return refusal
    return ""


def reason_of_attention(samples: Iterable[NodeRecord]) -> str:
    """Return why onnxruntime does not run a decomposed deformable attention, or "" if it does.

    onnxruntime runs it if it runs all of its GridSamples: the other nodes are basic operators.
    """
    for sample in samples:
        if sample.reason in (NOT_ASKED, NOT_INSTALLED):
            return sample.reason
        if sample.reason:
            return f"its {sample.where}: {sample.reason}"
    return ""


def _check(record: NodeRecord, node: onnx.NodeProto) -> None:
    """Check a node, in the order in which its faults are reported."""
    if record.patched:
        _check_package_op(record, node)
        return
    if record.operator == ATTENTION:
        _check_attention(record, node)
        return
    _check_opset(record, node)
    if record.error is not None:
        raise record.error
    _check_inputs_exist(record)
    _check_number_of_inputs(record, node, _max_inputs(record))
    _check_outputs(record, node)
    _check_types(record)
    for first, second in record.cases:
        if record.operator in GRID_OPERATORS:
            shapes = (first.shape, second.shape)
            GRID_OPERATORS[record.operator].check(record.where, shapes, record.constants)
        else:
            _check_grid_sample(record, first, second)


def _check_package_op(record: NodeRecord, node: onnx.NodeProto) -> None:
    """Check an op of this package. It checks types and shapes itself when it runs."""
    if record.error is not None:
        raise record.error
    _check_inputs_exist(record)
    _check_number_of_inputs(record, node, max_inputs=len(record.values))


def _check_attention(record: NodeRecord, node: onnx.NodeProto) -> None:
    """Check deformable attention. Only a foreign node has inputs that its dialect fixes."""
    signature = attention_signature(node)
    if signature is not None:
        names = [*signature.inputs]
        if len(node.input) != len(names) or not all(record.values.values()):
            expected = f"{len(names)}: {', '.join(names[:-1])} and {names[-1]}"
            found = str(len(node.input))
            raise GridSampleError(record.where, "the number of inputs", found, expected)
        _check_outputs(record, node)
    if record.error is not None:
        raise record.error
    if signature is not None:
        check_inputs(record, signature)


def _check_opset(record: NodeRecord, node: onnx.NodeProto) -> None:
    oldest = min(spec.OPERATORS[record.operator])
    is_standard = domain_of(node.domain) == "" and record.dialect.name == "ai.onnx"
    if is_standard and record.opset < oldest:
        expected = f"at least {oldest}, the first opset that has {record.operator}"
        found = f"{record.opset} in the model"
        raise GridSampleError(record.where, "opset", found, expected)


def _check_inputs_exist(record: NodeRecord) -> None:
    for name, value in record.values.items():
        if not value and name not in record.constants:
            raise GridSampleError(record.where, name, "missing", "an input")


def _max_inputs(record: NodeRecord) -> int:
    """Return the maximum number of inputs. Some dialects have attributes as inputs."""
    input_indices = [
        1 if spelling.input_index is None else spelling.input_index
        for spelling in record.dialect.attributes.values()
    ]
    return max([1, *input_indices]) + 1


def _check_number_of_inputs(record: NodeRecord, node: onnx.NodeProto, max_inputs: int) -> None:
    if len(node.input) > max_inputs:
        found = str(len(node.input))
        expected = f"at most {max_inputs}"
        raise GridSampleError(record.where, "the number of inputs", found, expected)


def _check_outputs(record: NodeRecord, node: onnx.NodeProto) -> None:
    if len(node.output) != 1:
        found = str(len(node.output))
        raise GridSampleError(record.where, "the number of outputs", found, "1")
    if not node.output[0]:
        raise GridSampleError(record.where, "the output", "without a name", "one that has a name")


def _check_types(record: NodeRecord) -> None:
    """Check that the specification and onnxruntime have the known types of the inputs."""
    allowed_types = spec.newest(record.operator).types
    for name, types in record.types.items():
        for type_name in types:
            if type_name not in allowed_types[name]:
                raise templates.TYPE_NOT_ALLOWED.error(
                    record.where,
                    argument=name,
                    type=type_name,
                    listed=", ".join(allowed_types[name]),
                )
            if spec.TYPES[type_name].transport is None:
                found = f"of type {type_name}"
                raise GridSampleError(record.where, name, found, f"another type, {_COMPLEX_HINT}")


def _check_grid_sample(record: NodeRecord, X: TypeAndShape, grid: TypeAndShape) -> None:
    """Check the shapes of a GridSample's inputs, and that its mode is defined for the type of X."""
    grid_shape = grid.shape
    if record.dialect.has_planar_grids:
        _check_planes(record, X, grid)
        if grid_shape is not None:
            grid_shape = (grid_shape[0], *grid_shape[2:], grid_shape[1])
    validation.check_grid_sample_shapes(record.where, X.shape, grid_shape, record.padding_mode)
    if X.type is not None and record.mode in MODE_RULES:
        validation.check_mode_and_padding(
            record.where, str(record.mode), spec.PADDING_MODES[0], X.type
        )


def _check_planes(record: NodeRecord, X: TypeAndShape, grid: TypeAndShape) -> None:
    """Check the inputs of a sampler whose grid has its coordinates in axis 1."""
    (r,) = record.dialect.axes or (2,)
    if X.shape is not None and len(X.shape) != r + 2:
        found = f"of shape {validation.format_shape(X.shape)}"
        raise GridSampleError(record.where, "X", found, f"{r + 2} axes")
    batch = X.shape[0] if X.shape is not None else None
    if grid.shape is not None and not validation.may_match(grid.shape, (batch, r, *[None] * r)):
        N = batch if isinstance(batch, int) else "N"
        lengths = ", ".join(f"D{axis + 1}_out" for axis in range(r))
        found = f"of shape {validation.format_shape(grid.shape)}"
        raise GridSampleError(record.where, "grid", found, f"shape ({N}, {r}, {lengths})")


def _check_output_shape(record: NodeRecord, declared: Sequence[spec.Dim]) -> None:
    """Check that the shape of the output, by the shapes of the inputs, is the ``declared`` one."""
    for first, second in record.cases:
        if record.operator in GRID_OPERATORS:
            output = GRID_OPERATORS[record.operator].grid_shape(record.constants)
        else:
            output = _sample_shape(first, second)
        if output is not None and not validation.may_match(output, declared):
            found = f"of shape {validation.format_shape(output)}"
            expected = f"{validation.format_shape(declared)}, as the graph states"
            raise GridSampleError(record.where, "the output", found, expected)


def _sample_shape(X: TypeAndShape, grid: TypeAndShape) -> list[spec.Dim] | None:
    if X.shape is None and grid.shape is None:
        return None
    batch, channels = (X.shape or (None, None))[:2]
    if grid.shape is not None:
        return [batch, channels, *grid.shape[1:-1]]
    return [batch, channels, *[None] * (len(X.shape or ()) - 2)]
