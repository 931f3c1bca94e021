"""Modules with operations before and after a sampler, as PyTorch's exporters write them.

A :class:`Case` names one combination. The exporters write other graphs for static and dynamic axes,
so a case is exported with one of :data:`SHAPES`, and runs with the shapes that it was exported with
and with others, as far as its axes are dynamic.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass

import onnx
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.torch_exporters import EXPORTERS, Run, expected_run, export
from support.torch_operations import OPERATIONS, grid_axes, image_axes

Apply = Callable[[Tensor], Tensor]
CHANNELS = 4
HEADS = 2
POINTS = 2


def sampled(x: Tensor, grid: Tensor, on_image: Apply, on_grid: Apply) -> Tensor:
    """Sample once: images with zeros outside, volumes with their border."""
    padding = "zeros" if x.ndim == 4 else "border"
    return F.grid_sample(on_image(x), on_grid(grid), padding_mode=padding, align_corners=False)


def affine(x: Tensor, theta: Tensor, on_image: Apply, on_grid: Apply) -> Tensor:
    """Sample with the grid of an affine map, of the size of X."""
    grid = F.affine_grid(theta, x.shape, align_corners=True)
    return F.grid_sample(on_image(x), on_grid(grid), padding_mode="reflection", align_corners=True)


def twice(x: Tensor, grid: Tensor, on_image: Apply, on_grid: Apply) -> Tensor:
    """Sample the output of a sampler, with a grid that depends on that output."""
    first = F.grid_sample(x, grid, mode="bicubic", align_corners=True)
    flow = first[:, :2].permute(0, 2, 3, 1)
    return F.grid_sample(on_image(first), on_grid(grid + 0.2 * flow), align_corners=False)


def attention(x: Tensor, references: Tensor, on_image: Apply, on_grid: Apply) -> Tensor:
    """Compute deformable attention of two levels, as transformers does.

    The levels are X and a smaller copy, the queries are the positions of the grid.
    """
    image = on_image(x)
    images = [image, F.avg_pool2d(image, 2)]
    value = torch.cat([level.flatten(2) for level in images], 2).transpose(1, 2)
    batch, pixels, channels = value.shape
    value = value.view(batch, pixels, HEADS, channels // HEADS)
    points = on_grid(references).flatten(1, 2)
    queries = points.shape[1]
    counts = len(images) * POINTS
    offsets = torch.linspace(-0.2, 0.2, HEADS * counts * 2).view(HEADS, len(images), POINTS, 2)
    locations = (points[:, :, None, None, None] + 1) / 2 + offsets
    scores = points.sum(-1)[:, :, None, None] * torch.linspace(0.5, 2, counts)
    weights = scores.expand(batch, queries, HEADS, counts).softmax(-1)
    values = value.split([level.shape[2] * level.shape[3] for level in images], 1)
    grids = 2 * locations - 1
    samples = []
    for number, level in enumerate(images):
        pixels_of_heads = values[number].flatten(2).transpose(1, 2)
        head_images = pixels_of_heads.reshape(
            batch * HEADS, channels // HEADS, level.shape[2], level.shape[3]
        )
        grid = grids[:, :, :, number].transpose(1, 2).flatten(0, 1)
        samples.append(F.grid_sample(head_images, grid, align_corners=False))
    weights = weights.transpose(1, 2).reshape(batch * HEADS, 1, queries, counts)
    output = (torch.stack(samples, -2).flatten(-2) * weights).sum(-1)
    return output.view(batch, channels, queries)


@dataclass(frozen=True)
class Sampler:
    """A part of a model that samples.

    Attributes:
        function: called with X, the second input, and the operations of X and of the grid.
        X: the lengths of the spatial axes of X.
        points: the shape of the second input without the batch. Axes that equal None are dynamic.
    """

    function: Callable[[Tensor, Tensor, Apply, Apply], Tensor]
    X: tuple[int, ...]
    points: tuple[int, ...]
    has_grid: bool = True

    @property
    def rank(self) -> int:
        return len(self.X)


SAMPLERS = {
    "images": Sampler(sampled, (12, 14), (10, 12, 2)),
    "volumes": Sampler(sampled, (8, 9, 10), (9, 8, 10, 3)),
    "affine": Sampler(affine, (12, 14), (2, 3), has_grid=False),
    "twice": Sampler(twice, (12, 14), (10, 12, 2)),
    "attention": Sampler(attention, (12, 14), (10, 12, 2)),
}
#: Which axes are dynamic.
SHAPES = ("static", "batch", "all")


@dataclass(frozen=True)
class Case:
    """A module, and how it is exported.

    Attributes:
        on_image: the name of the operation before X.
        on_grid: the name of the operation before the grid.
        sampler: the name of the sampler.
        after: the name of the operation on the output.
        exporter: the name of PyTorch's exporter.
        shapes: which axes are dynamic.
    """

    on_image: str
    on_grid: str
    sampler: str
    after: str
    exporter: str
    shapes: str

    def __str__(self) -> str:
        return "-".join(astuple(self))

    @property
    def operations(self) -> tuple[str, str, str]:
        """The names of the operations."""
        return self.on_image, self.on_grid, self.after


class Module(nn.Module):
    """The module of a case."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        before_X, before_grid, after = (OPERATIONS[name] for name in self.case.operations)
        y = SAMPLERS[self.case.sampler].function(
            x,
            points,
            lambda image: before_X(image, image_axes(image)),
            lambda grid: before_grid(grid, grid_axes(grid)),
        )
        return after(y, image_axes(y))


