"""Write whole models of real size: `python tests/exported/large.py [--into FOLDER] [NAME ...]`.

They have the layers, widths and picture sizes of public releases, and seeded random weights. The
files are too large to be stored. As in export.py, a model is NAME.onnx and NAME.npz, and the script
downloads nothing. `python -m tests.benchmarks.models` measures the models.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
import transformers as tr
from export import BOXES, MASKS, Pick, save
from torch import Tensor, nn
from writing import Form


def detector(model: nn.Module, outputs: Sequence[str], *size: int, **how: Any) -> Form:
    """Return the form of a detector with its initial weights, for a picture (H, W)."""
    inputs = {"pixel_values": torch.randn(1, 3, *size)}
    return Form(Pick(model, outputs), inputs, outputs, **how)


def rt_detr_v2_r50() -> Form:
    """RT-DETRv2 (Lv et al., 2024) with a ResNet-50."""
    model = tr.RTDetrV2ForObjectDetection(tr.RTDetrV2Config(num_denoising=0, num_labels=80))
    return detector(model, BOXES, 640, 640, opset=16, dynamo=False, fold=True)


def deformable_detr_r50() -> Form:
    """Deformable DETR (Zhu et al., 2021) with a ResNet-50: 17,821 pixels in four levels."""
    resnet = tr.ResNetConfig(out_features=["stage2", "stage3", "stage4"])
    config = tr.DeformableDetrConfig(backbone_config=resnet, num_labels=91)
    return detector(tr.DeformableDetrForObjectDetection(config), BOXES, 800, 1066)


def mask2former_swin_t() -> Form:
    """Mask2Former (Cheng et al., 2022) with a Swin-T."""
    swin = tr.SwinConfig(image_size=224, out_features=["stage1", "stage2", "stage3", "stage4"])
    config = tr.Mask2FormerConfig(backbone_config=swin, num_labels=133)
    model = tr.Mask2FormerForUniversalSegmentation(config)
    model.set_attn_implementation("eager")  # the exporter does not support the default
    return detector(model, MASKS, 512, 512)


class Residual(nn.Module):
    """Two convolutions with norms, and a shortcut."""

    def __init__(self, c_in: int, c_out: int, stride: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(c_in, c_out, 3, stride, 1),
            norm(c_out),
            nn.ReLU(),
            nn.Conv2d(c_out, c_out, 3, padding=1),
            norm(c_out),
            nn.ReLU(),
        )
        self.shortcut = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride), norm(c_out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.convs(x))


def raft_encoder(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """Return RAFT's encoder of 256 channels at an eighth of the size."""
    stages = ((64, 64, 1), (64, 96, 2), (96, 128, 2))
    blocks = [
        Residual(c_in if first else c_out, c_out, stride if first else 1, norm)
        for c_in, c_out, stride in stages
        for first in (True, False)
    ]
    stem = (nn.Conv2d(3, 64, 7, 2, 3), norm(64), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.Conv2d(128, 256, 1))


class SeparableGRU(nn.Module):
    """A convolutional GRU that is applied along rows, then along columns."""

    def __init__(self, hidden: int = 128, inputs: int = 256) -> None:
        super().__init__()
        kernels = (((1, 5), (0, 2)), ((5, 1), (2, 0)))
        self.update, self.reset, self.candidate = (
            nn.ModuleList(
                nn.Conv2d(hidden + inputs, hidden, lengths, padding=padding)
                for lengths, padding in kernels
            )
            for _ in range(3)
        )

    def forward(self, hidden: Tensor, x: Tensor) -> Tensor:
        for update, reset, candidate in zip(self.update, self.reset, self.candidate, strict=True):
            both = torch.cat((hidden, x), 1)
            share = update(both).sigmoid()
            kept = reset(both).sigmoid() * hidden
            hidden = (1 - share) * hidden + share * candidate(torch.cat((kept, x), 1)).tanh()
        return hidden


