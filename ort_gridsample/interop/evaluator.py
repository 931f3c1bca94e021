"""The operators for onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from .. import spec
from ..dialects.registry import dialect_of, dialects
from ..dialects.spelling import Dialect, attribute_input
from ..dialects.table import ATTENTION_SIGNATURES, DOMAIN, TENSORRT_ATTENTION
from ..errors import GridSampleError, where_node
from ..functions import error_templates as templates
from ..functions import validation
from ..functions.attention import deformable_attention
from ..functions.operators import function_of
from ..graph.scope import domain_of
from ..reference.arrays import Array

if TYPE_CHECKING:
    from onnx.reference.op_run import OpRun


def reference_ops() -> list[type[OpRun]]:
    """Return operators for the argument ``new_ops`` of ``onnx.reference.ReferenceEvaluator``.

    They replace those of onnx, which are wrong for cubic with border padding and for integers.

    >>> import numpy as np
    >>> from onnx import parser
    >>> from onnx.reference import ReferenceEvaluator
    >>> model = parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["" : 20]>
    ...     g (float[1,1,1,2] X, float[1,1,1,2] grid) => (float[1,1,1,1] Y)
    ...     { Y = GridSample (X, grid) }
    ... ''')
    >>> evaluator = ReferenceEvaluator(model, new_ops=reference_ops())
    >>> X = np.array([[[[1., 3.]]]], np.float32)
    >>> evaluator.run(None, {"X": X, "grid": np.zeros((1, 1, 1, 2), np.float32)})[0].item()
    2.0

    They read the nodes of every opset and dialect. They compute the same as
    :func:`ort_gridsample.grid_sample` and :func:`ort_gridsample.affine_grid`, also for complex X,
    in models that were patched to any target and in models that were not. The plugin that the
    target ``"tensorrt-plugins"`` writes computes the same as
    :func:`ort_gridsample.deformable_attention`. A dialect that may have any domain is registered in
    the ONNX domain and in the domain that a patch writes.

    The evaluator does not pass ``new_ops`` to model-local functions, and would use its own
    operators in them. Inline functions first, with ``onnx.inliner.inline_local_functions``. Before
    onnx 1.19 the evaluator has no arrays of bfloat16, and its own representation is refused.

    Returns:
        Classes for the argument ``new_ops``. Their ``run`` raises GridSampleError if a node's
        attributes or inputs are not what its opset or dialect allows.
    """
    from onnx.reference.op_run import OpRun

    keys = [(domain, operator) for domain in ("", DOMAIN) for operator in spec.OPERATORS]
    for dialect in (*dialects(), TENSORRT_ATTENTION):
        domains = dialect.domains or ("", dialect.written_domain)
        keys += [(domain_of(domain), dialect.op_type) for domain in domains]

    def op_class(domain: str, op_type: str) -> type[OpRun]:
        # With a schema the evaluator would add the newest opset's defaults to nodes of older ones.
        members = {"op_domain": domain, "op_schema": None, "_run": _run}
        return type(op_type, (OpRun,), members)

    return [op_class(domain, op_type) for domain, op_type in dict.fromkeys(keys)]


def _run(self: OpRun, *inputs: Array | None, **attributes: Any) -> tuple[Array, ...]:
    """Compute the outputs of a node. ``attributes`` has the values of attribute references."""
    node = _resolve_attributes(self.onnx_node, attributes)
    name = attributes.get("node") or node.name or f"({', '.join(node.output)})"
    where = where_node(node.op_type, name)
    dialect = dialect_of(node, self.run_params["opsets"])
    if dialect is None:
        operator = repr(attributes.get("operator"))
        expected = "grid_sampler or affine_grid_generator"
        raise GridSampleError(where, "operator", operator, expected)
    if dialect is TENSORRT_ATTENTION:
        return (_run_attention(where, inputs),)

    standard = dialect.read(where, node, lambda index: inputs[index], "")
    standard["align_corners"] = bool(standard["align_corners"])
    arguments = _read_inputs(where, node, dialect, inputs)
    if dialect.has_planar_grids:
        arguments["grid"] = _standard_grid(where, dialect, **arguments)
    result = function_of(dialect.operator)(**arguments, **standard, where=where)
    if dialect.domain != DOMAIN:
        return (result,)
    # The second output of a Python op: the positions that its guard gathers.
    return result, np.arange(len(result), dtype=np.int64)[:, None]


def _run_attention(where: str, inputs: Sequence[Array | None]) -> Array:
    """Return the output (B, Q, H, D) of TensorRT's plugin for deformable attention.

    Args:
        where: the node, for error messages.
    """
    names = ATTENTION_SIGNATURES[TENSORRT_ATTENTION.op_type].inputs
    arrays = []
    for index, name in enumerate(names):
        value = inputs[index] if index < len(inputs) else None
        if value is None:
            raise GridSampleError(where, name, "missing", "an input")
        arrays.append(value)
    value, lengths, starts, locations, weights = arrays
    Y = deformable_attention(value, lengths, locations, weights, where=where)
    areas = lengths.prod(axis=1, dtype=np.int64)
    if not np.array_equal(starts, np.cumsum(areas) - areas):
        raise templates.LEVEL_STARTS_MISMATCH.error(where)
    return Y.reshape(locations.shape[:3] + value.shape[3:])


def _resolve_attributes(node: onnx.NodeProto, values: Mapping[str, Any]) -> onnx.NodeProto:
    """Return a copy of ``node`` whose attribute references are replaced by values.

    Synonyms of modes, which the Python ops accept, are replaced by modes.
    """
    resolved = onnx.NodeProto()
    resolved.CopyFrom(node)
    for attribute in resolved.attribute:
        if attribute.ref_attr_name:
            attribute.CopyFrom(helper.make_attribute(attribute.name, values[attribute.name]))
        if attribute.name == "mode" and node.domain == DOMAIN:
            attribute.s = spec.mode_of(attribute.s.decode()).encode()
    return resolved


def _read_inputs(
    where: str,
    node: onnx.NodeProto,
    dialect: Dialect,
    inputs: Sequence[Array | None],
) -> dict[str, Array]:
    """Return the operator's inputs by name; the size of an AffineGrid may be an attribute."""
    arguments = {}
    names = spec.newest(dialect.operator).types
    for i, name in enumerate(names):
        value = attribute_input(node, dialect, name)
        if value is None and i < len(inputs):
            value = inputs[i]
        if value is None:
            raise GridSampleError(where, name, "missing", "an input")
        arguments[name] = value
    return arguments


def _standard_grid(where: str, dialect: Dialect, X: Array, grid: Array) -> Array:
    """Convert the grid of a sampler of planar grids to a standard grid.

    Args:
        where: the node, for error messages.
        dialect: the dialect of the node, which has ``r`` spatial axes.
        X: (N, C, D1, …, Dr).
        grid: (N, r, D1_out, …, Dr_out), floating point. Coordinates from ``-edge_coordinate`` to
            ``edge_coordinate``.

    Returns:
        (N, D1_out, …, Dr_out, r), float32 or float64. Coordinates from -1 to 1.

    Raises:
        GridSampleError: the type of the grid is unknown, or a shape is wrong.
    """
    (r,) = dialect.axes or (2,)
    grid_type = validation.check_type(where, "grid", grid.dtype, spec.FLOATS)
    if X.ndim != r + 2:
        found = f"of shape {validation.format_shape(X.shape)}"
        raise GridSampleError(where, "X", found, f"{r + 2} axes")
    if grid.ndim != r + 2 or grid.shape[:2] != (len(X), r):
        lengths = ", ".join(f"D{axis + 1}_out" for axis in range(r))
        found = f"of shape {validation.format_shape(grid.shape)}"
        raise GridSampleError(where, "grid", found, f"shape ({len(X)}, {r}, {lengths})")
    # A quotient in half precision would move the coordinates.
    quotient_type = "float64" if grid_type == "float64" else "float32"
    coordinates: Array = np.moveaxis(grid.astype(quotient_type), 1, -1)
    return coordinates / dialect.edge_coordinate
