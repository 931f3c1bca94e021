"""Write the exported models: `python tests/exported/export.py [--into FOLDER] [NAME ...]`.

Each model is a published architecture of toy size, with seeded random weights. large.py has
models of real size. The files of a model are NAME.onnx and NAME.npz, with inputs (`in.*`) and
PyTorch's outputs (`out.*`). The script needs onnx and requirements.txt, and downloads nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxscript
import torch
import torch.nn.functional as F  # noqa: N812
import transformers as tr
from kornia.geometry import transform
from onnxscript import opset16 as op16
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from transformers.models.grounding_dino import modeling_grounding_dino as grounding
from writing import Call, Form, exported


def conv(c_in: int, c_out: int, *, stride: int = 1, rank: int = 2) -> nn.Sequential:
    return nn.Sequential(
        (nn.Conv2d if rank == 2 else nn.Conv3d)(c_in, c_out, 3, stride, 1), nn.LeakyReLU(0.1)
    )


def perturbed(module: nn.Module, std: float = 0.05) -> nn.Module:
    """Add noise to every weight, because a layer of zeros would hide its inputs."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(std * torch.randn_like(parameter))
    return module.eval()


def pixel_grid(height: int, width: int) -> Tensor:
    """Return pixel coordinates (1, 2, H, W), x first."""
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack((xs, ys)).float()[None]


def sample_at(x: Tensor, xy: Tensor, **options: Any) -> Tensor:
    """Sample `x` at pixel coordinates `xy` (N, 2, H, W)."""
    unit = [2 * xy[:, i] / (x.shape[3 - i] - 1) - 1 for i in range(2)]
    return F.grid_sample(x, torch.stack(unit, -1), align_corners=True, **options)


def kornia_warp_affine() -> Form:
    """Export `kornia.geometry.warp_affine`: an AffineGrid of a computed matrix."""
    theta = torch.tensor(
        [[[0.9, -0.4, 2.0], [0.3, 1.1, -3.0]], [[1.2, 0.1, -4.0], [-0.2, 0.8, 5.0]]]
    )
    warp = Call(
        partial(transform.warp_affine, dsize=(13, 17), padding_mode="border", align_corners=False)
    )
    return Form(warp, {"X": torch.rand(2, 3, 12, 15), "M": theta}, dynamo=False)


def kornia_elastic_transform2d() -> Form:
    how = {
        "kernel_size": (7, 7),
        "sigma": (2.0, 2.0),
        "alpha": (0.5, 0.7),
        "mode": "bicubic",
        "padding_mode": "border",
    }
    inputs = {"X": torch.rand(1, 2, 12, 15), "noise": torch.rand(1, 2, 12, 15) * 2 - 1}
    return Form(Call(partial(transform.elastic_transform2d, **how)), inputs, opset=18)


def kornia_warp_perspective(dtype: torch.dtype = torch.float32) -> Form:
    matrix = torch.tensor([[[0.8, -0.2, 3.0], [0.3, 1.1, -2.0], [0.01, -0.004, 1.0]]])
    warp = Call(
        partial(
            transform.warp_perspective, dsize=(14, 18), mode="bicubic", padding_mode="reflection"
        )
    )
    return Form(
        warp,
        {"X": torch.rand(1, 3, 16, 15).to(dtype), "M": matrix.to(dtype)},
        opset=16,
        dynamo=False,
    )


def kornia_remap() -> Form:
    def inputs(size: tuple[int, int], out: tuple[int, int]) -> dict[str, Tensor]:
        xs, ys = (torch.rand(2, *out) * (length + 3) - 2 for length in reversed(size))
        return {"X": torch.rand(2, 2, *size), "map_x": xs, "map_y": ys}

    remap = Call(partial(transform.remap, mode="nearest", align_corners=True))
    H, W, h, w = torch.export.dims("H", "W", "h", "w")
    dynamic = {"dynamic_shapes": ({2: H, 3: W}, {1: h, 2: w}, {1: h, 2: w})}
    return Form(
        remap, inputs((9, 12), (7, 8)), opset=22, dynamic=dynamic, other=inputs((14, 11), (5, 13))
    )


def kornia_homography_warp3d() -> Form:
    matrix = torch.eye(4)[None] + 0.15 * torch.randn(1, 4, 4)
    warp = Call(partial(transform.homography_warp3d, dsize=(5, 6, 7), padding_mode="reflection"))
    return Form(warp, {"X": torch.rand(1, 2, 6, 7, 8), "M": matrix})