def inputs_of(case: Case, *, other: bool = False) -> tuple[Tensor, Tensor]:
    """Return random inputs.

    Args:
        case: the case.
        other: whether dynamic axes have other lengths than in the export.
    """
    sampler = SAMPLERS[case.sampler]
    generator = torch.Generator().manual_seed(int(other))
    batch = 3 if other and case.shapes != "static" else 2
    grows = other and case.shapes == "all"
    X_lengths = [length + 3 if grows else length for length in sampler.X]
    x = torch.rand((batch, CHANNELS, *X_lengths), generator=generator) * 2 - 1
    if not sampler.has_grid:
        eye = torch.eye(*sampler.points) * 0.8
        return x, eye + 0.4 * torch.rand((batch, *sampler.points), generator=generator) - 0.2
    *lengths, coordinates = sampler.points
    if grows:
        lengths = [length - 1 for length in lengths]
    points = torch.rand((batch, *lengths, coordinates), generator=generator) * 2.4 - 1.2
    return x, points


def dynamic_axes(case: Case) -> dict[str, list[int]]:
    """Return the dynamic axes of each input by its name."""
    if case.shapes == "static":
        return {"x": [], "points": []}
    if case.shapes == "batch":
        return {"x": [0], "points": [0]}
    sampler = SAMPLERS[case.sampler]
    grid = range(1, sampler.rank + 1) if sampler.has_grid else ()
    return {"x": [0, *range(2, sampler.rank + 2)], "points": [0, *grid]}


def all_cases() -> Iterator[Case]:
    """Yield cases in which each operation has each place in all combinations of other factors."""
    for sampler, exporter, shapes in itertools.product(SAMPLERS, EXPORTERS, SHAPES):
        for operations in mixed_operations(f"{sampler} {exporter} {shapes}"):
            on_image, on_grid, after = operations
            yield Case(on_image, on_grid, sampler, after, exporter, shapes)


def sampled_cases() -> Iterator[Case]:
    """Yield cases in which each operation has each place with both exporters.

    Every exporter also has all pairs of a sampler and shapes.
    """
    for exporter in EXPORTERS:
        others = itertools.cycle(itertools.product(SAMPLERS, SHAPES))
        for operations, (sampler, shapes) in zip(mixed_operations(exporter), others, strict=False):
            on_image, on_grid, after = operations
            yield Case(on_image, on_grid, sampler, after, exporter, shapes)


def mixed_operations(seed: str) -> Iterator[tuple[str, ...]]:
    """Yield the names of all operations three times, each time in another random order."""
    generator = random.Random(seed)
    orders = [generator.sample(list(OPERATIONS), len(OPERATIONS)) for _ in range(3)]
    return zip(*orders, strict=True)


def exported(case: Case) -> onnx.ModelProto:
    """Return the model of a case, as the exporter writes it.

    Raises:
        Exception: the exporter refuses the module.
    """
    # PyTorch's own shape function makes the size of an affine grid constant.
    translate = case.sampler == "affine" and case.shapes == "all"
    return export(
        Module(case).eval(),
        inputs_of(case),
        dynamic_axes(case),
        case.exporter,
        translate=translate,
    )


def runs_of(case: Case) -> list[Run]:
    """Return PyTorch's output for the shapes of the export, and for others if axes are dynamic."""
    sizes = [False] if case.shapes == "static" else [False, True]
    module = Module(case).eval()
    return [expected_run(module, inputs_of(case, other=other)) for other in sizes]
