"""Small whole models with GridSample nodes in them, weights at random."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ort_gridsample.core.arrays import Array

OPSET = 20


class _Graph:
    """A graph that grows by one node a call, each named by its operator and its number."""

    def __init__(self, name: str, inputs: Mapping[str, Sequence[int]]) -> None:
        self.name = name
        self.inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()]
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.generator = np.random.default_rng(0)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        output = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    def constant(self, array: Array | Sequence[int]) -> str:
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, fan_in: int) -> str:
        return self.constant((self.generator.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32))

    def conv(self, X: str, inputs: int, outputs: int, rank: int, stride: int = 1) -> str:
        """A convolution of 3 pixels in each of ``rank`` axes."""
        W = self.weight(outputs, inputs, *[3] * rank, fan_in=inputs * 3**rank)
        return self.node("Conv", X, W, kernel_shape=[3] * rank, pads=[1] * 2 * rank, strides=[stride] * rank)

    def reshape(self, X: str, *shape: int) -> str:
        return self.node("Reshape", X, self.constant(np.array(shape, np.int64)))

    def split(self, X: str, sizes: Sequence[int], axis: int) -> list[str]:
        outputs = [f"Split_{len(self.nodes)}_{i}" for i in range(len(sizes))]
        name, rows = f"Split_{len(self.nodes)}", self.constant(np.array(sizes, np.int64))
        self.nodes.append(helper.make_node("Split", [X, rows], outputs, name, axis=axis))
        return outputs

    def linear(self, X: str, inputs: int, outputs: int) -> str:
        return self.node("MatMul", X, self.weight(inputs, outputs, fan_in=inputs))

    def grid_sample(self, X: str, grid: str) -> str:
        return self.node("GridSample", X, grid, mode="linear", padding_mode="zeros", align_corners=0)

    def model(self, **outputs: Sequence[int]) -> onnx.ModelProto:
        """The model, whose outputs are values so far, with their shapes."""
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, values, self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def convolutions() -> onnx.ModelProto:
    """Conv → GridSample → conv at 1×64×128×128."""
    c, h, w = 64, 128, 128
    g = _Graph("convolutions", {"X": (1, c, h, w), "grid": (1, h, w, 2)})
    return g.model(**{g.conv(g.grid_sample(g.conv("X", c, c, 2), "grid"), c, c, 2): (1, c, h, w)})


def spatial_transformer() -> onnx.ModelProto:
    """A picture of 1080 rows as theta says."""
    shape = (1, 3, 1080, 1920)
    graph = _Graph("spatial transformer", {"X": shape, "theta": (1, 2, 3)})
    grid = graph.node("AffineGrid", "theta", graph.constant(np.array(shape, np.int64)), align_corners=0)
    return graph.model(**{graph.grid_sample("X", grid): shape})


def optical_flow() -> onnx.ModelProto:
    """A picture of 1080 rows, moved by a flow in pixels: each coordinate is normalized by itself, then both stacked."""
    c, h, w = 3, 1080, 1920
    graph = _Graph("optical flow", {"X": (1, c, h, w), "flow": (1, 2, h, w)})
    y, x = np.indices((h, w), np.float32)
    places, coordinates = graph.node("Add", "flow", graph.constant(np.stack([x, y])[None])), []
    for axis, length in enumerate((w, h)):
        place = graph.node("Gather", places, graph.constant(np.array(axis)), axis=1)
        for operator, number in (("Mul", 2), ("Div", length - 1), ("Sub", 1)):
            place = graph.node(operator, place, graph.constant(np.float32(number)))
        coordinates.append(graph.node("Unsqueeze", place, graph.constant(np.array([3]))))
    return graph.model(**{graph.grid_sample("X", graph.node("Concat", *coordinates, axis=3)): (1, c, h, w)})


def deformable_attention() -> onnx.ModelProto:
    """Six layers, each with a GridSample of 4 points a query between MatMuls: 8 heads of 32 channels at 100×100."""
    heads, c, h, w, queries, points = 8, 32, 100, 100, 300, 4
    width = heads * c
    g = _Graph("deformable attention", {"memory": (1, h * w, width), "queries": (1, queries, width)})
    # Every query looks around a place of its own.
    centres = g.constant(g.generator.uniform(-1, 1, (1, queries, 1, 2)).astype(np.float32))
    reach, query = g.constant(np.float32(0.05)), "queries"
    for _ in range(6):
        value = g.node("Transpose", g.linear("memory", width, width), perm=[0, 2, 1])
        value = g.reshape(value, heads, c, h, w)
        places = g.reshape(g.linear(query, width, heads * points * 2), queries, heads, points, 2)
        offsets = g.node("Mul", g.node("Tanh", g.node("Transpose", places, perm=[1, 0, 2, 3])), reach)
        samples = g.grid_sample(value, g.node("Add", centres, offsets))  # (heads, c, queries, points)
        weights = g.reshape(g.linear(query, width, heads * points), queries, heads, points)
        weights = g.node("Softmax", g.node("Transpose", weights, perm=[1, 0, 2]), axis=-1)
        weights = g.reshape(weights, heads, 1, queries, points)
        attended = g.node("ReduceSum", g.node("Mul", samples, weights), g.constant(np.array([3])), keepdims=0)
        attended = g.reshape(g.node("Transpose", attended, perm=[2, 0, 1]), 1, queries, width)
        query = g.node("Add", query, g.linear(attended, width, width))
    return g.model(**{query: (1, queries, width)})


@dataclass(frozen=True)
class Attention:
    """The lengths of deformable attention: ``points`` on each of the ``levels``, for each query and head."""

    queries: int
    levels: tuple[tuple[int, int], ...]
    heads: int = 8
    channels: int = 32
    points: tuple[int, ...] = (4, 4, 4, 4)
    batches: int = 1

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of values, locations and weights."""
        pixels, each = sum(h * w for h, w in self.levels), (self.batches, self.queries, self.heads, sum(self.points))
        return {"value": (self.batches, pixels, self.heads, self.channels), "locations": (*each, 2), "weights": each}