class SpatialTransformer(nn.Module):
    """Jaderberg et al., 2015."""

    def __init__(self, rank: int = 2, mode: str = "bilinear", padding_mode: str = "zeros") -> None:
        super().__init__()
        self.rank, self.mode, self.padding_mode = rank, mode, padding_mode
        self.features = nn.Sequential(
            conv(1, 4, stride=2, rank=rank), conv(4, 4, stride=2, rank=rank)
        )
        self.theta = nn.Linear(4, rank * (rank + 1))
        self.classify = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        axes = tuple(range(2, 2 + self.rank))
        eye = torch.eye(self.rank, self.rank + 1)
        theta = eye + 0.5 * self.theta(self.features(x).mean(axes)).reshape(
            -1, self.rank, self.rank + 1
        )
        grid = F.affine_grid(theta, x.shape, align_corners=False)
        y = F.grid_sample(
            x, grid, mode=self.mode, padding_mode=self.padding_mode, align_corners=False
        )
        return y, self.classify(self.features(y).mean(axes))


def stn() -> Form:
    module = perturbed(SpatialTransformer(), 0.3)
    dynamic = {"dynamic_axes": {"X": {0: "N", 2: "H", 3: "W"}}}
    inputs = {"X": torch.rand(1, 1, 12, 12)}
    other = {"X": torch.rand(3, 1, 14, 11)}
    return Form(module, inputs, ("Y", "logits"), dynamo=False, dynamic=dynamic, other=other)


def stn_3d() -> Form:
    module = perturbed(SpatialTransformer(3, "nearest", "border"), 0.3)
    return Form(module, {"X": torch.rand(2, 1, 5, 6, 7)}, ("Y", "logits"), dynamo=False)


def stn_bicubic() -> Form:
    """Export affine_grid with the dynamo exporter, which decomposes it into basic operators."""
    module = perturbed(SpatialTransformer(2, "bicubic"), 0.3)
    return Form(module, {"X": torch.rand(2, 1, 11, 13)}, ("Y", "logits"), opset=22)


class InverseCompositional(nn.Module):
    """The inverse compositional spatial transformer (Lin and Lucey, 2017).

    One predictor is applied `steps` times.
    """

    def __init__(self) -> None:
        super().__init__()
        self.predict = nn.Sequential(
            conv(1, 4, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)
        )

    def forward(self, x: Tensor, steps: int) -> Tensor:
        theta = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
        y = x
        for _ in range(steps):
            p = 0.3 * self.predict(y)
            top = torch.stack((1 + p[:, 0], -p[:, 1], p[:, 2]), 1)
            bottom = torch.stack((p[:, 1], 1 + p[:, 0], p[:, 3]), 1)
            last = torch.tensor([[0.0, 0.0, 1.0]])
            theta = torch.matmul(theta, torch.stack((top, bottom, last), 1))
            grid = F.affine_grid(theta, [1, 1, 12, 14], align_corners=True)
            y = F.grid_sample(
                x, grid, mode="bilinear", padding_mode="reflection", align_corners=True
            )
        return y


def ic_stn_loop() -> Form:
    """Export a scripted loop: AffineGrid and GridSample in the body of a Loop."""
    module = torch.jit.script(perturbed(InverseCompositional(), 0.3))
    return Form(module, {"X": torch.rand(1, 1, 12, 14), "steps": torch.tensor(3)}, dynamo=False)


class Gated(nn.Module):
    """A module that warps with bilinear or nearest, depending on the mean of the image."""

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        def smooth(x: Tensor, grid: Tensor) -> Tensor:
            return F.grid_sample(x, grid, align_corners=True)

        def crisp(x: Tensor, grid: Tensor) -> Tensor:
            return F.grid_sample(
                x, grid, mode="nearest", padding_mode="border", align_corners=False
            )

        return torch.cond(x.mean() > 0, smooth, crisp, (x, grid))


# From opset 20 on, torch 2.13 writes "bilinear" in subgraphs, which onnxruntime refuses. At opset
# 18, the op is that of opset 16.
def cond_if() -> Form:
    """Export `torch.cond`: a GridSample in each branch of an If."""
    return Form(
        Gated(),
        {"X": torch.randn(1, 2, 7, 8), "grid": torch.rand(1, 5, 6, 2) * 2.6 - 1.3},
        opset=18,
    )


