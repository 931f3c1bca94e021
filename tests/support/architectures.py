"""Published architectures of toy size with seeded random weights, as their packages implement them.

The architectures of tests/exported/export.py are among them. A builder imports its package, so that
a test is skipped where the package is not installed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.exported_models import EXPORTED_FOLDER
from support.torch_exporters import OPSET

BATCH = 2
#: The stored architectures whose inputs or computations have no batch of any length.
CONSTANT_BATCH = ("ic_stn_loop", "sfmlearner_function", "grounding_dino")


@dataclass(frozen=True)
class Architecture:
    """A module and its inputs.

    Attributes:
        module: a module in evaluation mode.
        inputs: its arguments in their order.
        opsets: the opset of the export by an exporter, if it is not the default.
        has_batch: whether the batch may have any length. Others make it constant.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]
    opsets: Mapping[str, int] = field(default_factory=dict)
    has_batch: bool = True


Builder = Callable[[], Architecture]


def export_script() -> ModuleType:
    """Return tests/exported/export.py as a module; skip the test if it lacks a package."""
    for package in ("kornia", "transformers", "scipy"):
        pytest.importorskip(package)
    if str(EXPORTED_FOLDER) not in sys.path:
        sys.path.append(str(EXPORTED_FOLDER))
    return importlib.import_module("export")


def stored(name: str) -> Architecture:
    """Return an architecture of tests/exported/export.py."""
    form = export_script().MODELS[name]()
    exporter = "dynamo" if form.dynamo else "torchscript"
    opsets = {exporter: min(form.opset, OPSET)}
    has_batch = name not in CONSTANT_BATCH
    return Architecture(form.module.eval(), form.inputs, opsets, has_batch=has_batch)


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        self.function = partial(function, **options)

    def forward(self, a: Tensor, b: Tensor) -> Any:
        return self.function(a, b)


def affine_matrices() -> Tensor:
    return torch.tensor(
        [[[0.9, -0.4, 2.0], [0.3, 1.1, -3.0]], [[1.2, 0.1, -4.0], [-0.2, 0.8, 5.0]]]
    )


def kornia_function(name: str, second: Callable[[], Tensor], **options: Any) -> Architecture:
    """Return a function of kornia.geometry.transform that warps images."""
    transform = pytest.importorskip("kornia.geometry.transform")
    inputs = {"a": torch.rand(BATCH, 3, 12, 15), "b": second()}
    return Architecture(Function(getattr(transform, name), **options), inputs)


def kornia_thin_plate_spline() -> Architecture:
    transform = pytest.importorskip("kornia.geometry.transform")
    source = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.4, 0.6]]])
    target = source + 0.1 * torch.rand(BATCH, 5, 2)
    kernel, affine = transform.get_tps_transform(source.expand(BATCH, -1, -1), target)
    warp = Function(lambda image, points: transform.warp_image_tps(image, points, kernel, affine))
    return Architecture(
        warp, {"a": torch.rand(BATCH, 3, 12, 15), "b": source.repeat(BATCH, 1, 1)}, has_batch=False
    )


def kornia_depth() -> Architecture:
    """Return the warp of a frame by its depth and a pose."""
    depth = pytest.importorskip("kornia.geometry.depth")
    camera = torch.tensor([[9.0, 0.0, 7.0], [0.0, 9.0, 6.0], [0.0, 0.0, 1.0]]).expand(BATCH, 3, 3)
    pose = torch.eye(4).repeat(BATCH, 1, 1)
    pose[:, :3, 3] = torch.tensor([0.1, -0.05, 0.02])
    warp = Function(lambda image, distance: depth.warp_frame_depth(image, distance, pose, camera))
    images = {"a": torch.rand(BATCH, 3, 12, 15), "b": torch.rand(BATCH, 1, 12, 15) + 1}
    return Architecture(warp, images, has_batch=False)


