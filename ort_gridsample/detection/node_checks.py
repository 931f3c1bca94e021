"""What is wrong with a node concerned, and why onnxruntime does not run it, as far as that is known without running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from .. import spec
from ..dialects.registry import attention_node
from ..dialects.table import ATTENTION
from ..errors import GridSampleError
from ..functions import validation
from ..graph.scope import domain_of
from ..inference.types import Probe, Value
from .attention_checks import check_inputs
from .records import NodeRecord, spatial_axes

#: Why a type cannot be run, where the reason is not that the specification has no such type.
_REFUSED = "as ONNX Runtime has no complex tensors: sample the real and the imaginary part each for itself"
_UNKNOWN = "types or ranks of its inputs are known only when it runs"


def fault_of(
    record: NodeRecord, node: onnx.NodeProto, declared: Sequence[validation.Dim] | None = None
) -> GridSampleError | None:
    """The first thing that is wrong with ``node``; the error of ``record`` is what is wrong with its attributes.

    ``declared`` is the shape of the output that the graph states, where the output must have it.
    """
    try:
        _check(record, node)
        if declared is not None:
            _check_output_shape(record, declared)
    except GridSampleError as error:
        return error
    return None


def reason_of(record: NodeRecord, opsets: Mapping[str, int], probe: Probe) -> str:
    """Why onnxruntime does not run the node by itself, or why that is not known; empty where it does.

    ``opsets`` are the versions of the domains that the node is written in.
    """
    if record.patched:
        return "it is a node of this package"
    if record.unrolled:
        return ""
    if record.error is not None:
        return str(record.error)
    if record.operator == ATTENTION:
        return "onnxruntime has no such operator"
    node = record.bare()
    for case in record.cases:
        types = {name: value.type for name, value in zip(record.values, case, strict=True) if value.type is not None}
        axes = spatial_axes(record.operator, case)
        if len(types) < len(case) or axes is None:
            return _UNKNOWN
        refusal = probe.refusal(node, opsets, record.operator, types, axes)
        if refusal:
            return refusal
    return ""


def _check(record: NodeRecord, node: onnx.NodeProto) -> None:
    here = record.where
    if record.patched:
        return
    if record.operator == ATTENTION:
        contract = attention_node(node)
        if contract is not None:
            if len(node.input) != len(contract.inputs) or not all(record.values.values()):
                expected = f"{len(contract.inputs)}: {', '.join(contract.inputs[:-1])} and {contract.inputs[-1]}"
                raise GridSampleError(here, "inputs", str(len(node.input)), expected)
            _check_outputs(here, node)
        if record.error is not None:
            raise record.error
        if contract is not None:
            check_inputs(record, contract)
        return
    first = min(spec.OPERATORS[record.operator])
    if domain_of(node.domain) == "" and record.dialect.name == "ai.onnx" and record.opset < first:
        raise GridSampleError(here, "opset", str(record.opset), f"at least {first}")
    for name, value in record.values.items():
        if not value and name not in record.constants:
            raise GridSampleError(here, name, "missing", "an input")
    most = max([1, *(s.position or 1 for s in record.dialect.attributes.values())]) + 1
    if len(node.input) > most:
        raise GridSampleError(here, "inputs", str(len(node.input)), f"at most {most}")
    _check_outputs(here, node)
    if record.error is not None:
        raise record.error
    allowed = spec.newest(record.operator).types
    for name, types in record.types.items():
        for each in types:
            if each not in allowed[name]:
                raise GridSampleError(here, name, f"of type {each}", f"one of {', '.join(allowed[name])}")
            if spec.TYPES[each].transport is None:
                raise GridSampleError(here, name, f"of type {each}", f"another type, {_REFUSED}")
    size = record.constants.get("size")
    for one, other in record.cases:
        if record.operator == "AffineGrid":
            validation.check_affine_grid_shapes(
                here, one.shape, size.tolist() if size is not None and size.ndim == 1 else None
            )
            if not (validation.may_match(other.shape, (4,)) or validation.may_match(other.shape, (5,))):
                raise GridSampleError(here, "size", f"of shape {other.shape}", "4 or 5 numbers")
        else:
            grid = other.shape
            if record.dialect.plane_scale:
                _check_planes(record, one, other)
                grid = None if grid is None else (grid[0], *grid[2:], grid[1])
            validation.check_grid_sample_shapes(here, one.shape, grid, record.padding_mode)
            if one.type is not None and record.mode in spec.MODES:
                validation.check_mode_and_padding(here, str(record.mode), spec.PADDING_MODES[0], one.type)


def _check_outputs(here: str, node: onnx.NodeProto) -> None:
    if len(node.output) != 1:
        raise GridSampleError(here, "outputs", str(len(node.output)), "1")
    if not node.output[0]:
        raise GridSampleError(here, "the output", "without a name", "one that has a name")


def _check_output_shape(record: NodeRecord, declared: Sequence[validation.Dim]) -> None:
    """Check that inputs of these shapes make an output of the ``declared`` shape."""
    for first, second in record.cases:
        if record.operator == "AffineGrid":
            size = record.constants.get("size")
            if size is None or size.ndim != 1:
                continue
            lengths = size.tolist()
            output: list[validation.Dim] = [lengths[0], *lengths[2:], len(lengths) - 2]
        else:
            batch, channels = (first.shape or (None, None))[:2]
            if second.shape is None and first.shape is None:
                continue
            positions = second.shape[1:-1] if second.shape is not None else [None] * (len(first.shape or ()) - 2)
            output = [batch, channels, *positions]
        if not validation.may_match(output, declared):
            expected = f"{validation.format_shape(declared)}, as the graph states"
            raise GridSampleError(record.where, "the output", f"of shape {validation.format_shape(output)}", expected)


def _check_planes(record: NodeRecord, X: Value, grid: Value) -> None:
    """Check the inputs of a sampler whose grid has its coordinates in axis 1."""
    (r,) = record.dialect.axes or (2,)
    if X.shape is not None and len(X.shape) != r + 2:
        raise GridSampleError(record.where, "X", f"of shape {validation.format_shape(X.shape)}", f"{r + 2} axes")
    batch = X.shape[0] if X.shape is not None else None
    if grid.shape is not None and not validation.may_match(grid.shape, (batch, r, *[None] * r)):
        lengths = ", ".join(f"D{axis + 1}_out" for axis in range(r))
        N = batch if isinstance(batch, int) else "N"
        raise GridSampleError(
            record.where, "grid", f"of shape {validation.format_shape(grid.shape)}", f"shape ({N}, {r}, {lengths})"
        )