class VoxelMorph(nn.Module):
    """VoxelMorph with a diffeomorphic field (Dalca et al., 2018).

    It consists of a U-Net, scaling and squaring, and a warp.
    """

    def __init__(self, steps: int = 3) -> None:
        super().__init__()
        self.steps = steps
        self.down = conv(2, 6, stride=2, rank=3)
        self.inner = conv(6, 6, rank=3)
        self.up = conv(8, 6, rank=3)
        self.velocity = nn.Conv3d(6, 3, 3, padding=1)

    @staticmethod
    def warp(x: Tensor, flow: Tensor, **options: Any) -> Tensor:
        lengths = x.shape[2:]
        axes = torch.meshgrid(*(torch.arange(length) for length in lengths), indexing="ij")
        where = torch.stack(axes).float() + flow
        unit = [2 * where[:, i] / (length - 1) - 1 for i, length in enumerate(lengths)]
        return F.grid_sample(x, torch.stack(unit[::-1], -1), align_corners=True, **options)

    def forward(
        self, moving: Tensor, fixed: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        pair = torch.cat((moving, fixed), 1)
        low = self.inner(self.down(pair))
        high = self.up(torch.cat((F.interpolate(low, size=list(pair.shape[2:])), pair), 1))
        flow = self.velocity(high) / 2**self.steps
        for _ in range(self.steps):
            flow = flow + self.warp(flow, flow)
        return (
            self.warp(moving, flow),
            self.warp(labels, flow, mode="nearest", padding_mode="border"),
            flow,
        )


# Five GridSample nodes of volumes. At opset 18, whose GridSample is defined for images only, dynamo
# writes them nevertheless.
def voxelmorph(opset: int = 20, dynamo: bool = False) -> Form:
    inputs = {name: torch.rand(1, 1, 8, 6, 7) for name in ("moving", "fixed")}
    inputs["labels"] = torch.randint(0, 4, (1, 1, 8, 6, 7)).float()
    outputs = ("moved", "moved_labels", "flow")
    return Form(perturbed(VoxelMorph(), 0.2), inputs, outputs, opset, dynamo)


class PWCWarp(nn.Module):
    """One level of PWC-Net (Sun et al., 2018).

    It warps by the upsampled flow, masks, correlates and refines.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = conv(3, 6, stride=2)
        self.refine = nn.Conv2d(9 + 6 + 2, 2, 3, padding=1)

    def forward(self, first: Tensor, second: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
        f1, f2 = self.features(first), self.features(second)
        where = pixel_grid(f2.shape[2], f2.shape[3]) + flow
        mask = (sample_at(torch.ones_like(f2), where) > 0.999).float()
        warped = sample_at(f2, where) * mask
        padded = F.pad(warped, (1, 1, 1, 1))
        height, width = f1.shape[2], f1.shape[3]
        shifts = [padded[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)]
        cost = torch.stack([(f1 * shifted).mean(1) for shifted in shifts], 1)
        return flow + self.refine(torch.cat((cost, f1, flow), 1)), warped


def pwcnet() -> Form:
    def inputs(height: int, width: int) -> dict[str, Tensor]:
        images = {name: torch.rand(1, 3, height, width) for name in ("first", "second")}
        return {**images, "flow": 2 * torch.randn(1, 2, height // 2, width // 2)}

    axes = {"first": {2: "H", 3: "W"}, "second": {2: "H", 3: "W"}, "flow": {2: "h", 3: "w"}}
    return Form(
        perturbed(PWCWarp()),
        inputs(16, 20),
        outputs=("flow_out", "warped"),
        opset=16,
        dynamo=False,
        dynamic={"dynamic_axes": axes},
        other=inputs(22, 14),
    )


class RAFT(nn.Module):
    """RAFT (Teed and Deng, 2020).

    It has a pyramid of all-pairs correlations, a lookup around the flow, and a recurrent update.
    """

    def __init__(self, levels: int = 2, radius: int = 1) -> None:
        super().__init__()
        self.levels, self.radius = levels, radius
        self.features = nn.Sequential(conv(3, 8, stride=2), conv(8, 8, stride=2))
        self.update = conv(levels * (2 * radius + 1) ** 2 + 2 + 8, 8)
        self.head = nn.Conv2d(8, 2, 3, padding=1)

    def pyramid(self, f1: Tensor, f2: Tensor) -> list[Tensor]:
        n, c, h, w = f1.shape
        volume = (
            torch.einsum("ncp,nchw->nphw", f1.flatten(2), f2).reshape(n * h * w, 1, h, w) / c**0.5
        )
        return [volume, *(F.avg_pool2d(volume, 2**level) for level in range(1, self.levels))]

    def lookup(self, volumes: list[Tensor], where: Tensor) -> Tensor:
        n, _, h, w = where.shape
        span = 2 * self.radius + 1
        window = pixel_grid(span, span) - self.radius
        centers = where.permute(0, 2, 3, 1).reshape(n * h * w, 2, 1, 1)
        found = [sample_at(v, centers / 2**level + window) for level, v in enumerate(volumes)]
        return torch.cat([f.reshape(n, h, w, span**2) for f in found], -1).permute(0, 3, 1, 2)

    def step(self, hidden: Tensor, flow: Tensor, volumes: list[Tensor]) -> tuple[Tensor, Tensor]:
        where = pixel_grid(flow.shape[2], flow.shape[3]) + flow
        hidden = self.update(torch.cat((self.lookup(volumes, where), flow, hidden), 1)).tanh()
        return hidden, flow + self.head(hidden)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        hidden, f2 = self.features(first), self.features(second)
        volumes = self.pyramid(hidden, f2)
        flow = torch.zeros_like(hidden[:, :2])
        for _ in range(2):
            hidden, flow = self.step(hidden, flow, volumes)
        return flow


class ScannedRAFT(RAFT):
    """RAFT with updates in a scan over a damping schedule: the lookup is in the body of a Scan."""

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        hidden, f2 = self.features(first), self.features(second)
        volumes = self.pyramid(hidden, f2)
        start = [hidden, torch.zeros(hidden.shape[0], 2, *hidden.shape[2:])]

        def body(state: list[Tensor], damping: Tensor) -> tuple[list[Tensor], Tensor]:
            after, flow = self.step(state[0], state[1], volumes)
            flow = flow * damping
            return [after, flow], flow.clone()

        _, flows = scan(body, start, torch.tensor([0.5, 0.75, 1.0]))
        return flows


def raft(kind: type[RAFT] = RAFT, output: str = "flow", opset: int = 22) -> Form:
    module = perturbed(kind(), 0.1)
    return Form(
        module, {name: torch.rand(1, 3, 32, 24) for name in ("first", "second")}, (output,), opset
    )


class FirstOrderMotion(nn.Module):
    """The first order motion model (Siarohin et al., 2019).

    It computes sparse motions from key points, dense motion, and deformed features.
    """

    def __init__(self, points: int = 3) -> None:
        super().__init__()
        self.points = points
        self.encode = conv(3, 6, stride=2)
        self.decode = nn.Conv2d(6, 3, 3, padding=1)
        self.dense = nn.Conv2d((points + 1) * 3, points + 2, 3, padding=1)

    def forward(
        self, source: Tensor, kp_source: Tensor, kp_driving: Tensor
    ) -> tuple[Tensor, Tensor]:
        n, c, h, w = source.shape
        k = self.points + 1
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        identity = torch.stack((xs, ys), -1)[None, None]
        moved = identity - kp_driving[:, :, None, None] + kp_source[:, :, None, None]
        sparse = torch.cat((identity.expand(n, 1, h, w, 2), moved), 1)
        copies = source[:, None].expand(n, k, c, h, w).reshape(n * k, c, h, w)
        deformed = F.grid_sample(copies, sparse.reshape(n * k, h, w, 2), align_corners=False)
        out = self.dense(deformed.reshape(n, k * c, h, w))
        mask, occlusion = out[:, :k].softmax(1), out[:, k:].sigmoid()
        motion = (sparse.permute(0, 1, 4, 2, 3) * mask[:, :, None]).sum(1)
        features = self.encode(source)
        half = [features.shape[2], features.shape[3]]
        motion = F.interpolate(motion, size=half, mode="bilinear", align_corners=False).permute(
            0, 2, 3, 1
        )
        occlusion = F.interpolate(occlusion, size=half, mode="bilinear", align_corners=False)
        warped = (
            F.grid_sample(features, motion, padding_mode="border", align_corners=False) * occlusion
        )
        return self.decode(F.interpolate(warped, scale_factor=2.0)).sigmoid(), motion


def first_order_motion() -> Form:
    """Export a face animation, which moves images and feature maps."""
    points = {name: torch.rand(1, 3, 2) * 1.6 - 0.8 for name in ("kp_source", "kp_driving")}
    module = perturbed(FirstOrderMotion(), 0.1)
    return Form(
        module,
        {"source": torch.rand(1, 3, 16, 18), **points},
        ("prediction", "motion"),
        16,
        dynamo=False,
    )


class LIIF(nn.Module):
    """The local implicit image function (Chen et al., 2021), with a local ensemble."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.encode = conv(3, channels)
        self.mlp = nn.Sequential(nn.Linear(channels + 2, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor, where: Tensor) -> Tensor:
        features = self.encode(x)
        n, _, h, w = features.shape
        ys, xs = ((torch.arange(length) + 0.5) * 2 / length - 1 for length in (h, w))
        centers = torch.stack(torch.meshgrid(ys, xs, indexing="ij"))[None].expand(n, 2, h, w)
        size = torch.tensor([h, w]).float()
        answers, areas = [], []
        for dy in (-1, 1):
            for dx in (-1, 1):
                at = (where + torch.tensor([dy, dx]) / size + 1e-6).clamp(-1 + 1e-6, 1 - 1e-6)
                grid = at.flip(-1)[:, None]
                near = F.grid_sample(features, grid, mode="nearest", align_corners=False)[
                    :, :, 0
                ].mT
                center = F.grid_sample(centers, grid, mode="nearest", align_corners=False)[
                    :, :, 0
                ].mT
                offset = (where - center) * size
                answers.append(self.mlp(torch.cat((near, offset), -1)))
                areas.append(offset.prod(-1, keepdim=True).abs() + 1e-9)
        total = areas[0] + areas[1] + areas[2] + areas[3]
        blended = (
            sum(answer * area for answer, area in zip(answers, areas[::-1], strict=True)) / total
        )
        low = F.grid_sample(x, where.flip(-1)[:, None], padding_mode="border", align_corners=False)[
            :, :, 0
        ].mT
        return blended + low


def liif() -> Form:
    def inputs(points: int) -> dict[str, Tensor]:
        return {"X": torch.rand(1, 3, 9, 10), "where": torch.rand(1, points, 2) * 2 - 1}

    dynamic = {"dynamic_shapes": ({}, {1: torch.export.Dim("points")})}
    return Form(perturbed(LIIF(), 0.2), inputs(12), ("rgb",), dynamic=dynamic, other=inputs(31))


class TriPlane(nn.Module):
    """The tri-plane field of EG3D (Chan et al., 2022), with an occupancy volume."""

    def __init__(self) -> None:
        super().__init__()
        self.planes = nn.Parameter(torch.randn((3, 4, 8, 8)))
        self.occupancy = nn.Parameter(torch.randn((1, 1, 5, 5, 5)))
        self.decode = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 4))

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        pairs = torch.stack((points[:, [0, 1]], points[:, [0, 2]], points[:, [2, 1]]))
        sampled = F.grid_sample(
            self.planes, pairs[:, None], padding_mode="zeros", align_corners=False
        )
        at = points[None, None, None]
        density = F.grid_sample(self.occupancy, at, padding_mode="border", align_corners=True)
        out = self.decode(sampled[:, :, 0].mean(0).T)
        return out[:, :3].sigmoid(), out[:, 3] * density.flatten().relu()


