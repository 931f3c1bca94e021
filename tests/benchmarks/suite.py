"""The cases of the benchmarks, as data."""

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
#: The angle in radians, in the two innermost axes, and the scale of the rotated grid.
ANGLE = 0.2
SCALE = 0.9
#: Random coordinates lie in [-REACH, REACH). A few are outside, so that padding is timed.
REACH = 1.1

Arrays = dict[str, Array]
Shape = tuple[int, ...]
Typed = tuple[str, Shape]  # a type and a shape
#: The type of X or of a model -> how far outputs may differ.
TOLERANCES = {"float64": 1e-8, "float32": 1e-3, "float16": 1e-2, "uint8": 1.0}


@dataclass(frozen=True)
class Case:
    """A case to time.

    Attributes:
        heading: the heading of its table.
        label: its name in the table.
        group: the group of cases whose mean is reported.
        short: its name in the group.
        feeds: returns the inputs, the same each time.
        model: returns the model.
        operator: the operator, or None for a whole model.
        attributes: those of the operator.
        tolerance: how far outputs may differ, relative to the largest value, or for integers
            absolutely.
        unordered_axis: an axis of all outputs along which their order has no meaning, or None.
    """

    heading: str
    label: str
    group: str
    short: str
    feeds: Callable[[], Arrays]
    model: Callable[[], bytes]
    operator: str | None = None
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    tolerance: float = TOLERANCES["float32"]
    unordered_axis: int | None = None

    @property
    def name(self) -> str:
        """The name that ``--only`` matches."""
        return f"{self.heading} {self.label}"


def grid_sample_case(
    X: Shape,
    output: Shape,
    mode: str,
    padding_mode: str = "zeros",
    grid: str = "rotated",
    type: str = "float32",
) -> Case:
    """Return a case of one GridSample node.

    Args:
        X: the shape of X, (N, C, D1, …).
        output: the spatial lengths of the output.
        mode: the attribute.
        padding_mode: the attribute.
        grid: a key of ``GRIDS``.
        type: the type of X.
    """
    grid_type = "float32" if type == "uint8" else type
    attributes: dict[str, str | int] = {
        "mode": mode,
        "padding_mode": padding_mode,
        "align_corners": 0,
    }
    Y = (*X[:2], *output)
    grid_shape = (X[0], *output, len(output))

    def feeds() -> Arrays:
        generator = np.random.default_rng(SEED)
        if type == "uint8":
            values = generator.integers(0, 256, X, np.uint8)
        else:
            values = generator.uniform(-1, 1, X).astype(type)
        return {"X": values, "grid": GRIDS[grid](generator, X[0], output).astype(grid_type)}

    inputs = {"X": (type, X), "grid": (grid_type, grid_shape)}
    sizes = f"{times(X)} → {times(output)}"
    group = f"{len(output)}-D {mode}"
    if type != "float32":
        group += f" {type}"
    return Case(
        heading=f"{sizes} {type}",
        label=f"{mode} {padding_mode} {grid}",
        group=group,
        short=f"{sizes} {padding_mode} {grid}",
        feeds=feeds,
        model=partial(one_node, "GridSample", inputs, (type, Y), attributes),
        operator="GridSample",
        attributes=attributes,
        tolerance=TOLERANCES[type],
    )


def affine_grid_case(n: int, output: Shape) -> Case:
    """Return a case of one AffineGrid node of float32, with N and the output's spatial lengths."""
    r = len(output)
    short = times((n, *output))
    attributes: dict[str, str | int] = {"align_corners": 0}
    inputs = {"theta": ("float32", (n, r, r + 1)), "size": ("int64", (r + 2,))}
    model = partial(one_node, "AffineGrid", inputs, ("float32", (n, *output, r)), attributes)

    def feeds() -> Arrays:
        return {"theta": rotation(n, r), "size": np.array([n, 1, *output])}

    return Case(
        heading=f"{short} float32",
        label="AffineGrid",
        group="AffineGrid",
        short=short,
        feeds=feeds,
        model=model,
        operator="AffineGrid",
        attributes=attributes,
        tolerance=1e-5,
    )


def network_case(
    label: str, build: Callable[[], onnx.ModelProto], stored: Path | None = None
) -> Case:
    """Return a case of a whole model, with ``stored`` or random feeds, and default options."""

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
        heading="whole model",
        label=label,
        group="whole models",
        short=label,
        feeds=feeds,
        model=lambda: build().SerializeToString(),
    )


def attention_case(label: str, shapes: networks.Attention, type: str = "float32") -> Case:
    """Return a case of deformable attention.

    In an encoder, the queries are the pixels. In a decoder, they lie anywhere.
    """

    def feeds() -> Arrays:
        generator = np.random.default_rng(SEED)
        value, offsets, scores = (
            generator.standard_normal(shape, np.float32) for shape in shapes.shapes.values()
        )
        lengths = np.repeat(np.array(shapes.levels), shapes.points, axis=0)
        if shapes.queries == value.shape[1]:  # an encoder
            pixels = [
                (np.indices(level).reshape(2, -1).T[:, ::-1] + 0.5) / level[::-1]
                for level in shapes.levels
            ]
            centres = np.concatenate(pixels)
        else:
            centres = generator.random((shapes.queries, 2))
        locations = centres[:, None, None] + 2 * offsets / lengths[:, ::-1]
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        arrays = {"value": value, "locations": locations, "weights": weights}
        return {name: in_cache_lines(array.astype(type)) for name, array in arrays.items()}

    def model() -> bytes:
        return networks.multi_scale_attention(shapes, type).SerializeToString()

    tolerance = TOLERANCES[type]
    name = f"{label}, {shapes.heads} heads × {shapes.channels}"
    if type != "float32":
        name += f", {type}"
    if type == "float16":
        # onnxruntime also rounds grids to halves, an error of pixels on a long axis.
        tolerance *= 5
    return Case(
        heading="attention",
        label=name,
        group="attention",
        short=name,
        feeds=feeds,
        model=model,
        tolerance=tolerance,
    )


