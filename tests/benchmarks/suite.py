"""The standard suite, as data."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from ort_gridsample import spec
from ort_gridsample.functions.affine import affine_grid
from ort_gridsample.reference.arrays import Array

from . import networks

OPSET = 20
SEED = 0
#: The identity-like grid: turned by ANGLE radians in the two innermost axes, scaled by SCALE.
ANGLE, SCALE = 0.2, 0.9
#: Random coordinates lie in [-REACH, REACH): a few outside, so that the padding has work.
REACH = 1.1

Arrays = dict[str, Array]
Shape = tuple[int, ...]
Typed = tuple[str, Shape]  # a type and a shape
#: By type of X, and of a whole model.
TOLERANCES = {"float64": 1e-8, "float32": 1e-3, "float16": 1e-2, "uint8": 1.0}


@dataclass(frozen=True)
class Case:
    """Something to time: what it is called, the model that does it, and what the model is fed."""

    heading: str  # what it shares with the cases beside it in a table
    label: str  # what tells it from these
    group: str  # what it is averaged with
    short: str  # what tells it from the others in its group
    feeds: Callable[[], Arrays]  # makes the inputs, the same every time
    model: Callable[[], bytes]
    operator: str | None = None  # None for a whole model
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    #: How far answers may lie apart, as a part of the largest value (for integers: in units).
    tolerance: float = TOLERANCES["float32"]

    @property
    def name(self) -> str:
        """The whole name, which ``--only`` is matched with."""
        return f"{self.heading} {self.label}"


def grid_sample_case(
    X: Shape,
    output: Shape,
    mode: str,
    padding_mode: str = "zeros",
    grid: str = "rotated",
    type: str = "float32",
) -> Case:
    """One GridSample node: X (N, C, D1, …), the output's spatial axes, how it samples, and where."""
    grid_type = "float32" if type == "uint8" else type
    attributes: dict[str, str | int] = {
        "mode": mode,
        "padding_mode": padding_mode,
        "align_corners": 0,
    }
    Y, grid_shape = (*X[:2], *output), (X[0], *output, len(output))

    def feeds() -> Arrays:
        generator = np.random.default_rng(SEED)
        values = (
            generator.integers(0, 256, X, np.uint8)
            if type == "uint8"
            else generator.uniform(-1, 1, X)
        )
        return {
            "X": values.astype(type),
            "grid": GRIDS[grid](generator, X[0], output).astype(grid_type),
        }

    def model() -> bytes:
        return one_node(
            "GridSample", {"X": (type, X), "grid": (grid_type, grid_shape)}, (type, Y), attributes
        )

    sizes = f"{times(X)} → {times(output)}"
    group = f"{len(output)}-D {mode}" + ("" if type == "float32" else f" {type}")
    names = (
        f"{sizes} {type}",
        f"{mode} {padding_mode} {grid}",
        group,
        f"{sizes} {padding_mode} {grid}",
    )
    return Case(*names, feeds, model, "GridSample", attributes, TOLERANCES[type])


def affine_grid_case(n: int, output: Shape) -> Case:
    """One AffineGrid node of float32: N, and the output's spatial axes."""
    r, short, attributes = len(output), times((n, *output)), {"align_corners": 0}
    inputs = {"theta": ("float32", (n, r, r + 1)), "size": ("int64", (r + 2,))}
    model = partial(one_node, "AffineGrid", inputs, ("float32", (n, *output, r)), attributes)

    def feeds() -> Arrays:
        return {"theta": rotation(n, r), "size": np.array([n, 1, *output])}

    return Case(
        f"{short} float32",
        "AffineGrid",
        "AffineGrid",
        short,
        feeds,
        model,
        "AffineGrid",
        attributes,
        1e-5,
    )


def network_case(
    label: str, build: Callable[[], onnx.ModelProto], stored: Path | None = None
) -> Case:
    """A small whole model, with the default options of each side; fed what is ``stored``, or at random."""

    def feeds() -> Arrays:
        if stored is not None:
            with np.load(stored) as arrays:
                return {
                    name.removeprefix("in."): arrays[name]
                    for name in arrays.files
                    if name.startswith("in.")
                }
        generator = np.random.default_rng(SEED)
        shapes = {
            i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in build().graph.input
        }
        return {
            name: generator.uniform(-1, 1, shape).astype(np.float32)
            for name, shape in shapes.items()
        }

    return Case(
        "whole model", label, "whole models", label, feeds, lambda: build().SerializeToString()
    )


def attention_case(label: str, shapes: networks.Attention, type: str = "float32") -> Case:
    """Deformable attention: an encoder's, whose queries are the pixels, or a decoder's, whose queries lie anywhere."""

    def feeds() -> Arrays:
        generator = np.random.default_rng(SEED)
        value, offsets, scores = (
            generator.standard_normal(shape, np.float32) for shape in shapes.shapes.values()
        )
        lengths = np.repeat(np.array(shapes.levels), shapes.points, axis=0)
        places = [
            (np.indices(level).reshape(2, -1).T[:, ::-1] + 0.5) / level[::-1]
            for level in shapes.levels
        ]
        centres = (
            np.concatenate(places)
            if shapes.queries == value.shape[1]
            else generator.random((shapes.queries, 2))
        )
        locations = centres[:, None, None] + 2 * offsets / lengths[:, ::-1]
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        return {
            name: a.astype(type)
            for name, a in zip(shapes.shapes, (value, locations, weights), strict=True)
        }

    def model() -> bytes:
        return networks.multi_scale_attention(shapes, type).SerializeToString()

    # onnxruntime rounds grids to halves too, which are pixels on a long axis.
    tolerance = TOLERANCES[type] * (5 if type == "float16" else 1)
    name = f"{label}, {shapes.heads} heads × {shapes.channels}" + (
        "" if type == "float32" else f", {type}"
    )
    return Case("attention", name, "attention", name, feeds, model, tolerance=tolerance)


