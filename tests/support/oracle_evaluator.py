"""The oracle of whole models: onnx's evaluator, with the oracle's sampling operators.

The basic operators are onnx's own, in NumPy. The operators that sample, of ONNX and of other
packages, are computed by support.oracle. Nothing is taken from this package.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
from onnx import inliner
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from support import oracle

Array = np.ndarray
Arrays = dict[str, Array]

TENSORRT = "MultiscaleDeformableAttnPlugin_TRT"
_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")
#: The former names of modes.
_NAMES = {"bilinear": "linear", "bicubic": "cubic"}


def _sample(X: Array, grid: Array, mode: str, padding_mode: str, align_corners: object) -> Array:
    mode = _NAMES.get(mode, mode)
    Y = oracle.grid_sample(X, grid, mode, padding_mode, bool(align_corners)).values
    with np.errstate(over="ignore", invalid="ignore"):
        return Y.astype(X.dtype)


def _standard(node: onnx.NodeProto, attributes: dict, X: Array, grid: Array) -> Array:
    mode = attributes.get("mode") or "linear"
    padding_mode = attributes.get("padding_mode") or "zeros"
    return _sample(X, grid, mode, padding_mode, attributes.get("align_corners"))


def _coded(node: onnx.NodeProto, attributes: dict, X: Array, grid: Array) -> Array:
    """Sample as mmcv's grid_sampler, which has numbers for modes."""
    mode = _MODES[attributes["interpolation_mode"]]
    padding_mode = _PADDINGS[attributes["padding_mode"]]
    return _sample(X, grid, mode, padding_mode, attributes["align_corners"])


def _planar(node: onnx.NodeProto, attributes: dict, X: Array, grid: Array) -> Array:
    """Sample as BEVFormer's samplers: the grid is planes of coordinates from -10 to 10."""
    last = np.moveaxis(grid.astype(np.float64), 1, -1) / 10
    return _coded(node, attributes, X, last)


def _affine(node: onnx.NodeProto, attributes: dict, theta: Array, size: Array) -> Array:
    """Compute the grid in float64 and round it once."""
    grid = oracle.affine_grid(theta, size.tolist(), bool(attributes.get("align_corners")))
    return grid.astype(theta.dtype)


def merged(locations: Array, weights: Array, points: Array) -> tuple[Array, Array]:
    """Return locations and weights of every query, with the points of all levels in one axis."""
    total = int(points.sum())
    n, queries, heads = locations.shape[:3]
    locations = locations.reshape(n, queries, heads, total, locations.shape[-1])
    weights = weights.reshape(n, weights.shape[1], heads, total)
    return locations, np.broadcast_to(weights, locations.shape[:-1])


def _own(node: onnx.NodeProto, attributes: dict, *inputs: Array) -> Array:
    value, levels, locations, weights = inputs
    at, by = merged(locations, weights, levels[:, 0])
    Y = oracle.deformable_attention(
        value, levels, at, by, bool(attributes.get("align_corners"))
    ).astype(value.dtype)
    return in_layout(Y, attributes.get("output_layout", "by_query"))


def in_layout(Y: Array, layout: str) -> Array:
    """Return an output (B, Q, H, D) in the layout of this name."""
    n, queries, heads, channels = Y.shape
    if layout == "channels_first":
        return Y.transpose(0, 2, 3, 1).reshape(n * heads, channels, queries)
    return Y if layout == "by_head" else Y.reshape(n, queries, heads * channels)


def _located(node: onnx.NodeProto, attributes: dict, *inputs: Array) -> Array:
    """Compute the attention of a node that has locations, as mmcv's and TensorRT's."""
    value, lengths, starts, locations, weights = inputs
    levels = np.insert(lengths.astype(np.int64), 0, locations.shape[4], axis=1)
    at, by = merged(locations, weights, levels[:, 0])
    Y = oracle.deformable_attention(value, levels, at, by, starts=starts.tolist())
    Y = Y.astype(value.dtype)
    if node.op_type == TENSORRT:
        return Y
    return Y.reshape(*Y.shape[:2], math.prod(Y.shape[2:]))


def _offset(node: onnx.NodeProto, attributes: dict, *inputs: Array) -> Array:
    """Compute BEVFormer's attention: offsets in pixels from reference points, and logits.

    Point p is relative to reference point p modulo their number. Logits that add up to 1 are the
    weights already.
    """
    value, lengths, references, offsets, logits = inputs
    n, queries, heads, last = logits.shape
    points = last // len(lengths)
    n_references = references.shape[2] * references.shape[3] // 2
    references = references.astype(np.float64).reshape(n, queries, 1, 1, n_references, 2)
    repeats = -(-points // references.shape[4])
    references = np.tile(references, (1, 1, 1, 1, repeats, 1))[:, :, :, :, :points]
    offsets = offsets.astype(np.float64).reshape(n, queries, heads, len(lengths), points, 2)
    locations = references + offsets / lengths[:, ::-1].reshape(1, 1, 1, -1, 1, 2)
    weights = logits.astype(np.float64)
    if last and not np.allclose(weights.sum(-1), 1):
        weights = np.exp(weights)
        weights /= weights.sum(-1, keepdims=True)
    levels = np.insert(lengths.astype(np.int64), 0, points, axis=1)
    at, by = merged(locations, weights, levels[:, 0])
    return oracle.deformable_attention(value, levels, at, by).astype(value.dtype)


Compute = Callable[..., Array]
#: (domain, operator) -> its definition.
_DEFINITIONS: dict[tuple[str, str], Compute] = {
    ("", "GridSample"): _standard,
    ("com.microsoft", "GridSample"): _standard,
    ("mmcv", "grid_sampler"): _coded,
    ("", "AffineGrid"): _affine,
    ("ort_gridsample", "DeformableAttention"): _own,
    ("ort_gridsample.compiled", "DeformableAttention"): _own,
    ("", TENSORRT): _located,
    ("trt.plugins", TENSORRT): _located,
    ("mmcv", "MMCVMultiScaleDeformableAttention"): _located,
    ("mmdeploy", "MMCVMultiScaleDeformableAttention"): _located,
    ("com.microsoft", "MultiScaleDeformableAttention"): _located,
    ("", "MultiScaleDeformableAttnTRT"): _offset,
    ("bev", "MultiScaleDeformableAttnTRT2"): _offset,
    **{("", f"GridSampler{axes}DTRT{suffix}"): _planar for axes in (2, 3) for suffix in ("", "2")},
}


@cache
def _ops() -> list[type[OpRun]]:
    def op_class(domain: str, op_type: str, compute: Compute) -> type[OpRun]:
        def run(self: OpRun, *inputs: Array, **attributes: object) -> tuple[Array]:
            written = {attribute.name for attribute in self.onnx_node.attribute}
            known = {name: value for name, value in attributes.items() if name in written}
            return (compute(self.onnx_node, known, *inputs),)

        members = {"op_domain": domain, "op_schema": None, "_run": run}
        return type(op_type, (OpRun,), members)

    return [op_class(*key, compute) for key, compute in _DEFINITIONS.items()]


def expected_outputs(model: onnx.ModelProto, feeds: Arrays) -> list[Array]:
    """Return the outputs of a model. Functions are inlined, as the evaluator has no ops in them."""
    if model.functions:
        model = inliner.inline_local_functions(model)
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model, new_ops=_ops()).run(None, feeds)
