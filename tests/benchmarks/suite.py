"""The standard suite, as data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import TensorProto, helper

from ort_gridsample import spec
from ort_gridsample.core.arrays import Array
from ort_gridsample.core.taps import MODES
from ort_gridsample.functions import affine_grid

from . import networks

OPSET = 20
SEED = 0

#: The identity-like grid: turned by ANGLE radians in the two innermost axes, scaled by SCALE.
ANGLE, SCALE = 0.2, 0.9
#: Random coordinates lie in [-REACH, REACH): a few outside, so that the padding has work.
REACH = 1.1

Arrays = dict[str, Array]


class Case(Protocol):
    """Something to time: what it is called, the model that does it, and what the model is fed.

    Attributes:
        heading: what it shares with the cases beside it in a table.
        label: what tells it from these.
        group: what it is averaged with.
        short: what tells it from the others in its group.
        operator: the one operator that it is, None for a whole model.
        attributes: the operator's.
        tolerance: how far answers may lie apart, as a part of the largest value (for integers: in units).
    """

    @property
    def heading(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def short(self) -> str: ...
    @property
    def operator(self) -> str | None: ...
    @property
    def attributes(self) -> Mapping[str, str | int]: ...
    @property
    def tolerance(self) -> float: ...
    def feeds(self) -> Arrays: ...
    def model(self) -> bytes: ...
    def moved_bytes(self) -> int | None: ...


def name_of(case: Case) -> str:
    """A case's whole name, which ``--only`` is matched with."""
    return f"{case.heading} {case.label}"


#: By type of X.
TOLERANCES = {"float64": 1e-8, "float32": 1e-3, "float16": 1e-2, "uint8": 1.0}


@dataclass(frozen=True)
class GridSampleCase:
    """One GridSample node: X (N, C, D1, …), the output's spatial axes, how it samples, and where."""

    X: tuple[int, ...]
    output: tuple[int, ...]
    mode: str
    padding_mode: str = "zeros"
    grid: str = "rotated"
    type: str = "float32"

    operator = "GridSample"

    @property
    def heading(self) -> str:
        return f"{self._sizes} {self.type}"

    @property
    def label(self) -> str:
        return f"{self.mode} {self.padding_mode} {self.grid}"

    @property
    def group(self) -> str:
        return f"{len(self.X) - 2}-D {self.mode}" + ("" if self.type == "float32" else f" {self.type}")

    @property
    def short(self) -> str:
        return f"{self._sizes} {self.padding_mode} {self.grid}"

    @property
    def _sizes(self) -> str:
        return f"{times(self.X)} → {times(self.output)}"

    @property
    def attributes(self) -> dict[str, str | int]:
        return {"mode": self.mode, "padding_mode": self.padding_mode, "align_corners": 0}

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.type]

    def feeds(self) -> Arrays:
        generator = np.random.default_rng(SEED)
        if self.type == "uint8":
            X = generator.integers(0, 256, self.X, np.uint8)
        else:
            X = generator.uniform(-1, 1, self.X).astype(self.type)
        grid = GRIDS[self.grid](generator, self.X[0], self.output)
        return {"X": X, "grid": grid.astype("float32" if self.type == "uint8" else self.type)}

    def model(self) -> bytes:
        feeds = {name: (array.dtype.name, array.shape) for name, array in self.feeds().items()}
        return one_node(self.operator, feeds, (self.type, (*self.X[:2], *self.output)), self.attributes)

    def moved_bytes(self) -> int:
        """The bytes of the grid, of Y, and of X as far as it is read."""
        positions = self.X[0] * math.prod(self.output)
        taps = len(MODES[self.mode].offsets) ** len(self.output)
        item = np.dtype(self.type).itemsize
        grid_item = 4 if self.type == "uint8" else item
        Y = positions * self.X[1]
        return (min(math.prod(self.X), taps * Y) + Y) * item + positions * len(self.output) * grid_item


@dataclass(frozen=True)
class AffineGridCase:
    """One AffineGrid node of float32: N, and the output's spatial axes."""

    n: int
    output: tuple[int, ...]

    operator = "AffineGrid"
    group = "AffineGrid"
    label = "AffineGrid"
    tolerance = 1e-5

    @property
    def heading(self) -> str:
        return f"{self.short} float32"

    @property
    def short(self) -> str:
        return times((self.n, *self.output))

    @property
    def attributes(self) -> dict[str, str | int]:
        return {"align_corners": 0}

    def feeds(self) -> Arrays:
        return {"theta": rotation(self.n, len(self.output)), "size": np.array([self.n, 1, *self.output])}

    def model(self) -> bytes:
        r = len(self.output)
        inputs = {"theta": ("float32", (self.n, r, r + 1)), "size": ("int64", (r + 2,))}
        return one_node(self.operator, inputs, ("float32", (self.n, *self.output, r)), self.attributes)

    def moved_bytes(self) -> int:
        """The bytes of the grid."""
        return self.n * math.prod(self.output) * len(self.output) * 4


