"""Write decomposed.zip next to this file: `python tests/exported/decomposed.py [--into FILE]`.

The models are small. GridSample and AffineGrid are decomposed into basic operators in them, by
PyTorch's exporters or by hand. Their names are FORM/MODE-PADDING-ALIGN-SIZES-EXPORTER. The script
needs onnx, torch and onnxscript, as in requirements.txt, and downloads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from writing import Form, called, write


def pixels(grid: Tensor, sizes: tuple[int, int], align: bool) -> list[Tensor]:
    """Return the coordinates x and y in pixels."""
    both = []
    for axis, size in enumerate(sizes[::-1]):
        at = grid[..., axis] + 1
        both.append(at * (size - 1) / 2 if align else (at * size - 1) / 2)
    return both


def padded(X: Tensor, grid: Tensor, align: bool) -> Tensor:
    """Sample as mmcv's bilinear_grid_sample does.

    It computes indices into an image with a border of zeros, for positions in one row.
    """
    n, c, h, w = X.shape
    x, y = (at.reshape(n, -1) for at in pixels(grid, (h, w), align))
    left, top = x.floor().long(), y.floor().long()
    flat = F.pad(X, (1, 1, 1, 1)).reshape(n, c, -1)
    total = 0
    for dy, dx in product((0, 1), (0, 1)):
        weight = (x - left if dx else left + 1 - x) * (y - top if dy else top + 1 - y)
        column, row = left + dx + 1, top + dy + 1
        column = torch.where(column < 0, torch.tensor(0), column)
        column = torch.where(column > w + 1, torch.tensor(w + 1), column)
        row = torch.where(row < 0, torch.tensor(0), row)
        row = torch.where(row > h + 1, torch.tensor(h + 1), row)
        index = (column + row * (w + 2)).unsqueeze(1).expand(-1, c, -1)
        total = total + torch.gather(flat, 2, index) * weight.unsqueeze(1)
    return total.reshape(n, c, grid.shape[1], grid.shape[2])


def clamped(X: Tensor, grid: Tensor, padding: str, align: bool) -> Tensor:
    """Sample as RF-DETR's _bilinear_grid_sample does, with clamped indices.

    For padding with zeros, it multiplies each corner by a mask.
    """
    n, c, h, w = X.shape
    x, y = pixels(grid, (h, w), align)
    left, top = x.floor().long(), y.floor().long()
    right_part, lower_part = (x - left.float()).unsqueeze(1), (y - top.float()).unsqueeze(1)
    flat = X.flatten(2)
    total = 0
    for dy, dx in product((0, 1), (0, 1)):
        column, row = left + dx, top + dy
        index = row.clamp(0, h - 1) * w + column.clamp(0, w - 1)
        values = flat.gather(2, index.flatten(1).unsqueeze(1).expand(n, c, -1)).view(
            n, c, *grid.shape[1:3]
        )
        if padding == "zeros":
            values = values * ((column >= 0) & (column < w) & (row >= 0) & (row < h)).unsqueeze(1)
        weight = (right_part if dx else 1 - right_part) * (lower_part if dy else 1 - lower_part)
        total = total + weight * values
    return total


def deformable_attention(value: Tensor, locations: Tensor) -> Tensor:
    """Compute deformable attention of two levels, 4×6 and 2×3, that samples with :func:`clamped`.

    Args:
        value: (N, heads, channels, 30).
        locations: (N, queries, heads, 2 levels, points, 2), from 0 to 1.
    """
    n, heads, channels, _ = value.shape
    levels = []
    for level, (flat, sizes) in enumerate(
        zip(value.split([24, 6], dim=3), ((4, 6), (2, 3)), strict=True)
    ):
        grid = (2 * locations - 1)[:, :, :, level].transpose(1, 2).flatten(0, 1)
        levels.append(clamped(flat.reshape(n * heads, channels, *sizes), grid, "zeros", False))
    return torch.stack(levels, -2).flatten(-2).sum(-1)


def discrete(X: Tensor, locations: Tensor) -> Tensor:
    """Sample a near pixel as D-FINE's "discrete" attention does, unlike GridSample's nearest."""
    n, _, h, w = X.shape
    at = (locations * torch.tensor([w, h]) + 0.5).to(torch.int64)
    x, y = at[..., 0].clamp(0, w - 1), at[..., 1].clamp(0, h - 1)
    batch = torch.arange(n).reshape(n, 1, 1).expand(x.shape)
    return X[batch, :, y, x].permute(0, 3, 1, 2)


def batched(theta: Tensor, image: Tensor, align: bool) -> Tensor:
    """Return a grid for each theta, of the size of one image."""
    return F.affine_grid(theta, [theta.shape[0], *image.shape[1:]], align)


def affine(theta: Tensor, image: Tensor, align: bool) -> Tensor:
    """Multiply a constant base grid by theta, as ATen's affine_grid does."""
    sizes = tuple(image.shape[2:])
    axes = [torch.linspace(-1, 1, size) * (1 if align else (size - 1) / size) for size in sizes]
    base = torch.stack([*torch.meshgrid(*axes, indexing="ij")[::-1], torch.ones(sizes)], -1)
    base = base.reshape(1, -1, len(sizes) + 1).expand(theta.shape[0], -1, -1)
    return base.bmm(theta.transpose(1, 2)).reshape(-1, *sizes, len(sizes))