def times(lengths: Shape) -> str:
    return "×".join(map(str, lengths))


def rotation(n: int, r: int) -> Array:
    """Theta (n, r, r + 1), float32, of the identity-like grid."""
    theta = np.zeros((n, r, r + 1), np.float32)
    theta[:, range(r), range(r)] = SCALE
    cos, sin = SCALE * math.cos(ANGLE), SCALE * math.sin(ANGLE)
    theta[:, :2, :2] = [[cos, -sin], [sin, cos]]
    return theta


def one_node(
    operator: str, inputs: Mapping[str, Typed], output: Typed, attributes: Mapping[str, str | int]
) -> bytes:
    values = [
        f"{spec.TYPES[type_].onnx}{list(shape)} {name}" for name, (type_, shape) in inputs.items()
    ]
    Y = f"{spec.TYPES[output[0]].onnx}{list(output[1])} Y"
    settings = ", ".join(f"{name} = {json.dumps(value)}" for name, value in attributes.items())
    written = f"<{settings}>" if attributes else ""  # the parser takes no empty pair
    text = f"{operator} ({', '.join(values)}) => ({Y}) {{ Y = {operator} {written} ({', '.join(inputs)}) }}"
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {OPSET}]> {text}'
    ).SerializeToString()


#: X and the output's spatial axes.
SHAPES = (
    *(
        ((1, 3, 512, 512), (512, 512)),
        ((1, 3, 1080, 1920), (1080, 1920)),
        ((1, 64, 128, 128), (128, 128)),
    ),
    *(((8, 32, 64, 64), (64, 64)), ((1, 256, 64, 64), (64, 64))),
    ((8, 32, 100, 100), (300, 4)),  # deformable attention: 300 queries, 4 points
    *(((1, 32, 16, 64, 64), (16, 64, 64)), ((1, 1, 128, 128, 128), (128, 128, 128))),
)
#: So many of the first shapes are tried with every padding.
SHAPES_WITH_EVERY_PADDING = 2

AFFINE_GRIDS = ((8, (1080, 1920)), (1, (128, 128, 128)))
#: Name -> from a generator, N and the output's spatial axes to a grid of float32.
GRIDS: Mapping[str, Callable[[np.random.Generator, int, Shape], Array]] = {
    "rotated": lambda _, n, output: affine_grid(rotation(n, len(output)), (n, 1, *output)),
    "random": lambda generator, n, output: generator.uniform(
        -REACH, REACH, (n, *output, len(output))
    ).astype("f4"),
}

NETWORKS = {
    "spatial transformer, 1080p": networks.spatial_transformer,
    "optical flow, 1080p": networks.optical_flow,
    "conv, GridSample, conv": networks.convolutions,
    "6 × deformable attention": networks.deformable_attention,
    "3-D registration U-Net": networks.registration,
}
#: Models of the tests that PyTorch exported: detectors, a segmentation, and a registration.
EXPORTED = ("deformable_detr", "rt_detr_v2", "mask2former", "voxelmorph")


def operator_cases() -> Iterator[Case]:
    for i, (X, output) in enumerate(SHAPES):
        paddings = spec.PADDING_MODES if i < SHAPES_WITH_EVERY_PADDING else ("zeros",)
        for mode, padding_mode, grid in product(spec.MODES, paddings, GRIDS):
            if mode != "cubic" or len(output) == 2:  # as onnxruntime
                yield grid_sample_case(X, output, mode, padding_mode, grid)
    for mode, grid in product(("nearest", "linear"), GRIDS):
        yield grid_sample_case(*SHAPES[1], mode, grid=grid, type="uint8")
    for type_, mode, grid in product(("float64", "float16"), spec.MODES, GRIDS):
        yield grid_sample_case(*SHAPES[0], mode, grid=grid, type=type_)
    for n, output in AFFINE_GRIDS:
        yield affine_grid_case(n, output)


#: The levels of a picture of 800×1066 pixels, and of one of 640×640.
LEVELS, FEWER_LEVELS = ((100, 134), (50, 67), (25, 34), (13, 17)), ((80, 80), (40, 40), (20, 20))
PIXELS = sum(h * w for h, w in LEVELS)
ATTENTION = {
    "encoder": networks.Attention(PIXELS, LEVELS),
    "encoder ": networks.Attention(PIXELS, LEVELS, 16, 16),
    "encoder  ": networks.Attention(PIXELS, LEVELS, 4, 64),
    "decoder": networks.Attention(300, LEVELS),
    "decoder, 4, 2 and 3 points": networks.Attention(300, FEWER_LEVELS, points=(4, 2, 3)),
    "decoder, one level": networks.Attention(1300, ((48, 48),), 16, 16, (2,)),
    "decoder, 8 pictures": networks.Attention(300, LEVELS, batches=8),
}


def network_cases() -> Iterator[Case]:
    for name, shapes in ATTENTION.items():
        yield attention_case(name.strip(), shapes)
    for name in ("encoder", "decoder"):
        yield attention_case(name, ATTENTION[name], "float16")
    for name, build in NETWORKS.items():
        yield network_case(name, build)
    for name in EXPORTED:
        path = Path(__file__).parents[1] / "exported" / f"{name}.onnx"
        yield network_case(f"{name}, exported", partial(onnx.load, path), path.with_suffix(".npz"))
