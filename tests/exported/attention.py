"""Write attention.zip next to this file: `python tests/exported/attention.py [--into FILE]`.

The models are deformable attention in the forms of transformers, RT-DETR v2 and RF-DETR, as
PyTorch's exporters write them. Their names are FORM/SIZES-EXPORTER. The script needs onnx, torch
and onnxscript, as in requirements.txt, and downloads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from writing import Form, called, write

LEVELS = ((4, 6), (2, 3), (1, 2))
POINTS = (4, 2, 3)
HEADS = 3
CHANNELS = 4


def stacked(
    value: Tensor, locations: Tensor, weights: Tensor, levels: tuple[tuple[int, ...], ...] = LEVELS
) -> Tensor:
    """Compute attention as transformers and mmcv do.

    Args:
        value: (B, S, H, D).
        locations: (B, Q, H, L, P, r).
        weights: (B, Q, H, L, P).
        levels: the lengths of each level.
    """
    b, _, h, d = value.shape
    _, q, _, n, p, r = locations.shape
    values = value.split([torch.Size(level).numel() for level in levels], dim=1)
    grids, samples = 2 * locations - 1, []
    for number, lengths in enumerate(levels):
        image = values[number].flatten(2).transpose(1, 2).reshape(b * h, d, *lengths)
        grid = grids[:, :, :, number].transpose(1, 2).flatten(0, 1)
        grid = grid.reshape(b * h, q, p, *[1] * (r - 2), r) if r > 2 else grid
        samples.append(F.grid_sample(image, grid, align_corners=False).reshape(b * h, d, q, p))
    by = weights.transpose(1, 2).reshape(b * h, 1, q, n * p)
    return (
        (torch.stack(samples, -2).flatten(-2) * by)
        .sum(-1)
        .view(b, h * d, q)
        .transpose(1, 2)
        .contiguous()
    )


def concatenated(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """Compute attention as RT-DETR v2 does, with another number of points on each level.

    Args:
        value: (B, S, H, D).
        locations: (B, Q, H, P, 2).
        weights: (B, Q, H, P).
    """
    b, _, h, d = value.shape
    q = locations.shape[1]
    values = value.permute(0, 2, 3, 1).flatten(0, 1).split([a * c for a, c in LEVELS], dim=-1)
    grids = (2 * locations - 1).permute(0, 2, 1, 3, 4).flatten(0, 1).split(POINTS, dim=-2)
    images = (
        image.reshape(b * h, d, *lengths) for image, lengths in zip(values, LEVELS, strict=True)
    )
    samples = [
        F.grid_sample(*each, align_corners=False) for each in zip(images, grids, strict=True)
    ]
    by = weights.permute(0, 2, 1, 3).reshape(b * h, 1, q, sum(POINTS))
    return (torch.concat(samples, -1) * by).sum(-1).view(b, h * d, q).transpose(1, 2).contiguous()


def single(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """Compute attention as RF-DETR with one level does.

    Args:
        value: (B, S, H·D).
        locations: (B, Q, H, 1, P, 2).
        weights: (B, Q, H, P).
    """
    b, s, _ = value.shape
    q = locations.shape[1]
    images = value.transpose(1, 2).contiguous().view(b, HEADS, CHANNELS, s)
    grids = 2 * locations - 1
    image = images.view(b * HEADS, CHANNELS, *LEVELS[0])
    sample = F.grid_sample(
        image, grids[:, :, :, 0].transpose(1, 2).flatten(0, 1), align_corners=False
    )
    by = weights.transpose(1, 2).reshape(b * HEADS, 1, q, weights.shape[3])
    return (sample * by).sum(-1).view(b, HEADS * CHANNELS, q).transpose(1, 2)


volumes = partial(stacked, levels=((2, 3, 4), (1, 2, 3)))
Shape = tuple[int, ...]
#: The name of a form -> its function, and the shapes of values, locations and weights.
FORMS: dict[str, tuple[Callable[..., Tensor], Shape, Shape, Shape]] = {
    "stacked": (stacked, (2, 32, HEADS, CHANNELS), (2, 5, HEADS, 3, 2, 2), (2, 5, HEADS, 3, 2)),
    "concatenated": (
        concatenated,
        (2, 32, HEADS, CHANNELS),
        (2, 5, HEADS, sum(POINTS), 2),
        (2, 5, HEADS, sum(POINTS)),
    ),
    "single": (single, (2, 24, HEADS * CHANNELS), (2, 5, HEADS, 1, 2, 2), (2, 5, HEADS, 2)),
    "volumes": (volumes, (2, 30, HEADS, CHANNELS), (2, 5, HEADS, 2, 2, 3), (2, 5, HEADS, 2, 2)),
}
#: The dynamic axes of each input.
SIZES = {"static": ((), (), ()), "batch": ((0,),) * 3, "queries": ((0,), (0, 1), (0, 1))}


def forms() -> Iterator[tuple[str, Form]]:
    """Yield the name and the form of each model."""
    for (name, (function, *shapes)), size, dynamo in product(FORMS.items(), SIZES, (False, True)):
        form = called(function, [*map(torch.rand, shapes)], SIZES[size], dynamo=dynamo, opset=20)
        yield f"{name}/{size}-{'dynamo' if dynamo else 'torchscript'}", form


if __name__ == "__main__":
    write(__file__, forms())