def monai_warp(rank: int, mode: str, padding_mode: str) -> Architecture:
    blocks = pytest.importorskip("monai.networks.blocks.warp")
    lengths = (6, 7, 8)[:rank]
    inputs = {
        "a": torch.rand(BATCH, 2, *lengths),
        "b": torch.rand(BATCH, rank, *lengths) * 3 - 1.5,
    }
    return Architecture(blocks.Warp(mode, padding_mode).eval(), inputs, has_batch=False)


def monai_voxelmorph(rank: int, half_res: bool) -> Architecture:
    nets = pytest.importorskip("monai.networks.nets.voxelmorph")
    backbone = nets.VoxelMorphUNet(
        spatial_dims=rank,
        in_channels=2,
        unet_out_channels=4,
        channels=(4, 4, 4, 4),
        final_conv_channels=(4,),
    )
    module = nets.VoxelMorph(backbone, 2, half_res, spatial_dims=rank)
    perturb(module, 0.1)
    lengths = (8, 16, 8)[:rank]
    inputs = {name: torch.rand(BATCH, 1, *lengths) for name in ("a", "b")}
    return Architecture(module.eval(), inputs, has_batch=False)


def perturb(module: nn.Module, deviation: float) -> None:
    """Add noise to all weights, because zeros would hide a layer's inputs."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(deviation * torch.randn_like(parameter))


def detector(name: str, outputs: tuple[str, ...] = ("logits", "pred_boxes")) -> Architecture:
    """Return a detector of transformers for pictures of 64×64 pixels."""
    transformers = pytest.importorskip("transformers")
    script = export_script()
    model_class, config = DETECTORS[name]
    model = getattr(transformers, model_class)(config(transformers, script))
    module = script.Pick(script.perturbed(model, 0.2), outputs)
    return Architecture(module.eval(), {"pixel_values": torch.randn(BATCH, 3, 64, 64)})


HYBRID: dict[str, Any] = {
    "d_model": 16,
    "hidden_expansion": 0.5,
    "num_denoising": 0,
    "encoder_hidden_dim": 16,
    "encoder_in_channels": [8, 8, 16],
    "decoder_in_channels": [16, 16, 16],
}
VIT: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 64,
    "patch_size": 16,
    "num_windows": 1,
    "out_indices": [1, 3],
}
FEW: dict[str, Any] = {
    "d_model": 16,
    "decoder_layers": 2,
    "decoder_ffn_dim": 16,
    "decoder_n_points": 2,
    "decoder_self_attention_heads": 2,
    "decoder_cross_attention_heads": 2,
    "num_queries": 5,
    "num_labels": 3,
    "group_detr": 1,
}


def _hybrid_config(name: str, transformers: Any, script: ModuleType) -> Any:
    """Return the configuration of a DETR with a hybrid encoder."""
    kind = "HGNetV2Config" if name == "DFine" else "RTDetrResNetConfig"
    if kind == "HGNetV2Config":
        backbone = transformers.HGNetV2Config(
            stem_channels=[3, 8, 8],
            stage_in_channels=[8, 8, 8, 8],
            stage_mid_channels=[8, 8, 8, 8],
            stage_out_channels=[8, 8, 8, 16],
            stage_num_blocks=[1, 1, 1, 1],
            stage_numb_of_layers=[1, 1, 1, 1],
            hidden_sizes=[8, 8, 8, 16],
            out_features=["stage2", "stage3", "stage4"],
        )
    else:
        backbone = transformers.RTDetrResNetConfig(**script.RESNET)
    config = getattr(transformers, f"{name}Config")
    return config(backbone_config=backbone, **script.DETR | HYBRID)


def _lw_detr_config(transformers: Any, script: ModuleType) -> Any:
    backbone = transformers.LwDetrViTConfig(**VIT)
    return transformers.LwDetrConfig(
        backbone_config=backbone, projector_scale_factors=[2.0, 0.5], **FEW
    )


def _rf_detr_config(transformers: Any, script: ModuleType) -> Any:
    backbone = transformers.RfDetrDinov2Config(**VIT)
    return transformers.RfDetrConfig(backbone_config=backbone, projector_scale_factors=[1.0], **FEW)


def _deformable_detr_config(transformers: Any, script: ModuleType) -> Any:
    backbone = transformers.ResNetConfig(**script.RESNET)
    return transformers.DeformableDetrConfig(backbone_config=backbone, **script.DETR)


#: The name of a detector -> its class, and a function that returns its configuration.
DETECTORS: dict[str, tuple[str, Callable[[Any, ModuleType], Any]]] = {
    "deformable_detr": ("DeformableDetrForObjectDetection", _deformable_detr_config),
    "rt_detr": ("RTDetrForObjectDetection", partial(_hybrid_config, "RTDetr")),
    "rt_detr_v2": ("RTDetrV2ForObjectDetection", partial(_hybrid_config, "RTDetrV2")),
    "d_fine": ("DFineForObjectDetection", partial(_hybrid_config, "DFine")),
    "lw_detr": ("LwDetrForObjectDetection", _lw_detr_config),
    "rf_detr": ("RfDetrForObjectDetection", _rf_detr_config),
}


class Flow(nn.Module):
    """The last flow of an optical flow network of torchvision."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.model(a, b, num_flow_updates=2)[-1]


