"""What runtimes are known to run, to refuse and to compute wrongly, with a source for each fact.

A fact was tried in the runtime, or read in its documents, sources or issues. Nodes about which
there is no fact may run or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

#: ``"wrong"``: the runtime runs the node without an error, and the result is not the operator's.
Verdict: TypeAlias = Literal["runs", "refuses", "wrong"]

#: The numbers of spatial axes of images other than pictures and volumes.
_OTHER_AXES = (1, *range(4, 9))
_LATER_WORDS = ("linear", "cubic")
_INTEGERS = tuple(f"{sign}int{n_bits}" for sign in ("", "u") for n_bits in (8, 16, 32, 64))
_OTHER_FLOATS = ("float64", "bfloat16")
_AFFINE_GRID = "AffineGrid"


@dataclass(frozen=True)
class Fact:
    """What a runtime does with some nodes. An empty condition holds for all nodes.

    Attributes:
        verdict: what it does.
        what: the nodes, in words.
        source: where this is written, or the release in which it was tried.
        date: the day of the trial or of the source.
        tried: whether it was tried in the runtime. It was read otherwise.
        operators: the operators of the nodes.
        axes: the numbers of their spatial axes.
        modes: their modes, by their names in opset 20.
        padding_modes: their padding modes.
        align_corners: their attribute ``align_corners``.
        types: the types of their first inputs.
        grid_types: the types of their second inputs.
        first_opset: the oldest opset in which this holds.
        last_opset: the newest one, or None.
        until: the first release of the runtime, or the month of its sources, of which this does not
            hold, if there is one.
        is_partial: whether it holds for some of the nodes only, and for which ones is not recorded.
    """

    verdict: Verdict
    what: str
    source: str
    date: str
    tried: bool = False
    operators: tuple[str, ...] = ("GridSample",)
    axes: tuple[int, ...] = ()
    modes: tuple[str, ...] = ()
    padding_modes: tuple[str, ...] = ()
    align_corners: tuple[int, ...] = ()
    types: tuple[str, ...] = ()
    grid_types: tuple[str, ...] = ()
    first_opset: int = 1
    last_opset: int | None = None
    until: str = ""
    is_partial: bool = False

    @property
    def evidence(self) -> str:
        """How this is known, as text."""
        return f"{'tried' if self.tried else 'read'} {self.date}: {self.source}"


_TENSORRT_RTX = "TensorRT-RTX 1.7.1, whose parser and builder ran without a GPU"
_UP_TO_32_BITS = ("float16", "float32", "bfloat16")

TENSORRT = (
    Fact(
        "runs",
        "4-D images of floats in opsets 16 to 19: the parser reads all attributes rightly, and "
        "engines were built, not run",
        _TENSORRT_RTX,
        "2026-11-28",
        tried=True,
        axes=(2,),
        last_opset=19,
        types=(*_UP_TO_32_BITS, "float64"),
    ),
    Fact(
        "runs",
        "nearest of 4-D images of floats in any opset",
        _TENSORRT_RTX,
        "2026-11-28",
        tried=True,
        axes=(2,),
        modes=("nearest",),
        types=(*_UP_TO_32_BITS, "float64"),
    ),
    Fact(
        "wrong",
        "linear and cubic as opset 20 names them: the parser writes nearest. TensorRT-RTX 1.6.1 "
        "and 1.7.1 do not. TensorRT 10.13 and 11.1 do, and of later releases it is not known",
        "TensorRT-RTX 1.4.0 and 1.5.0, 1.6.1 and 1.7.1; NVIDIA/TensorRT issue 4646, "
        "onnx/onnx-tensorrt pull request 1060",
        "2026-11-28",
        tried=True,
        axes=(2, 3),
        modes=_LATER_WORDS,
        first_opset=20,
    ),
    Fact(
        "refuses",
        "5-D images",
        "release notes of TensorRT 11.2.1; tried in TensorRT-RTX 1.5.0 and 1.7.1",
        "2026-08-04",
        axes=(3,),
        until="11.2",
    ),
    Fact(
        "refuses",
        "3-D images, and those of more than 5 axes",
        _TENSORRT_RTX,
        "2026-11-28",
        tried=True,
        axes=_OTHER_AXES,
    ),
    Fact(
        "refuses",
        "images of integers",
        _TENSORRT_RTX,
        "2026-11-28",
        tried=True,
        types=_INTEGERS,
    ),
    Fact(
        "refuses",
        "a grid of float32 for an image of float16",
        _TENSORRT_RTX,
        "2026-11-28",
        tried=True,
        types=("float16",),
        grid_types=("float32", "float64", "bfloat16"),
    ),
    Fact(
        "refuses",
        "a grid of float16 for an image of float32",
        _TENSORRT_RTX,
        "2026-11-28",
        tried=True,
        types=("float32", "float64"),
        grid_types=("float16", "bfloat16"),
    ),
    Fact(
        "refuses",
        _AFFINE_GRID,
        _TENSORRT_RTX,
        "2026-11-28",
        tried=True,
        operators=("AffineGrid",),
    ),
    Fact(
        "wrong",
        "deformable attention as GridSamples, in some engines of 10.13.3 to 11.1",
        "NVIDIA/TensorRT issue 4813, lightly-ai/lightly-train pull request 917",
        "2026-07-28",
        operators=("DeformableAttention",),
    ),
)

OPENVINO = (
    Fact(
        "runs",
        "4-D images of floats",
        "OpenVINO 2026.4.1, its CPU",
        "2026-11-28",
        tried=True,
        axes=(2,),
        types=("float16", "float32", "float64"),
    ),
    Fact(
        "refuses",
        "linear and cubic as opset 20 names them",
        "OpenVINO 2026.2.1 and 2026.3.0; openvinotoolkit/openvino pull request 36070",
        "2026-11-28",
        tried=True,
        modes=_LATER_WORDS,
        first_opset=20,
        until="2026.3",
    ),
    Fact(
        "refuses",
        "images that are not 4-D",
        "OpenVINO 2026.4.1; openvinotoolkit/openvino issue 37770",
        "2026-11-28",
        tried=True,
        axes=(3, *_OTHER_AXES),
    ),
    Fact(
        "runs",
        _AFFINE_GRID,
        "OpenVINO 2026.4.1, its CPU",
        "2026-11-28",
        tried=True,
        operators=("AffineGrid",),
    ),
)

NCNN = (
    Fact(
        "runs",
        "linear of 4-D and 5-D images, if there is one image (N = 1)",
        "ncnn and pnnx 20261020",
        "2026-11-28",
        tried=True,
        axes=(2, 3),
        modes=("linear",),
    ),
    Fact(
        "runs",
        "cubic of 4-D images in opsets 16 to 19, if there is one image",
        "ncnn and pnnx 20261020",
        "2026-11-28",
        tried=True,
        axes=(2,),
        modes=("cubic",),
        last_opset=19,
    ),
    Fact(
        "wrong",
        "cubic as opset 20 names it: pnnx writes linear",
        "ncnn and pnnx 20261020",
        "2026-11-28",
        tried=True,
        axes=(2,),
        modes=("cubic",),
        first_opset=20,
    ),
    Fact(
        "wrong",
        "nearest halfway between pixels",
        "ncnn and pnnx 20261020",
        "2026-11-28",
        tried=True,
        axes=(2, 3),
        modes=("nearest",),
    ),
    Fact(
        "refuses",
        "cubic of 5-D images",
        "ncnn and pnnx 20261020",
        "2026-11-28",
        tried=True,
        axes=(3,),
        modes=("cubic",),
    ),
    Fact(
        "refuses",
        "3-D images, and those of more than 5 axes",
        "ncnn, docs/developer-guide/operators.md",
        "2026-07-22",
        axes=_OTHER_AXES,
    ),
    Fact(
        "refuses",
        _AFFINE_GRID,
        "ncnn and pnnx 20261020",
        "2026-11-28",
        tried=True,
        operators=("AffineGrid",),
    ),
)

_LITERT = "onnx2tf 2.6.9 and LiteRT, static shapes"

LITERT = (
    Fact(
        "runs",
        "nearest and linear of 4-D images with zeros or border",
        _LITERT,
        "2026-11-28",
        tried=True,
        axes=(2,),
        modes=("nearest", "linear"),
        padding_modes=("zeros", "border"),
    ),
    Fact(
        "runs",
        "linear of 5-D images with zeros or border",
        _LITERT,
        "2026-11-28",
        tried=True,
        axes=(3,),
        modes=("linear",),
        padding_modes=("zeros", "border"),
    ),
    Fact(
        "refuses",
        "reflection",
        _LITERT,
        "2026-11-28",
        tried=True,
        axes=(2, 3),
        padding_modes=("reflection",),
    ),
    Fact("refuses", "cubic", _LITERT, "2026-11-28", tried=True, axes=(2, 3), modes=("cubic",)),
    Fact(
        "refuses",
        "nearest of 5-D images",
        _LITERT,
        "2026-11-28",
        tried=True,
        axes=(3,),
        modes=("nearest",),
    ),
    Fact(
        "runs",
        _AFFINE_GRID,
        _LITERT,
        "2026-11-28",
        tried=True,
        operators=("AffineGrid",),
    ),
    Fact(
        "refuses",
        "tensors of 5 axes, on a GPU",
        "LiteRT, tflite/delegates/gpu/common/model_builder.cc",
        "2026-08-21",
        axes=(3,),
    ),
)

_KERNELS = "onnxruntime's docs/OperatorKernels.md"
_COREML = "onnxruntime's CoreML provider, gridsample_op_builder.cc"
_QNN = "onnxruntime-qnn 2.7.0, the emulator of the HTP, architecture 73"
_DIRECTML = "onnxruntime's DirectML provider, DmlGridSample.h"
_WEBGPU_SOURCE = "onnxruntime's WebGPU provider, grid_sample.cc (pull request 28264)"
_WEBGPU = "onnxruntime-webgpu 1.27.0 on SwiftShader, without the CPU"

COREML = (
    Fact(
        "runs",
        "linear of 4-D images of floats, in the format MLProgram",
        _COREML,
        "2026-03-13",
        axes=(2,),
        modes=("linear",),
        types=("float16", "float32"),
    ),
    Fact("refuses", "nearest and cubic", _COREML, "2026-03-13", modes=("nearest", "cubic")),
    Fact(
        "refuses",
        "linear with reflection and align_corners 0",
        _COREML,
        "2026-03-13",
        modes=("linear",),
        padding_modes=("reflection",),
        align_corners=(0,),
    ),
    Fact(
        "refuses",
        "images that are not 4-D",
        _COREML,
        "2026-03-13",
        axes=(3, *_OTHER_AXES),
    ),
    Fact(
        "refuses",
        _AFFINE_GRID,
        "onnxruntime's CoreML provider, op_builder_factory.cc",
        "2026-03-13",
        operators=("AffineGrid",),
    ),
)

QNN = (
    Fact(
        "runs",
        "nearest and linear of 4-D images of float16 and float32, in float16",
        _QNN,
        "2026-11-28",
        tried=True,
        axes=(2,),
        modes=("nearest", "linear"),
        types=("float16", "float32"),
    ),
    Fact("refuses", "cubic", _QNN, "2026-11-28", tried=True, axes=(2,), modes=("cubic",)),
    Fact(
        "refuses",
        "images that are not 4-D: no session can be created",
        _QNN,
        "2026-11-28",
        tried=True,
        axes=(3, *_OTHER_AXES),
    ),
    Fact(
        "refuses",
        "linear as opset 20 names it",
        "microsoft/onnxruntime pull request 25408",
        "2025-07-15",
        modes=("linear",),
        first_opset=20,
        until="2025-07",
    ),
    Fact(
        "refuses",
        _AFFINE_GRID,
        _QNN,
        "2026-11-28",
        tried=True,
        operators=("AffineGrid",),
    ),
)

DIRECTML = (
    Fact(
        "runs",
        "4-D images of float16, float32 and integers in opsets 16 to 19",
        _KERNELS,
        "2026-03-13",
        axes=(2,),
        types=("float16", "float32", *_INTEGERS),
        last_opset=19,
    ),
    Fact(
        "refuses",
        "nodes of opset 20 and later",
        "NevermindNilas/TheAnimeScripter pull request 410, with onnxruntime 1.27",
        "2026-08-03",
        first_opset=20,
    ),
    Fact(
        "refuses",
        "images that are not 4-D",
        _DIRECTML,
        "2026-03-13",
        axes=(3, *_OTHER_AXES),
    ),
    Fact("refuses", "float64 and bfloat16", _KERNELS, "2026-03-13", types=_OTHER_FLOATS),
    Fact(
        "refuses",
        "grids of float64 and bfloat16",
        _KERNELS,
        "2026-03-13",
        grid_types=_OTHER_FLOATS,
    ),
    Fact("refuses", _AFFINE_GRID, _KERNELS, "2026-03-13", operators=("AffineGrid",)),
)

WEBGPU = (
    Fact(
        "runs",
        "4-D images of float32 in opset 16; of float16, if the device has it",
        _WEBGPU,
        "2026-11-28",
        tried=True,
        axes=(2,),
        types=("float16", "float32"),
        last_opset=19,
    ),
    Fact(
        "refuses",
        "nodes of opset 20 and later",
        _WEBGPU,
        "2026-11-28",
        tried=True,
        first_opset=20,
    ),
    Fact(
        "refuses",
        "images that are not 4-D",
        _WEBGPU,
        "2026-11-28",
        tried=True,
        axes=(3, *_OTHER_AXES),
    ),
    Fact(
        "refuses",
        "types other than float16 and float32",
        _WEBGPU_SOURCE,
        "2026-04-29",
        types=(*_OTHER_FLOATS, *_INTEGERS),
    ),
    Fact(
        "refuses",
        "grids of types other than float16 and float32",
        _WEBGPU_SOURCE,
        "2026-04-29",
        grid_types=_OTHER_FLOATS,
    ),
    Fact(
        "refuses",
        _AFFINE_GRID,
        _WEBGPU,
        "2026-11-28",
        tried=True,
        operators=("AffineGrid",),
    ),
)

#: tests.runtimes ran these on static and dynamic shapes.
_TRIAL_DATE = "2026-11-21"
_MNN = "MNN 3.6.1"
_TVM = "TVM 0.27"
_IREE = "IREE 3.13"
_RKNN = "RKNN's toolkit 2.5.0, its simulator"
_ONNX2TORCH = "onnx2torch 1.5.15"

MNN = (
    Fact("wrong", "nearest and cubic", _MNN, _TRIAL_DATE, tried=True, modes=("nearest", "cubic")),
    Fact(
        "wrong",
        "linear in 2 of 6 paddings and alignments",
        _MNN,
        _TRIAL_DATE,
        tried=True,
        modes=("linear",),
        is_partial=True,
    ),
)

TVM = (
    Fact(
        "runs",
        "nearest and linear of 4-D images with zeros or reflection and align_corners 0",
        _TVM,
        _TRIAL_DATE,
        tried=True,
        axes=(2,),
        modes=("nearest", "linear"),
        padding_modes=("zeros", "reflection"),
        align_corners=(0,),
    ),
    Fact(
        "runs",
        "nearest of 5-D images with zeros or reflection and align_corners 0",
        _TVM,
        _TRIAL_DATE,
        tried=True,
        axes=(3,),
        modes=("nearest",),
        padding_modes=("zeros", "reflection"),
        align_corners=(0,),
    ),
    Fact(
        "refuses",
        "linear of 5-D images in 1 of 2 paddings",
        _TVM,
        _TRIAL_DATE,
        tried=True,
        axes=(3,),
        modes=("linear",),
        is_partial=True,
    ),
    Fact(
        "refuses",
        "cubic of 4-D images in 1 of 2 paddings",
        _TVM,
        _TRIAL_DATE,
        tried=True,
        axes=(2,),
        modes=("cubic",),
        is_partial=True,
    ),
    Fact(
        "refuses", "cubic of 5-D images", _TVM, _TRIAL_DATE, tried=True, axes=(3,), modes=("cubic",)
    ),
)

IREE = (
    Fact(
        "wrong",
        "nearest and linear of 4-D images in 1 of 2 paddings; the other one is refused",
        _IREE,
        _TRIAL_DATE,
        tried=True,
        axes=(2,),
        modes=("nearest", "linear"),
        is_partial=True,
    ),
    Fact(
        "refuses",
        "cubic of 4-D images",
        _IREE,
        _TRIAL_DATE,
        tried=True,
        axes=(2,),
        modes=("cubic",),
    ),
    Fact("refuses", "5-D images", _IREE, _TRIAL_DATE, tried=True, axes=(3,)),
)

RKNN = (
    Fact(
        "runs",
        "4-D images of static shapes with zeros or reflection and align_corners 0",
        _RKNN,
        _TRIAL_DATE,
        tried=True,
        axes=(2,),
        padding_modes=("zeros", "reflection"),
        align_corners=(0,),
    ),
    Fact("refuses", "5-D images", _RKNN, _TRIAL_DATE, tried=True, axes=(3,)),
)

ONNX2TORCH = (
    Fact("refuses", "all GridSamples", _ONNX2TORCH, _TRIAL_DATE, tried=True, axes=(2, 3)),
)
