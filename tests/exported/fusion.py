"""Write fusion.zip next to this file: `python tests/exported/fusion.py [--into FILE]`.

The models are deformable attention and flow warps in forms that a session and the execution
provider may fuse differently: onnxruntime optimizes a graph before the provider gets it. Their
names are FORM/SIZES-EXPORTER. The script needs onnx, torch and onnxscript, as in requirements.txt,
and downloads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from writing import Form, called, write

LEVELS = ((4, 6), (2, 3), (1, 2))
POINTS = (4, 2, 3)
HEADS = 3
CHANNELS = 4


def dfine(memory: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """Compute attention as two layers of D-FINE's decoder, which share the images of all levels.

    Args:
        memory: (B, S, H·D).
        locations: (B, Q, H, P, 2).
        weights: (B, Q, H, P).
    """
    b, s, _ = memory.shape
    pixels = [height * width for height, width in LEVELS]
    images = memory.reshape(b, s, HEADS, CHANNELS).permute(0, 2, 3, 1).split(pixels, dim=-1)

    def layer(locations: Tensor, weights: Tensor) -> Tensor:
        q = locations.shape[1]
        grids = (2 * locations - 1).permute(0, 2, 1, 3, 4).flatten(0, 1).split(POINTS, dim=-2)
        samples = [
            F.grid_sample(
                image.reshape(b * HEADS, CHANNELS, *lengths), grid, "bilinear", "zeros", False
            )
            for image, lengths, grid in zip(images, LEVELS, grids, strict=True)
        ]
        by = weights.permute(0, 2, 1, 3).reshape(b * HEADS, 1, q, sum(POINTS))
        summed = (torch.concat(samples, -1) * by).sum(-1)
        return summed.reshape(b, HEADS * CHANNELS, q).permute(0, 2, 1)

    return layer(locations, weights) + layer(locations * 0.5, weights.flip(1))


def dcnv3(image: Tensor, offset: Tensor, mask: Tensor) -> Tensor:
    """Compute a deformable convolution as InternImage's dcnv3_core_pytorch does, of size 3.

    Args:
        image: (N, H, W, G·D).
        offset: (N, H, W, G·9·2).
        mask: (N, H, W, G·9).
    """
    image = F.pad(image, [0, 0, 1, 1, 1, 1])
    n, height, width, _ = image.shape
    _, rows, columns, _ = offset.shape
    y, x = torch.meshgrid(torch.arange(rows) + 1.5, torch.arange(columns) + 1.5, indexing="ij")
    centers = torch.stack((x / width, y / height), -1).reshape(1, rows, columns, 1, 2)
    step = torch.arange(-1.0, 2.0)
    x, y = torch.meshgrid(step, step, indexing="ij")
    taps = torch.stack([x / width, y / height], -1).reshape(1, 9, 2).repeat(HEADS, 1, 1)
    scale = torch.tensor([width, height], dtype=torch.float32).repeat(HEADS * 9)
    locations = (centers + taps.reshape(1, 1, 1, HEADS * 9, 2)).repeat(n, 1, 1, 1, 1)
    grids = 2 * (locations.flatten(3, 4) + offset / scale) - 1
    grids = grids.view(n, rows * columns, HEADS, 9, 2).transpose(1, 2).flatten(0, 1)
    images = image.view(n, height * width, HEADS * CHANNELS).transpose(1, 2)
    images = images.reshape(n * HEADS, CHANNELS, height, width)
    samples = F.grid_sample(images, grids, "bilinear", "zeros", False)
    by = mask.view(n, rows * columns, HEADS, 9).transpose(1, 2)
    by = by.reshape(n * HEADS, 1, rows * columns, 9)
    summed = (samples * by).sum(-1).view(n, HEADS * CHANNELS, rows * columns)
    return summed.transpose(1, 2).reshape(n, rows, columns, -1).contiguous()


def pixel_grid(flow: Tensor) -> Tensor:
    """Return the coordinates (1, 2, H, W) of the pixels of a flow, y first."""
    axes = [torch.arange(length) for length in flow.shape[2:]]
    return torch.stack(torch.meshgrid(axes, indexing="ij"))[None].float()


def voxelmorph(X: Tensor, flow: Tensor) -> Tensor:
    """Warp as VoxelMorph does, which normalizes the coordinates in place."""
    at = pixel_grid(flow) + flow
    for axis, length in enumerate(flow.shape[2:]):
        at[:, axis] = 2 * (at[:, axis] / (length - 1) - 0.5)
    return F.grid_sample(X, at.permute(0, 2, 3, 1)[..., [1, 0]], align_corners=True)


def pwcnet(X: Tensor, flow: Tensor) -> Tensor:
    """Warp as PWC-Net does, which normalizes the coordinates in place."""
    height, width = flow.shape[2:]
    at = pixel_grid(flow).flip(1).repeat(flow.shape[0], 1, 1, 1) + flow
    at[:, 0] = 2.0 * at[:, 0].clone() / max(width - 1, 1) - 1.0
    at[:, 1] = 2.0 * at[:, 1].clone() / max(height - 1, 1) - 1.0
    return F.grid_sample(X, at.permute(0, 2, 3, 1), align_corners=True)


def rife(X: Tensor, flow: Tensor) -> Tensor:
    """Warp as RIFE does: a normalized base grid, and a normalized flow."""
    b, _, height, width = flow.shape
    x = torch.linspace(-1.0, 1.0, width).view(1, 1, 1, width).expand(b, -1, height, -1)
    y = torch.linspace(-1.0, 1.0, height).view(1, 1, height, 1).expand(b, -1, -1, width)
    scaled = [flow[:, :1] / ((width - 1.0) / 2.0), flow[:, 1:] / ((height - 1.0) / 2.0)]
    grid = (torch.cat([x, y], 1) + torch.cat(scaled, 1)).permute(0, 2, 3, 1)
    return F.grid_sample(X, grid, "bilinear", "border", align_corners=True)


def basicvsr(X: Tensor, flow: Tensor) -> Tensor:
    """Warp as mmediting's flow_warp does: two coordinates that are stacked."""
    height, width = flow.shape[2:]
    at = (pixel_grid(flow).flip(1) + flow).permute(0, 2, 3, 1)
    x = 2.0 * at[..., 0] / max(width - 1, 1) - 1.0
    y = 2.0 * at[..., 1] / max(height - 1, 1) - 1.0
    return F.grid_sample(X, torch.stack((x, y), dim=3), align_corners=True)