@dataclass(frozen=True)
class NetworkCase:
    """A small whole model, with the default options of each side; fed what is ``stored``, or at random."""

    label: str
    build: Callable[[], onnx.ModelProto]
    stored: Path | None = None

    operator = None
    group = "whole models"
    heading = "whole model"

    @property
    def short(self) -> str:
        return self.label

    tolerance = TOLERANCES["float32"]

    @property
    def attributes(self) -> dict[str, str | int]:
        return {}

    def feeds(self) -> Arrays:
        if self.stored is not None:
            with np.load(self.stored) as arrays:
                return {name.removeprefix("in."): arrays[name] for name in arrays.files if name.startswith("in.")}
        generator = np.random.default_rng(SEED)
        shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in self.build().graph.input}
        return {name: generator.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}

    def model(self) -> bytes:
        return self.build().SerializeToString()

    def moved_bytes(self) -> None:
        """Nobody knows."""


def times(lengths: tuple[int, ...]) -> str:
    """``1×3×512×512``."""
    return "×".join(map(str, lengths))


def rotation(n: int, r: int) -> Array:
    """Theta (n, r, r + 1), float32, of the identity-like grid."""
    theta = np.zeros((n, r, r + 1), np.float32)
    theta[:, range(r), range(r)] = SCALE
    cos, sin = SCALE * math.cos(ANGLE), SCALE * math.sin(ANGLE)
    theta[:, :2, :2] = [[cos, -sin], [sin, cos]]
    return theta


def _rotated(generator: np.random.Generator, n: int, output: tuple[int, ...]) -> Array:
    return affine_grid(rotation(n, len(output)), (n, 1, *output))


def _random(generator: np.random.Generator, n: int, output: tuple[int, ...]) -> Array:
    return generator.uniform(-REACH, REACH, (n, *output, len(output))).astype(np.float32)


GRIDS: Mapping[str, Callable[[np.random.Generator, int, tuple[int, ...]], Array]] = {
    "rotated": _rotated,
    "random": _random,
}


def one_node(
    operator: str,
    inputs: Mapping[str, tuple[str, tuple[int, ...]]],
    output: tuple[str, tuple[int, ...]],
    attributes: Mapping[str, str | int],
) -> bytes:
    """A model of one node, as bytes; inputs and output given as (type, shape)."""
    written: dict[str, Any] = dict(attributes)
    node = helper.make_node(operator, list(inputs), ["Y"], operator, **written)
    values = [
        helper.make_tensor_value_info(name, TensorProto.DataType.Value(spec.TYPES[type_].onnx.upper()), shape)
        for name, (type_, shape) in {**inputs, "Y": output}.items()
    ]
    graph = helper.make_graph([node], operator, values[:-1], values[-1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    return model.SerializeToString()


#: X and the output's spatial axes.
SHAPES = (
    ((1, 3, 512, 512), (512, 512)),
    ((1, 3, 1080, 1920), (1080, 1920)),
    ((1, 64, 128, 128), (128, 128)),
    ((8, 32, 64, 64), (64, 64)),
    ((1, 256, 64, 64), (64, 64)),
    ((8, 32, 100, 100), (300, 4)),  # deformable attention: 300 queries, 4 points
    ((1, 32, 16, 64, 64), (16, 64, 64)),
    ((1, 1, 128, 128, 128), (128, 128, 128)),
)
#: So many of the first shapes are tried with every padding.
SHAPES_WITH_EVERY_PADDING = 2

AFFINE_GRIDS = ((8, (1080, 1920)), (1, (128, 128, 128)))

NETWORKS = {
    "spatial transformer, 1080p": networks.spatial_transformer,
    "optical flow, 1080p": networks.optical_flow,
    "conv, GridSample, conv": networks.convolutions,
    "6 × deformable attention": networks.deformable_attention,
    "3-D registration U-Net": networks.registration,
}
#: Models of the tests that PyTorch exported: detectors, a segmentation, and a registration.
EXPORTED = ("deformable_detr", "rt_detr_v2", "mask2former", "voxelmorph")


def modes_of(rank: int) -> tuple[str, ...]:
    """The modes that the suite tries with so many spatial axes: cubic in 2-D only, as onnxruntime."""
    return tuple(mode for mode in spec.MODES if mode != "cubic" or rank == 2)


def operator_cases() -> Iterator[GridSampleCase | AffineGridCase]:
    """The kernels, float32 first."""
    for i, (X, output) in enumerate(SHAPES):
        paddings = spec.PADDING_MODES if i < SHAPES_WITH_EVERY_PADDING else ("zeros",)
        for mode, padding_mode, grid in product(modes_of(len(output)), paddings, GRIDS):
            yield GridSampleCase(X, output, mode, padding_mode, grid)
    for mode, grid in product(("nearest", "linear"), GRIDS):
        yield GridSampleCase(*SHAPES[1], mode, grid=grid, type="uint8")
    for type_, mode, grid in product(("float64", "float16"), spec.MODES, GRIDS):
        yield GridSampleCase(*SHAPES[0], mode, grid=grid, type=type_)
    for n, output in AFFINE_GRIDS:
        yield AffineGridCase(n, output)


def network_cases() -> Iterator[NetworkCase]:
    """The whole models."""
    for name, build in NETWORKS.items():
        yield NetworkCase(name, build)
    for name in EXPORTED:
        path = Path(__file__).parents[1] / "exported" / f"{name}.onnx"
        yield NetworkCase(f"{name}, exported", partial(onnx.load, path), path.with_suffix(".npz"))
