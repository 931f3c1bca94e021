"""How precise the coordinates of 5-D GridSamples are that a patch wrote as 4-D ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx

from ..detection.lowered_names import lowered_from
from ..errors import GridSampleError
from ..graph.files import read_model
from ..rewriting.targets import FUNCTIONS_DOMAIN
from ..rewriting.targets.two_axes import COORDINATE_ERROR


def coordinate_error_text(path: str) -> str:
    """Return a line on the error of coordinates in the model of a file.

    The line is empty if no 5-D node is written as 4-D ones.
    """
    try:
        model = read_model(path)
    except GridSampleError:  # onnxruntime runs it: its format is ORT's
        return ""
    lowered = _lowered_grid_samples(model)
    shapes = _inferred_shapes(model) if lowered else {}
    images = [
        grid_sample.image
        for grid_sample in lowered
        if grid_sample.X not in shapes or len(shapes[grid_sample.X]) == 5
    ]
    if not images:
        return ""
    max_length = _max_spatial_length(images, shapes)
    error = "2**-22 of what they span"
    if max_length is not None:
        error = f"{COORDINATE_ERROR * max_length:.1g} pixels"
    rewritten = "5-D nodes are written as 4-D ones"
    return f"{path}: {rewritten}, whose coordinates are off by up to {error}: see --tolerance"


class _LoweredGridSample(NamedTuple):
    """A 4-D GridSample that a patch wrote.

    Attributes:
        image: the name of the value that it samples.
        X: the name of the value that the original node sampled.
    """

    image: str
    X: str


def _lowered_grid_samples(model: onnx.ModelProto) -> list[_LoweredGridSample]:
    """Return the lowered GridSamples of the main graph, and of the functions that it calls."""
    grid_samples = _lowered_grid_samples_among(model.graph.node)
    for function in model.functions:
        if function.domain != FUNCTIONS_DOMAIN:
            continue
        inner_grid_samples = _lowered_grid_samples_among(function.node)
        for call in model.graph.node:
            if (call.domain, call.op_type) != (function.domain, function.name):
                continue
            argument_of = dict(zip(function.input, call.input, strict=False))
            for grid_sample in inner_grid_samples:
                X = argument_of.get(grid_sample.X, "")
                grid_samples.append(_LoweredGridSample(grid_sample.image, X))
    return grid_samples


def _lowered_grid_samples_among(nodes: Sequence[onnx.NodeProto]) -> list[_LoweredGridSample]:
    """Return the lowered GridSamples of one list of nodes."""
    makers = {name: node for node in nodes for name in node.output}
    grid_samples = []
    for node in nodes:
        if node.op_type != "GridSample" or lowered_from(node) is None:
            continue
        # Each lowered node between X and the image reads the image as its first input.
        name = node.input[0]
        while name in makers and lowered_from(makers[name]) == lowered_from(node):
            name = makers[name].input[0]
        grid_samples.append(_LoweredGridSample(node.input[0], name))
    return grid_samples


def _inferred_shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    """Return the shapes of the values of the main graph, with 0 for unknown lengths, by name."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            shapes[value.name] = [dim.dim_value for dim in dims]
    return shapes


def _max_spatial_length(
    images: Sequence[str],
    shapes: Mapping[str, Sequence[int]],
) -> int | None:
    """Return the largest length of a spatial axis of the values ``images``; None if unknown."""
    max_length = 0
    for name in images:
        lengths = shapes.get(name, [])[2:]
        if not lengths or 0 in lengths:
            return None
        max_length = max(max_length, *lengths)
    return max_length
