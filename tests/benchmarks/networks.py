"""Small whole models with GridSample nodes and random weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
from onnx import helper

from ort_gridsample.graph.element_types import elem_type
from ort_gridsample.graph.expressions import Expressions, Tensor

OPSET = 20
Shape = Sequence[int]


class _Graph(Expressions):
    """A graph to which each call adds a node. Its inputs have one type."""

    def __init__(self, name: str, type: str = "float32", **inputs: Shape) -> None:
        super().__init__(name, OPSET)
        self.type = type
        self.shapes = inputs
        self.inputs = [self.input(name, type) for name in inputs]
        self.generator = np.random.default_rng(0)

    def weight(self, *shape: int, fan_in: int) -> Tensor:
        return self.constant(self.generator.standard_normal(shape) / np.sqrt(fan_in), "float32")

    def conv(self, X: Tensor, inputs: int, outputs: int, rank: int, stride: int = 1) -> Tensor:
        """Add a convolution of 3 pixels in each of ``rank`` axes."""
        W = self.weight(outputs, inputs, *[3] * rank, fan_in=inputs * 3**rank)
        return self.op(
            "Conv", X, W, kernel_shape=[3] * rank, pads=[1] * 2 * rank, strides=[stride] * rank
        )

    def parts(self, X: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
        return self._write("Split", [X, self.constant(sizes)], X.type, len(sizes), axis=axis)

    def linear(self, X: Tensor, inputs: int, outputs: int) -> Tensor:
        return self.op("MatMul", X, self.weight(inputs, outputs, fan_in=inputs))

    def total(self, X: Tensor, axis: int) -> Tensor:
        """Add a sum over an axis, which is removed."""
        return self.op("ReduceSum", X, self.constant([axis]), keepdims=0)

    def grid_sample(self, X: Tensor, grid: Tensor) -> Tensor:
        return self.op("GridSample", X, grid, mode="linear", padding_mode="zeros", align_corners=0)

    def model(self, *outputs: tuple[Tensor, Shape]) -> onnx.ModelProto:
        """Return the model of these outputs, with their shapes."""
        value_info = partial(helper.make_tensor_value_info, elem_type=elem_type(self.type))
        inputs = [value_info(name, shape=shape) for name, shape in self.shapes.items()]
        values = [value_info(value.name, shape=shape) for value, shape in outputs]
        graph = helper.make_graph([*self._nodes.values()], self.prefix, inputs, values)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9
        )


def convolutions() -> onnx.ModelProto:
    """Conv → GridSample → conv at 1×64×128×128."""
    c = 64
    h = 128
    w = 128
    g = _Graph("convolutions", X=(1, c, h, w), grid=(1, h, w, 2))
    X, grid = g.inputs
    return g.model((g.conv(g.grid_sample(g.conv(X, c, c, 2), grid), c, c, 2), (1, c, h, w)))


def spatial_transformer() -> onnx.ModelProto:
    """Transform a picture of 1080 rows by theta."""
    shape = (1, 3, 1080, 1920)
    g = _Graph("spatial transformer", X=shape, theta=(1, 2, 3))
    X, theta = g.inputs
    return g.model(
        (g.grid_sample(X, g.op("AffineGrid", theta, g.constant(shape), align_corners=0)), shape)
    )


def optical_flow() -> onnx.ModelProto:
    """Move a picture of 1080 rows by a flow in pixels. Each coordinate is normalized separately."""
    c = 3
    h = 1080
    w = 1920
    g = _Graph("optical flow", X=(1, c, h, w), flow=(1, 2, h, w))
    X, flow = g.inputs
    y, x = np.indices((h, w), np.float32)
    places = flow + np.stack([x, y])[None]
    units = [
        g.gather(places, axis, axis=1) * 2 / (length - 1) - 1 for axis, length in enumerate((w, h))
    ]
    grid = g.concatenate([g.op("Unsqueeze", unit, g.constant([3])) for unit in units], axis=3)
    return g.model((g.grid_sample(X, grid), (1, c, h, w)))


def deformable_attention() -> onnx.ModelProto:
    """Run six layers, each with a GridSample of 4 points for each query between MatMuls.

    There are 8 heads of 32 channels, at 100×100 pixels.
    """
    heads = 8
    c = 32
    h = 100
    w = 100
    queries = 300
    points = 4
    width = heads * c
    g = _Graph("deformable attention", memory=(1, h * w, width), queries=(1, queries, width))
    memory, query = g.inputs
    # Each query samples around a point of its own.
    centres = g.constant(g.generator.uniform(-1, 1, (1, queries, 1, 2)), "float32")
    for _ in range(6):
        value = g.reshape(g.transpose(g.linear(memory, width, width), (0, 2, 1)), (heads, c, h, w))
        places = g.reshape(g.linear(query, width, heads * points * 2), (queries, heads, points, 2))
        offsets = g.op("Tanh", g.transpose(places, (1, 0, 2, 3))) * 0.05
        samples = g.grid_sample(value, centres + offsets)  # (heads, c, queries, points)
        weights = g.reshape(g.linear(query, width, heads * points), (queries, heads, points))
        weights = g.op("Softmax", g.transpose(weights, (1, 0, 2)), axis=-1)
        attended = g.total(samples * g.reshape(weights, (heads, 1, queries, points)), 3)
        attended = g.reshape(g.transpose(attended, (2, 0, 1)), (1, queries, width))
        query = query + g.linear(attended, width, width)
    return g.model((query, (1, queries, width)))


@dataclass(frozen=True)
class Attention:
    """The lengths of deformable attention.

    Attributes:
        queries: the number of queries.
        levels: the height and width of each level.
        heads: the number of heads.
        channels: the number of channels of each head.
        points: the number of points on each level, for each query and head.
        batches: the number of batches.
    """

    queries: int
    levels: tuple[tuple[int, int], ...]
    heads: int = 8
    channels: int = 32
    points: tuple[int, ...] = (4, 4, 4, 4)
    batches: int = 1

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of values, locations and weights."""
        pixels = sum(h * w for h, w in self.levels)
        weights = (self.batches, self.queries, self.heads, sum(self.points))
        return {
            "value": (self.batches, pixels, self.heads, self.channels),
            "locations": (*weights, 2),
            "weights": weights,
        }