def in_cache_lines(array: Array) -> Array:
    """Return a copy that begins with a cache line, as the values inside a model do.

    NumPy's arrays begin anywhere. Attention then takes up to 1.4 times as long, because each row of
    channels lies in one more cache line.
    """
    line = 64
    memory = np.empty(array.nbytes + line, np.uint8)
    start = -memory.ctypes.data % line
    copy = memory[start:][: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def times(lengths: Shape) -> str:
    return "×".join(map(str, lengths))


def rotation(n: int, r: int) -> Array:
    """Return the theta (n, r, r + 1) of the rotated grid, in float32."""
    theta = np.zeros((n, r, r + 1), np.float32)
    theta[:, range(r), range(r)] = SCALE
    cos = SCALE * math.cos(ANGLE)
    sin = SCALE * math.sin(ANGLE)
    theta[:, :2, :2] = [[cos, -sin], [sin, cos]]
    return theta


def one_node(
    operator: str, inputs: Mapping[str, Typed], output: Typed, attributes: Mapping[str, str | int]
) -> bytes:
    values = [
        f"{spec.TYPES[type_].onnx}{list(shape)} {name}" for name, (type_, shape) in inputs.items()
    ]
    output_type, output_shape = output
    Y = f"{spec.TYPES[output_type].onnx}{list(output_shape)} Y"
    settings = ", ".join(f"{name} = {json.dumps(value)}" for name, value in attributes.items())
    written = f"<{settings}>" if attributes else ""  # the parser refuses "<>"
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": {OPSET}]>
        {operator} ({", ".join(values)}) => ({Y}) {{
            Y = {operator} {written} ({", ".join(inputs)}) }}""")
    return model.SerializeToString()


#: The shape of X, and the spatial lengths of the output.
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
#: The number of the first shapes that are timed with every padding.
SHAPES_WITH_EVERY_PADDING = 2

AFFINE_GRIDS = ((8, (1080, 1920)), (1, (128, 128, 128)))
#: The name of a grid -> a function of a generator, N and the output's spatial lengths.
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
#: Exported models of the tests: detectors, a segmentation and a registration.
EXPORTED = ("deformable_detr", "rt_detr_v2", "mask2former", "voxelmorph")


def operator_cases() -> Iterator[Case]:
    for number, (X, output) in enumerate(SHAPES):
        has_every_padding = number < SHAPES_WITH_EVERY_PADDING
        paddings = spec.PADDING_MODES if has_every_padding else ("zeros",)
        for mode, padding_mode, grid in product(spec.MODES, paddings, GRIDS):
            if mode != "cubic" or len(output) == 2:  # like onnxruntime
                yield grid_sample_case(X, output, mode, padding_mode, grid)
    for mode, grid in product(("nearest", "linear"), GRIDS):
        yield grid_sample_case(*SHAPES[1], mode, grid=grid, type="uint8")
    for type_, mode, grid in product(("float64", "float16"), spec.MODES, GRIDS):
        yield grid_sample_case(*SHAPES[0], mode, grid=grid, type=type_)
    for n, output in AFFINE_GRIDS:
        yield affine_grid_case(n, output)


#: The levels of a picture of 800×1066 pixels.
LEVELS = ((100, 134), (50, 67), (25, 34), (13, 17))
#: The levels of a picture of 640×640 pixels.
FEWER_LEVELS = ((80, 80), (40, 40), (20, 20))
PIXELS = sum(h * w for h, w in LEVELS)
ENCODER = networks.Attention(PIXELS, LEVELS)
DECODER = networks.Attention(300, LEVELS)
ONE_LEVEL = networks.Attention(1300, ((48, 48),), heads=16, channels=16, points=(2,))
RT_DETR_DECODER = networks.Attention(300, FEWER_LEVELS, points=(4, 4, 4))
#: A label and lengths. Equal labels differ by their heads, which are added to them.
ATTENTION = [
    ("encoder", ENCODER),
    ("encoder", networks.Attention(PIXELS, LEVELS, heads=16, channels=16)),
    ("encoder", networks.Attention(PIXELS, LEVELS, heads=4, channels=64)),
    ("decoder", DECODER),
    ("decoder, 4, 2 and 3 points", networks.Attention(300, FEWER_LEVELS, points=(4, 2, 3))),
    ("decoder, RT-DETR v2", RT_DETR_DECODER),
    ("decoder, one level", ONE_LEVEL),
    ("decoder, one level", networks.Attention(900, ((48, 48),), points=(4,))),
    ("decoder, one level", networks.Attention(300, ((48, 48),), heads=4, channels=64, points=(4,))),
    ("decoder, 8 pictures", networks.Attention(300, LEVELS, batches=8)),
]


def network_cases() -> Iterator[Case]:
    for label, shapes in ATTENTION:
        yield attention_case(label, shapes)
    yield attention_case("encoder", ENCODER, "float16")
    yield attention_case("decoder", DECODER, "float16")
    for name, build in NETWORKS.items():
        yield network_case(name, build)
    for name in EXPORTED:
        path = Path(__file__).parents[1] / "exported" / f"{name}.onnx"
        yield network_case(f"{name}, exported", partial(onnx.load, path), path.with_suffix(".npz"))