def triplane() -> Form:
    return Form(
        perturbed(TriPlane()),
        {"points": torch.rand(40, 3) * 2.4 - 1.2},
        ("rgb", "density"),
        opset=22,
    )


@onnxscript.script(onnxscript.values.Opset("example.warp", 1), default_opset=op16)
def inverse_warp(x, xy, size):  # type: ignore[no-untyped-def]  # ONNX Script, typed by ONNX
    """`x` at pixel coordinates `xy` (N, H, W, 2), with `size` (2,) = (W - 1, H - 1)."""
    grid = xy * 2.0 / size - 1.0
    return op16.GridSample(x, grid, mode="bilinear", padding_mode="border", align_corners=1)


class InverseWarp(torch.autograd.Function):
    """`inverse_warp` in PyTorch, which is exported as a call of the function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, xy: Tensor, size: Tensor) -> Tensor:
        return F.grid_sample(x, xy * 2 / size - 1, padding_mode="border", align_corners=True)

    @staticmethod
    def symbolic(g: Any, x: Any, xy: Any, size: Any) -> Any:
        return g.onnxscript_op(inverse_warp, x, xy, size)


class SfMLearner(nn.Module):
    """View synthesis from depth and pose (SfMLearner, Zhou et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Sequential(conv(3, 6), nn.Conv2d(6, 1, 3, padding=1), nn.Softplus())

    def forward(self, target: Tensor, source: Tensor, pose: Tensor) -> tuple[Tensor, Tensor]:
        n, _, h, w = target.shape
        focal, center = float(w), torch.tensor([(w - 1) / 2, (h - 1) / 2])
        rays = (pixel_grid(h, w).permute(0, 2, 3, 1) - center) / focal
        depth = self.depth(target)[:, 0, :, :, None] + 0.5
        points = torch.cat((rays.expand(n, h, w, 2), torch.ones(n, h, w, 1)), -1) * depth
        moved = points @ pose[:, None, :, :3].transpose(2, 3) + pose[:, None, None, :, 3]
        xy = moved[..., :2] / moved[..., 2:].clamp(min=0.1) * focal + center
        size = torch.tensor([w - 1.0, h - 1.0])
        return InverseWarp.apply(source, xy, size), InverseWarp.apply(
            depth[..., 0][:, None], xy, size
        )


def sfmlearner_function() -> Form:
    """Export a GridSample in a model-local function that the model calls twice."""
    pose = torch.eye(3, 4)[None] + 0.1 * torch.randn(1, 3, 4)
    inputs = {"target": torch.rand(1, 3, 12, 14), "source": torch.rand(1, 3, 12, 14), "pose": pose}
    return Form(perturbed(SfMLearner()), inputs, ("synthesised", "depth"), 16, dynamo=False)


BOXES = ("logits", "pred_boxes")
MASKS = ("class_queries_logits", "masks_queries_logits")
RESNET: dict[str, Any] = {
    "embedding_size": 8,
    "hidden_sizes": [8, 8, 8, 16],
    "depths": [1] * 4,
    "layer_type": "basic",
}
RESNET["out_features"] = ["stage2", "stage3", "stage4"]
SWIN: dict[str, Any] = {
    "image_size": 64,
    "embed_dim": 4,
    "depths": [1] * 4,
    "num_heads": [1] * 4,
    "window_size": 2,
}
#: The sizes of every detector. Some of them are read by some detectors only.
DETR: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_n_points": 2,
    "decoder_n_points": 2,
    "num_queries": 5,
    "num_feature_levels": 3,
    "num_labels": 3,
}