def forms() -> Iterator[tuple[str, Form]]:
    """Yield the name and the form of each model."""
    torch.manual_seed(0)
    X, grid = torch.rand(2, 3, 4, 5), torch.rand(2, 6, 7, 2)
    sizes = {"static": ((), ()), "dynamic": ((0, 1, 2, 3), (0, 1, 2))}
    exporters = {"dynamo": True, "torchscript": False}
    paddings, aligns = ("zeros", "border", "reflection"), (0, 1)
    for mode, padding, align, size in product(
        ("bilinear", "nearest", "bicubic"), paddings, aligns, sizes
    ):
        if mode == "bicubic" and (size == "static") == (padding == "border"):
            # Dynamic ones take minutes. In a static one of border, torch 2.13.0 leaves out a value.
            continue
        function = partial(
            F.grid_sample, mode=mode, padding_mode=padding, align_corners=bool(align)
        )
        made = called(function, (X, grid), sizes[size], decompose=True)
        yield f"decomposed/{mode}-{padding}-{align}-{size}-dynamo", made
    for align, size, (exporter, dynamo) in product(aligns, sizes, exporters.items()):
        rest, how = f"{align}-{size}-{exporter}", {"align": bool(align)}
        yield (
            f"padded/bilinear-zeros-{rest}",
            called(partial(padded, **how), (X, grid), sizes[size], dynamo=dynamo),
        )
        for padding in paddings[:2]:
            function = partial(clamped, padding=padding, **how)
            yield (
                f"clamped/bilinear-{padding}-{rest}",
                called(function, (X, grid), sizes[size], dynamo=dynamo),
            )
    inputs = torch.rand(2, 4, 3, 30), torch.rand(2, 5, 4, 2, 3, 2)
    for size, (exporter, dynamo) in product(sizes, exporters.items()):
        batch = ((0,), (0,)) if size == "dynamic" else ((), ())
        made = called(deformable_attention, inputs, batch, dynamo=dynamo)
        yield f"attention/bilinear-zeros-0-{size}-{exporter}", made
    yield "discrete/nearest-border-0-static-dynamo", called(discrete, (X, torch.rand(2, 6, 7, 2)))
    for rank, align, size in product((2, 3), aligns, sizes):
        theta, image = torch.rand(2, rank, rank + 1), torch.rand(2, 3, *(4, 5, 6)[:rank])
        batch = ((0,), ()) if size == "dynamic" else ((), ())
        name, inputs = (
            f"affine_grid/{rank}-{align}-{size}",
            (theta, image[:1] if size == "dynamic" else image),
        )
        yield f"{name}-dynamo", called(partial(batched, align=bool(align)), inputs, batch)
        yield (
            f"{name}-torchscript",
            called(partial(affine, align=bool(align)), inputs, batch, dynamo=False),
        )


if __name__ == "__main__":
    write(__file__, forms())