def multi_scale_attention(a: Attention, type: str = "float32") -> onnx.ModelProto:
    """Return an attention of values, locations and weights, as transformers exports it.

    If levels have different numbers of points, it has the form of RT-DETR v2.
    """
    g = _Graph("multi-scale deformable attention", type, **a.shapes)
    value, locations, weights = g.inputs
    areas = [h * w for h, w in a.levels]
    total = sum(a.points)
    width = a.heads * a.channels
    stacks = len({*a.points}) == 1 and len(a.points) > 1
    n = a.batches * a.heads
    points = a.points[0]
    if stacks:
        locations = g.reshape(locations, (a.batches, a.queries, a.heads, len(a.points), points, 2))
    grids = locations * 2 - 1
    if stacks:
        images = g.parts(value, areas, axis=1)
        rows = [
            g.reshape(image, (a.batches, area, width))
            for image, area in zip(images, areas, strict=True)
        ]
        turned = [g.transpose(row, (0, 2, 1)) for row in rows]
        levels = [
            g.transpose(g.gather(grids, i, axis=3), (0, 2, 1, 3, 4)) for i in range(len(areas))
        ]
        flat = [g.reshape(level, (n, a.queries, points, 2)) for level in levels]
    else:
        value = g.reshape(g.transpose(value, (0, 2, 3, 1)), (n, a.channels, sum(areas)))
        turned = g.parts(value, areas, axis=2)
        grid = g.reshape(g.transpose(grids, (0, 2, 1, 3, 4)), (n, a.queries, total, 2))
        flat = g.parts(grid, a.points, axis=2)
    images = [
        g.reshape(image, (n, a.channels, *lengths))
        for image, lengths in zip(turned, a.levels, strict=True)
    ]
    samples = [g.grid_sample(image, grid) for image, grid in zip(images, flat, strict=True)]
    if stacks:
        samples = [g.op("Unsqueeze", sample, g.constant([3])) for sample in samples]
    sampled = g.op("Concat", *samples, axis=3)
    sampled = g.reshape(sampled, (n, a.channels, a.queries, total)) if stacks else sampled
    scores = g.reshape(g.transpose(weights, (0, 2, 1, 3)), (n, 1, a.queries, total))
    attended = g.reshape(g.total(sampled * scores, -1), (a.batches, width, a.queries))
    return g.model((g.transpose(attended, (0, 2, 1)), (a.batches, a.queries, width)))


def registration() -> onnx.ModelProto:
    """Register two volumes of 48×64×64: a U-Net, a velocity that is squared three times, a warp."""
    volume = (48, 64, 64)
    g = _Graph("registration", moving=(1, 1, *volume), fixed=(1, 1, *volume))
    moving, _ = g.inputs

    def block(X: Tensor, inputs: int, outputs: int, stride: int = 1) -> Tensor:
        return g.op("LeakyRelu", g.conv(X, inputs, outputs, 3, stride), alpha=0.2)

    def up(X: Tensor) -> Tensor:
        scales = g.constant([1, 1, 2, 2, 2], "float32")
        return g.op(
            "Resize",
            X,
            g.input("", "float32"),
            scales,
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
        )

    full = block(g.concatenate(g.inputs, axis=1), 2, 8)
    half = block(full, 8, 16, 2)
    quarter = block(half, 16, 32, 2)
    half = block(g.concatenate([up(quarter), half], axis=1), 32 + 16, 16)
    full = block(g.concatenate([up(half), full], axis=1), 16 + 8, 8)
    flow = g.conv(full, 8, 3, 3) * 0.02
    axes = [(2 * np.arange(n, dtype=np.float32) + 1) / n - 1 for n in volume]
    identity = g.constant(
        np.stack(np.meshgrid(*axes, indexing="ij")[::-1], axis=-1)[None], "float32"
    )

    def moved(X: Tensor) -> Tensor:
        return g.grid_sample(X, identity + g.transpose(flow, (0, 2, 3, 4, 1)))

    for _ in range(3):
        flow = flow + moved(flow)
    return g.model((moved(moving), (1, 1, *volume)), (flow, (1, 3, *volume)))