class Pick(nn.Module):
    """The named outputs of a transformers model, as a tuple."""

    def __init__(self, model: nn.Module, outputs: Sequence[str]) -> None:
        super().__init__()
        self.model, self.outputs = model, outputs

    def forward(self, pixel_values: Tensor, input_ids: Tensor | None = None) -> tuple[Tensor, ...]:
        answer = self.model(pixel_values, **({} if input_ids is None else {"input_ids": input_ids}))
        return tuple(getattr(answer, name) for name in self.outputs)


def transformer(
    model: nn.Module, outputs: Sequence[str], words: Tensor | None = None, **how: Any
) -> Form:
    """Return the form of a detector of toy size."""
    inputs = {"pixel_values": torch.randn(1, 3, 64, 64)}
    if words is not None:
        inputs["input_ids"] = words
    # The noise makes scores differ, so that no rounding error changes which queries are chosen.
    return Form(Pick(perturbed(model, 0.2), outputs), inputs, outputs, **how)


def deformable_detr() -> Form:
    """Export Deformable DETR (Zhu et al., 2021)."""
    config = tr.DeformableDetrConfig(backbone_config=tr.ResNetConfig(**RESNET), **DETR)
    return transformer(tr.DeformableDetrForObjectDetection(config), BOXES)


def mask2former() -> Form:
    """Export Mask2Former (Cheng et al., 2022) with a Swin backbone."""
    swin = tr.SwinConfig(**SWIN, out_features=["stage1", "stage2", "stage3", "stage4"])
    sizes = dict.fromkeys(("feature_size", "mask_feature_size", "hidden_dim"), 32)
    sizes |= dict.fromkeys(("encoder_feedforward_dim", "dim_feedforward"), 16) | {
        "num_attention_heads": 2
    }
    counts = {"encoder_layers": 1, "decoder_layers": 2, "num_queries": 5, "num_labels": 3}
    config = tr.Mask2FormerConfig(backbone_config=swin, **sizes, **counts)
    return transformer(tr.Mask2FormerForUniversalSegmentation(config), MASKS, opset=22)