class RAFT(nn.Module):
    """RAFT (Teed and Deng, 2020), the large model."""

    def __init__(self, steps: int, levels: int = 4, radius: int = 4) -> None:
        super().__init__()
        self.steps = steps
        self.levels = levels
        self.radius = radius
        self.features = raft_encoder(nn.InstanceNorm2d)
        self.context = raft_encoder(nn.BatchNorm2d)
        found = levels * (2 * radius + 1) ** 2
        self.correlation = nn.Sequential(
            nn.Conv2d(found, 256, 1), nn.ReLU(), nn.Conv2d(256, 192, 3, padding=1), nn.ReLU()
        )
        self.motion = nn.Sequential(
            nn.Conv2d(2, 128, 7, padding=3), nn.ReLU(), nn.Conv2d(128, 64, 3, padding=1), nn.ReLU()
        )
        self.both = nn.Sequential(nn.Conv2d(256, 126, 3, padding=1), nn.ReLU())
        self.gru = SeparableGRU()
        self.head = nn.Sequential(
            nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 2, 3, padding=1)
        )
        self.mask = nn.Sequential(
            nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 9 * 8 * 8, 1)
        )

    @staticmethod
    def coordinates(height: int, width: int) -> Tensor:
        """Return the pixel coordinates (1, 2, H, W), x first."""
        ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        return torch.stack((xs, ys)).float()[None]

    def pyramid(self, f1: Tensor, f2: Tensor) -> list[Tensor]:
        """Return the correlations of all pairs of pixels, at every level."""
        n, c, h, w = f1.shape
        volume = torch.matmul(f1.flatten(2).transpose(1, 2), f2.flatten(2)) / c**0.5
        volumes = [volume.reshape(n * h * w, 1, h, w)]
        for _ in range(1, self.levels):
            volumes.append(F.avg_pool2d(volumes[-1], 2))
        return volumes

    def lookup(self, volumes: Sequence[Tensor], where: Tensor) -> Tensor:
        """Sample a window around ``where`` (N, 2, h, w) at every level."""
        n, _, h, w = where.shape
        side = 2 * self.radius + 1
        window = (self.coordinates(side, side) - self.radius).permute(0, 2, 3, 1)
        centers = where.permute(0, 2, 3, 1).reshape(n * h * w, 1, 1, 2)
        found = []
        for level, volume in enumerate(volumes):
            xs, ys = (centers / 2**level + window).split([1, 1], dim=-1)
            grid = torch.cat(
                (2 * xs / (volume.shape[3] - 1) - 1, 2 * ys / (volume.shape[2] - 1) - 1), -1
            )
            sampled = F.grid_sample(volume, grid, align_corners=True)
            found.append(sampled.reshape(n, h, w, side**2))
        return torch.cat(found, -1).permute(0, 3, 1, 2)

    def enlarged(self, flow: Tensor, mask: Tensor) -> Tensor:
        """Return the flow of eight times the size: convex combinations of 3×3 pixels."""
        n, _, h, w = flow.shape
        weights = mask.reshape(n, 1, 9, 8, 8, h, w).softmax(2)
        near = F.unfold(8 * flow, 3, padding=1).reshape(n, 2, 9, 1, 1, h, w)
        large = (weights * near).sum(2)
        return large.permute(0, 1, 4, 2, 5, 3).reshape(n, 2, 8 * h, 8 * w)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        first, second = (2 * picture / 255 - 1 for picture in (first, second))
        volumes = self.pyramid(self.features(first), self.features(second))
        hidden, context = self.context(first).split([128, 128], dim=1)
        hidden, context = hidden.tanh(), context.relu()
        start = self.coordinates(hidden.shape[2], hidden.shape[3])
        where = start
        for _ in range(self.steps):
            flow = where - start
            correlation = self.correlation(self.lookup(volumes, where))
            moved = self.both(torch.cat((correlation, self.motion(flow)), 1))
            hidden = self.gru(hidden, torch.cat((context, moved, flow), 1))
            where = where + self.head(hidden)
        return self.enlarged(where - start, 0.25 * self.mask(hidden))


def raft_large() -> Form:
    """RAFT with 12 updates, on pictures of the size of its first training."""
    inputs = {name: 255 * torch.rand(1, 3, 368, 496) for name in ("first", "second")}
    return Form(RAFT(12), inputs, ("flow",), opset=16, dynamo=False)