def torchvision_raft() -> Architecture:
    try:
        from torchvision.models import optical_flow
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another PyTorch
        pytest.skip(f"torchvision: {error}")
    images = {name: torch.rand(1, 3, 128, 136) for name in ("a", "b")}
    module = Flow(optical_flow.raft_small(weights=None))
    perturb(module, 0.01)
    return Architecture(module.eval(), images)


STORED = (
    "kornia_warp_affine",
    "kornia_elastic_transform2d",
    "kornia_warp_perspective",
    "kornia_warp_perspective_float64",
    "kornia_remap",
    "kornia_homography_warp3d",
    "stn",
    "stn_3d",
    "stn_bicubic",
    "ic_stn_loop",
    "cond_if",
    "voxelmorph",
    "pwcnet",
    "raft",
    "raft_scan",
    "first_order_motion",
    "liif",
    "triplane",
    "sfmlearner_function",
    "mask2former",
    "grounding_dino",
)
#: The name of an architecture -> the function that makes it.
ARCHITECTURES: dict[str, Builder] = {name: partial(stored, name) for name in STORED}
ARCHITECTURES |= {name: partial(detector, name) for name in DETECTORS}
ARCHITECTURES |= {
    "kornia_affine": partial(
        kornia_function, "affine", affine_matrices, mode="bilinear", padding_mode="reflection"
    ),
    "kornia_rotate": partial(kornia_function, "rotate", lambda: torch.tensor([20.0, -35.0])),
    "kornia_translate": partial(
        kornia_function, "translate", lambda: torch.tensor([[1.5, -2.0], [0.25, 3.0]])
    ),
    "kornia_shear": partial(
        kornia_function, "shear", lambda: torch.tensor([[0.3, 0.0], [-0.1, 0.2]])
    ),
    "kornia_scale": partial(
        kornia_function, "scale", lambda: torch.tensor([[1.3, 0.8], [0.6, 1.1]])
    ),
    "kornia_thin_plate_spline": kornia_thin_plate_spline,
    "kornia_depth": kornia_depth,
    "monai_warp_2d": partial(monai_warp, 2, "bilinear", "border"),
    "monai_warp_3d": partial(monai_warp, 3, "nearest", "zeros"),
    "monai_warp_bicubic": partial(monai_warp, 2, "bicubic", "reflection"),
    "monai_voxelmorph_2d": partial(monai_voxelmorph, 2, False),
    "monai_voxelmorph_3d": partial(monai_voxelmorph, 3, True),
    "torchvision_raft": torchvision_raft,
}


def batched(architecture: Architecture, batch: int) -> dict[str, Tensor]:
    """Return inputs of another batch, whose elements differ."""
    inputs = {}
    for name, value in architecture.inputs.items():
        count = -(-batch // value.shape[0])
        copies = [value if copy == 0 else value * (1 - 0.04 * copy) for copy in range(count)]
        inputs[name] = torch.cat(copies)[:batch].to(value.dtype)
    return inputs