def grounding_dino() -> Form:
    """Export Grounding DINO (Liu et al., 2023), with Swin and BERT.

    The exporter writes its grids, but not its images, in float64.
    """
    text = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = tr.GroundingDinoConfig(
        backbone_config=tr.SwinConfig(**SWIN, out_features=["stage2", "stage3", "stage4"]),
        text_config=tr.BertConfig(**text, intermediate_size=16, max_position_embeddings=32),
        max_text_len=16,
        **DETR,
    )
    words = torch.tensor([[5, 17, 23, 40, 9]])
    # The masks of phrases depend on the text alone. They are replaced by constants, because neither
    # exporter supports isin and cummax.
    masks = grounding.generate_masks_with_special_tokens_and_transfer_map(
        words, torch.tensor([5, 40, 9])
    )
    grounding.generate_masks_with_special_tokens_and_transfer_map = lambda *_, **__: masks
    return transformer(
        tr.GroundingDinoForObjectDetection(config), BOXES, words, dynamo=False, fold=True
    )


def rt_detr_v2() -> Form:
    """Export RT-DETRv2 (Lv et al., 2024)."""
    resnet = tr.RTDetrResNetConfig(**RESNET)
    sizes = {"d_model": 16, "hidden_expansion": 0.5, "num_denoising": 0}
    channels = {
        "encoder_hidden_dim": 16,
        "encoder_in_channels": [8, 8, 16],
        "decoder_in_channels": [16, 16, 16],
    }
    config = tr.RTDetrV2Config(backbone_config=resnet, **DETR | channels | sizes)
    return transformer(
        tr.RTDetrV2ForObjectDetection(config), BOXES, opset=16, dynamo=False, fold=True
    )