class VoxelMorph(nn.Module):
    """VoxelMorph (Balakrishnan et al., 2019) with a diffeomorphic field of half the size."""

    DOWN = (16, 32, 32, 32)
    UP = (32, 32, 32, 32)
    LAST = (32, 16, 16)

    def __init__(self, steps: int = 7) -> None:
        super().__init__()
        self.steps = steps
        channels = 2
        skipped = [channels]
        layers: dict[str, list[nn.Module]] = {"down": [], "up": [], "last": []}
        for name, widths in (("down", self.DOWN), ("up", self.UP), ("last", self.LAST)):
            for width in widths:
                layers[name].append(
                    nn.Sequential(nn.Conv3d(channels, width, 3, padding=1), nn.LeakyReLU(0.2))
                )
                channels = width
                if name == "down":
                    skipped.append(width)
                if name == "up":
                    channels += skipped.pop()
        self.down, self.up, self.last = map(nn.ModuleList, layers.values())
        self.velocity = nn.Conv3d(channels, 3, 3, padding=1)

    @staticmethod
    def warp(x: Tensor, flow: Tensor) -> Tensor:
        """Move a volume by a field of displacements in voxels."""
        lengths = flow.shape[2:]
        axes = torch.meshgrid(*(torch.arange(length) for length in lengths), indexing="ij")
        where = torch.stack(axes).float()[None] + flow
        for axis, length in enumerate(lengths):
            where[:, axis] = 2 * (where[:, axis] / (length - 1) - 0.5)
        grid = where.permute(0, 2, 3, 4, 1)[..., [2, 1, 0]]
        return F.grid_sample(x, grid, align_corners=True)

    @staticmethod
    def resized(flow: Tensor, factor: float) -> Tensor:
        how = {"scale_factor": factor, "mode": "trilinear", "align_corners": True}
        if factor < 1:
            return factor * F.interpolate(flow, **how)
        return F.interpolate(factor * flow, **how)

    def forward(self, moving: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat((moving, fixed), 1)
        skipped = []
        for conv in self.down:
            x = conv(x)
            skipped.append(x)
            x = F.max_pool3d(x, 2)
        for conv in self.up:
            x = F.interpolate(conv(x), scale_factor=2.0)
            x = torch.cat((x, skipped.pop()), 1)
        for conv in self.last:
            x = conv(x)
        flow = self.resized(self.velocity(x), 0.5) / 2**self.steps
        for _ in range(self.steps):
            flow = flow + self.warp(flow, flow)
        flow = self.resized(flow, 2.0)
        return self.warp(moving, flow), flow


def voxelmorph_3d() -> Form:
    """VoxelMorph on brains at half the released resolution, 160×192×224."""
    module = VoxelMorph()
    nn.init.normal_(module.velocity.weight, std=5.0)  # displacements of several voxels
    inputs = {name: torch.rand(1, 1, 80, 96, 112) for name in ("moving", "fixed")}
    return Form(module, inputs, ("moved", "flow"), dynamo=False)


def block3d(c_in: int, c_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv3d(c_in, c_out, 3, padding=1), nn.BatchNorm3d(c_out), nn.ReLU())


class Hourglass(nn.Module):
    """A U-Net whose blocks halve the height and the width, but not the depth."""

    WIDTHS = (32, 64, 128, 256, 512, 1024)

    def __init__(self, channels: int) -> None:
        super().__init__()
        inputs = (channels, *self.WIDTHS[1:-1])
        self.down = nn.ModuleList(map(block3d, inputs, self.WIDTHS[1:]))
        # All but the lowest block also read the skipped features.
        inputs = (self.WIDTHS[-1], *(2 * width for width in self.WIDTHS[-2:0:-1]))
        self.up = nn.ModuleList(map(block3d, inputs, self.WIDTHS[-2::-1]))
        self.channels = self.WIDTHS[0] + channels
        self.last = block3d(self.channels, self.channels)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for block in self.down:
            skipped.append(x)
            x = F.avg_pool3d(block(x), (1, 2, 2))
        for block in self.up:
            x = block(F.interpolate(x, scale_factor=(1.0, 2.0, 2.0)))
            x = torch.cat((x, skipped.pop()), 1)
        return self.last(x)


class LivePortraitWarp(nn.Module):
    """The warping module of LivePortrait (Guo et al., 2024), without its decoder.

    Every key point moves a copy of the compressed feature volume. A network weighs these motions,
    and the weighted motion moves the volume itself.
    """

    COMPRESSED = 4

    def __init__(self, points: int = 21, channels: int = 32, depth: int = 16) -> None:
        super().__init__()
        self.points = points
        self.compress = nn.Sequential(
            nn.Conv3d(channels, self.COMPRESSED, 1), nn.BatchNorm3d(self.COMPRESSED), nn.ReLU()
        )
        self.hourglass = Hourglass((points + 1) * (self.COMPRESSED + 1))
        self.mask = nn.Conv3d(self.hourglass.channels, points + 1, 7, padding=3)
        self.occlusion = nn.Conv2d(self.hourglass.channels * depth, 1, 7, padding=3)
        self.last = nn.Sequential(
            nn.Conv2d(channels * depth, 256, 3, padding=1),
            nn.BatchNorm2d(256),
            nn.LeakyReLU(),
            nn.Conv2d(256, 256, 1),
        )

    @staticmethod
    def coordinates(lengths: Sequence[int]) -> Tensor:
        """Return the coordinates (D, H, W, 3) from -1 to 1, x first."""
        axes = torch.meshgrid(
            *(2 * torch.arange(length).float() / (length - 1) - 1 for length in lengths),
            indexing="ij",
        )
        return torch.stack(axes[::-1], -1)

    def forward(self, features: Tensor, kp_driving: Tensor, kp_source: Tensor) -> Tensor:
        n, c, d, h, w = features.shape
        k = self.points + 1
        identity = self.coordinates((d, h, w))[None, None]
        driving = kp_driving.reshape(n, self.points, 1, 1, 1, 3)
        source = kp_source.reshape(n, self.points, 1, 1, 1, 3)
        motions = torch.cat((identity.repeat(n, 1, 1, 1, 1, 1), identity - driving + source), 1)

        copies = self.compress(features)[:, None].repeat(1, k, 1, 1, 1, 1)
        copies = copies.reshape(n * k, self.COMPRESSED, d, h, w)
        deformed = F.grid_sample(copies, motions.reshape(n * k, d, h, w, 3), align_corners=False)

        def heat(center: Tensor) -> Tensor:
            return (-0.5 * (identity - center).square().sum(-1) / 0.01).exp()

        heatmap = heat(driving) - heat(source)
        heatmap = torch.cat((torch.zeros(n, 1, d, h, w), heatmap), 1)[:, :, None]
        pictures = torch.cat((heatmap, deformed.reshape(n, k, self.COMPRESSED, d, h, w)), 2)
        prediction = self.hourglass(pictures.reshape(n, -1, d, h, w))

        mask = self.mask(prediction).softmax(1)[:, :, None]
        motion = (motions.permute(0, 1, 5, 2, 3, 4) * mask).sum(1).permute(0, 2, 3, 4, 1)
        occlusion = self.occlusion(prediction.reshape(n, -1, h, w)).sigmoid()
        moved = F.grid_sample(features, motion, align_corners=False)
        return self.last(moved.reshape(n, c * d, h, w)) * occlusion


def liveportrait_warp() -> Form:
    """LivePortrait's warping module, with 21 key points and a volume of 32×16×64×64."""
    points = {name: 1.2 * torch.rand(1, 21, 3) - 0.6 for name in ("kp_driving", "kp_source")}
    features = torch.randn(1, 32, 16, 64, 64)
    return Form(LivePortraitWarp(), {"features": features, **points}, ("warped",), dynamo=False)


MODELS: dict[str, Callable[[], Form]] = {
    build.__name__: build
    for build in (
        rt_detr_v2_r50,
        deformable_detr_r50,
        mask2former_swin_t,
        raft_large,
        voxelmorph_3d,
        liveportrait_warp,
    )
}


def calibrate(module: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Set the statistics of batch norms to those of the inputs.

    With initial statistics, a deep network has almost the same output at each pixel, so that a
    rounding error decides which queries a detector selects.
    """

    def set_statistics(norm: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        (x,) = arguments
        axes = [axis for axis in range(x.ndim) if axis != 1]
        norm.running_mean.copy_(x.mean(axes))
        norm.running_var.copy_(x.var(axes))

    norms = [
        layer for layer in module.modules() if getattr(layer, "running_mean", None) is not None
    ]
    hooks = [norm.register_forward_pre_hook(set_statistics) for norm in norms]
    with torch.no_grad():
        module(*inputs)
    for hook in hooks:
        hook.remove()


def seeded(name: str) -> Form:
    """Return the form of a model, whose weights and inputs are the same each time."""
    torch.manual_seed(0)
    form = MODELS[name]()
    form.module.eval()
    calibrate(form.module, [*form.inputs.values()])
    return form


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names_help = f"of {', '.join(MODELS)} (default: all)"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names_help)
    into_help = "the folder to write to (default: the current one)"
    parser.add_argument("--into", type=Path, default=Path(), metavar="FOLDER", help=into_help)
    arguments = parser.parse_args()
    if unknown := {*arguments.names} - {*MODELS}:
        parser.error(f"no such model: {', '.join(unknown)}")
    for name in arguments.names or MODELS:
        save(name, seeded(name), arguments.into)