def multi_scale_attention(a: Attention, type: str = "float32") -> onnx.ModelProto:
    """From values, locations and weights on, as transformers' is exported; or RT-DETR v2's, of other points each."""
    g = _Graph("multi-scale deformable attention", a.shapes)
    for fed in g.inputs:
        fed.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(type))
    areas, total, width = [h * w for h, w in a.levels], sum(a.points), a.heads * a.channels
    stacks = len({*a.points}) == 1 and len(a.points) > 1
    n, of_level = a.batches * a.heads, (a.batches, a.queries, a.heads, len(a.points), a.points[0])
    locations = g.reshape("locations", *of_level, 2) if stacks else "locations"
    two, one = (g.constant(np.array(number, type)) for number in (2, 1))
    grids = g.node("Sub", g.node("Mul", locations, two), one)
    if stacks:
        images = g.split("value", areas, axis=1)
        rows = [g.reshape(image, a.batches, h * w, width) for image, (h, w) in zip(images, a.levels, strict=True)]
        turned = [g.node("Transpose", row, perm=[0, 2, 1]) for row in rows]
        levels = [g.node("Gather", grids, g.constant(np.array(i)), axis=3) for i in range(len(areas))]
        levels = [g.node("Transpose", level, perm=[0, 2, 1, 3, 4]) for level in levels]
        flat = [g.reshape(level, n, a.queries, a.points[0], 2) for level in levels]
    else:
        value = g.reshape(g.node("Transpose", "value", perm=[0, 2, 3, 1]), n, a.channels, sum(areas))
        turned = g.split(value, areas, axis=2)
        grid = g.reshape(g.node("Transpose", grids, perm=[0, 2, 1, 3, 4]), n, a.queries, total, 2)
        flat = g.split(grid, a.points, axis=2)
    images = [g.reshape(image, n, a.channels, *lengths) for image, lengths in zip(turned, a.levels, strict=True)]
    samples = [g.grid_sample(image, grid) for image, grid in zip(images, flat, strict=True)]
    if stacks:
        axis = g.constant(np.array([3]))
        samples = [g.node("Unsqueeze", sample, axis) for sample in samples]
    sampled = g.node("Concat", *samples, axis=3)
    sampled = g.reshape(sampled, n, a.channels, a.queries, total) if stacks else sampled
    by = g.reshape(g.node("Transpose", "weights", perm=[0, 2, 1, 3]), n, 1, a.queries, total)
    attended = g.node("ReduceSum", g.node("Mul", sampled, by), g.constant(np.array([-1])), keepdims=0)
    attended = g.reshape(attended, a.batches, width, a.queries)
    model = g.model(**{g.node("Transpose", attended, perm=[0, 2, 1]): (a.batches, a.queries, width)})
    model.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(type))
    return model


def registration() -> onnx.ModelProto:
    """A U-Net that moves one 48×64×64 volume onto another: a velocity, squared three times, and the warp."""
    volume = (48, 64, 64)
    g = _Graph("registration", {"moving": (1, 1, *volume), "fixed": (1, 1, *volume)})
    X = g.node("Concat", "moving", "fixed", axis=1)

    def block(X: str, inputs: int, outputs: int, stride: int = 1) -> str:
        return g.node("LeakyRelu", g.conv(X, inputs, outputs, 3, stride), alpha=0.2)

    def up(X: str) -> str:
        scales = g.constant(np.array([1, 1, 2, 2, 2], np.float32))
        return g.node("Resize", X, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric")

    full = block(X, 2, 8)
    half = block(full, 8, 16, 2)
    quarter = block(half, 16, 32, 2)
    half = block(g.node("Concat", up(quarter), half, axis=1), 32 + 16, 16)
    full = block(g.node("Concat", up(half), full, axis=1), 16 + 8, 8)
    flow = g.node("Mul", g.conv(full, 8, 3, 3), g.constant(np.float32(0.02)))
    axes = [(2 * np.arange(n, dtype=np.float32) + 1) / n - 1 for n in volume]
    identity = g.constant(np.stack(np.meshgrid(*axes, indexing="ij")[::-1], axis=-1)[None].astype(np.float32))

    def moved(X: str) -> str:
        return g.grid_sample(X, g.node("Add", identity, g.node("Transpose", flow, perm=[0, 2, 3, 4, 1])))

    for _ in range(3):
        flow = g.node("Add", flow, moved(flow))
    return g.model(**{moved("moving"): (1, 1, *volume), flow: (1, 3, *volume)})