STORED = (
    kornia_warp_affine,
    kornia_elastic_transform2d,
    kornia_warp_perspective,
    kornia_remap,
    kornia_homography_warp3d,
    stn,
    stn_3d,
    stn_bicubic,
    ic_stn_loop,
    cond_if,
    voxelmorph,
    pwcnet,
    raft,
    first_order_motion,
    liif,
    triplane,
    sfmlearner_function,
    deformable_detr,
    mask2former,
    grounding_dino,
    rt_detr_v2,
)
MODELS: dict[str, Callable[[], Form]] = {build.__name__: build for build in STORED}
MODELS["kornia_warp_perspective_float64"] = partial(kornia_warp_perspective, torch.float64)
MODELS |= {
    "voxelmorph_opset18": partial(voxelmorph, 18, dynamo=True),
    "raft_scan": partial(raft, ScannedRAFT, "flows", 18),
}


def save(name: str, form: Form, folder: Path) -> None:
    """Write a model, its inputs and its outputs to ``folder``."""
    form.module.eval()
    onnx.save(exported(form), folder / f"{name}.onnx")
    inputs = form.other or form.inputs
    with torch.no_grad():
        answer = form.module(*inputs.values())
    answers = (answer,) if isinstance(answer, Tensor) else answer
    arrays = {f"in.{key}": value.numpy() for key, value in inputs.items()}
    arrays |= {
        f"out.{key}": value.numpy() for key, value in zip(form.outputs, answers, strict=True)
    }
    np.savez_compressed(folder / f"{name}.npz", **arrays)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = f"of {', '.join(MODELS)} (default: all)"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    folder = Path(__file__).parent
    into_help = "the folder to write to (default: that of this file)"
    parser.add_argument("--into", type=Path, default=folder, metavar="FOLDER", help=into_help)
    arguments = parser.parse_args()
    if unknown := {*arguments.names} - {*MODELS}:
        parser.error(f"no such model: {', '.join(unknown)}")
    for name in arguments.names or MODELS:
        torch.manual_seed(0)
        save(name, MODELS[name](), arguments.into)