Shape = tuple[int, ...]
WARP: tuple[Shape, ...] = ((2, 3, 6, 7), (2, 2, 6, 7))
#: The name of a form -> its function, and the shapes of its inputs.
FORMS: dict[str, tuple[Callable[..., Tensor], tuple[Shape, ...]]] = {
    "dfine": (dfine, ((2, 32, HEADS * CHANNELS), (2, 5, HEADS, 9, 2), (2, 5, HEADS, 9))),
    "dcnv3": (dcnv3, ((2, 5, 6, HEADS * CHANNELS), (2, 5, 6, HEADS * 18), (2, 5, 6, HEADS * 9))),
    "voxelmorph": (voxelmorph, WARP),
    "pwcnet": (pwcnet, WARP),
    "rife": (rife, WARP),
    "basicvsr": (basicvsr, WARP),
}
#: Whether the batch is dynamic, by name.
SIZES = {"static": False, "batch": True}


def forms() -> Iterator[tuple[str, Form]]:
    """Yield the name and the form of each model."""
    for (name, (function, shapes)), (size, is_dynamic), dynamo in product(
        FORMS.items(), SIZES.items(), (False, True)
    ):
        axes = [(0,) if is_dynamic else ()] * len(shapes)
        form = called(function, [*map(torch.rand, shapes)], axes, dynamo=dynamo, opset=20)
        yield f"{name}/{size}-{'dynamo' if dynamo else 'torchscript'}", form


if __name__ == "__main__":
    write(__file__, forms())
