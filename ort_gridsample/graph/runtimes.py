"""The runtimes and converters that people name: what they run, and what a model needs for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from . import runtime_facts
from .runtime_facts import Fact

#: The names of :data:`RUNTIMES`, for type checkers.
RuntimeName: TypeAlias = Literal[
    "coreml",
    "directml",
    "gather-free",
    "iree",
    "litert",
    "mnn",
    "ncnn",
    "onnx2tf",
    "onnx2torch",
    "onnxconverter-common",
    "onnxruntime-webgpu",
    "openvino",
    "qnn",
    "rknn",
    "tensorrt",
    "tvm",
    "webgpu",
]


#: The maximum number of multiply-adds of the matrix products of a node, unless the caller sets it.
#: One point of an encoder's attention with 8,400 queries, on 256 channels of 80 · 80 pixels, has
#: 14 billion.
DEFAULT_MAX_MULTIPLY_ADDS = 10**10
#: The operators of nodes without Gather. Cast is written only for types other than float32.
_MATRIX_OPERATORS = frozenset(
    {
        "Abs",
        "Add",
        "Cast",
        "Concat",
        "Floor",
        "MatMul",
        "Max",
        "Min",
        "Mul",
        "ReduceSum",
        "Reshape",
        "Sub",
        "Transpose",
    }
)


@dataclass(frozen=True)
class Runtime:
    """What a runtime runs, and the form of nodes for it.

    Attributes:
        title: the name of the runtime in texts.
        targets: the targets of ``patch_model`` for it. A node gets the first one that can write it
            and whose nodes the runtime is not known to refuse or to compute wrongly.
        facts: what it is known to run, to refuse and to compute wrongly.
        dialects: the names of the dialects that it reads, but for the standard.
        only: the only operators that the nodes may have, or None for any. Without Gather, X is
            read by matrix products.
        without: the operators that the nodes must not have.
        has_int64_indices: whether indices may be int64.
        has_allowzero: whether Reshapes may have the attribute ``allowzero``.
        computes_shapes: whether shapes may be computed from lengths that are known only in a run.
        max_gathers: the maximum number of Gathers. The taps of outer axes are gathered one by one,
            which takes the least memory and time; those of inner axes are gathered together, which
            takes the fewest nodes.
        max_reshape_axes: the maximum number of axes of the output of a Reshape, or None for any.
        max_split_outputs: the maximum number of outputs of a Split.
        coordinate_type: the type in which coordinates, indices and weights are computed; None: the
            type that the operator computes in.
        opset: the newest opset that the model is written in by default, or None for any.
        max_multiply_adds: the maximum number of multiply-adds of the matrix products of a node.
        why: what the runtime does with the common form, and the cost of the runtime's form.
    """

    title: str = ""
    targets: tuple[str, ...] = ("primitives",)
    facts: tuple[Fact, ...] = ()
    dialects: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    without: frozenset[str] = frozenset()
    has_int64_indices: bool = True
    has_allowzero: bool = True
    computes_shapes: bool = True
    max_gathers: int = 16
    max_reshape_axes: int | None = None
    max_split_outputs: int = 16
    coordinate_type: str | None = None
    opset: int | None = None
    max_multiply_adds: int = DEFAULT_MAX_MULTIPLY_ADDS
    why: str = ""

    def lacks(self, op_type: str) -> bool:
        """Whether the nodes must not have an operator."""
        is_other = self.only is not None and op_type not in self.only
        return is_other or op_type in self.without


#: The common form, for all other runtimes.
ANY = Runtime()

_ONNX2TF = Runtime(
    title="onnx2tf",
    facts=runtime_facts.LITERT,
    without=frozenset({"Mod"}),
    why="onnx2tf 2.6.9 has no Mod of floats. It is written as for MNN.",
)
_WEBGPU = Runtime(
    title="onnxruntime's WebGPU provider",
    facts=runtime_facts.WEBGPU,
    without=frozenset({"Max", "Min", "Mod", "Round"}),
    has_int64_indices=False,
    max_split_outputs=8,
    why="onnxruntime's WebGPU provider 1.27 leaves Max, Min, Mod, Round and integers of 64 bits to "
    "the CPU, and a GPU has few buffers at once. Max and Min are written as a Less and a Where, "
    "the others as for MNN. If the shape of X is not known before a run, its batches together must "
    "have less than 2**31 pixels.",
)
#: 4-D GridSamples of opset 16, and basic operators for what these cannot express.
_PLANAR_TARGETS = ("ai.onnx-2d", "primitives")

RUNTIMES: Mapping[str, Runtime] = {
    "coreml": Runtime(
        title="onnxruntime's CoreML provider",
        targets=_PLANAR_TARGETS,
        facts=runtime_facts.COREML,
        why="The provider samples 4-D images in linear mode. coremltools deprecated its own "
        "converter of ONNX models with release 6.",
    ),
    "directml": Runtime(
        title="onnxruntime's DirectML provider",
        targets=_PLANAR_TARGETS,
        facts=runtime_facts.DIRECTML,
        why="The provider has kernels of opsets 16 to 19, for 4-D images.",
    ),
    "gather-free": Runtime(
        title="a runtime without Gather",
        only=_MATRIX_OPERATORS,
        has_allowzero=False,
        computes_shapes=False,
        why="Some GPUs and NPUs refuse Gather. X is multiplied by a matrix of "
        "weights for each axis, which takes as many multiply-adds for each position as X has "
        "values. The spatial lengths of X must be known, and all but one of those of the output.",
    ),
    "iree": Runtime(
        title="IREE",
        facts=runtime_facts.IREE,
        has_allowzero=False,
        computes_shapes=False,
        why="IREE 3.13 cannot compile a Reshape to a computed shape. The shapes have one -1 "
        "instead, which takes a few more Reshapes. Lengths that are not known before a run "
        "must not be 0.",
    ),
    "litert": replace(
        _ONNX2TF,
        title="LiteRT",
        why=f"{_ONNX2TF.why} On a GPU, LiteRT has Gather, and no tensors of 5 axes.",
    ),
    "mnn": Runtime(
        title="MNN",
        facts=runtime_facts.MNN,
        without=frozenset({"Mod", "Round"}),
        why="MNN 3.6.1 rounds ties away from zero, and its Mod of floats differs from ONNX's. A "
        "sum and a difference round instead, and the floor of a quotient gives the whole "
        "periods: beyond some millions of them inexactly.",
    ),
    "ncnn": Runtime(
        title="ncnn",
        targets=("ai.onnx", "primitives"),
        facts=runtime_facts.NCNN,
        only=_MATRIX_OPERATORS - {"ReduceSum"},
        has_allowzero=False,
        computes_shapes=False,
        max_reshape_axes=4,
        why="ncnn 20261020 runs linear, and cubic as opset 16 names it. It has no Gather and at "
        "most four axes, and pnnx writes a ReduceSum of one axis without its axis. Basic operators "
        "have the form of gather-free, with products with ones as sums.",
    ),
    "onnx2tf": _ONNX2TF,
    "onnx2torch": Runtime(
        title="onnx2torch",
        facts=runtime_facts.ONNX2TORCH,
        has_allowzero=False,
        opset=17,
        why="onnx2torch 1.5.15 has no Split or Pad of opset 18, and no Reshape with allowzero. "
        "Without allowzero, lengths that are not known before a run must not be 0.",
    ),
    "onnxconverter-common": Runtime(
        title="onnxconverter-common",
        coordinate_type="float64",
        why="Not a runtime: its conversion to float16 (1.16.0) leaves a listed node in float32, "
        "but rounds the outputs of a listed Constant, and of a listed node that several nodes "
        "read. The one of onnxruntime.transformers (1.32) rounds every float32 value between "
        "two listed nodes. Neither converts float64, so coordinates, their constants and the "
        "weights are computed in float64. A weight is cast to float32 before it is multiplied "
        "by a pixel.",
    ),
    "onnxruntime-webgpu": replace(_WEBGPU, title=f"{_WEBGPU.title} (basic operators only)"),
    "openvino": Runtime(
        title="OpenVINO",
        targets=_PLANAR_TARGETS,
        facts=runtime_facts.OPENVINO,
        why="OpenVINO 2026.4.1 samples 4-D images only. Releases before 2026.3 do not know the "
        "modes as opset 20 names them.",
    ),
    "qnn": Runtime(
        title="onnxruntime's QNN provider",
        targets=_PLANAR_TARGETS,
        facts=runtime_facts.QNN,
        without=frozenset({"Mod"}),
        why="onnxruntime-qnn 2.7.0 has no cubic, no 5-D images, no Mod of floats and no unknown "
        "shapes. Mod is written as for MNN. An NPU computes in float16: halfway between two "
        "pixels, nearest may be the other one.",
    ),
    "rknn": Runtime(
        title="RKNN",
        facts=runtime_facts.RKNN,
        max_gathers=1,
        opset=19,
        why="RKNN's toolkit 2.5.0 reads opsets up to 19, and treats two Gathers of one tensor as "
        "the same, even with different indices. A single Gather of all taps multiplies the "
        "memory by the number of taps.",
    ),
    "tensorrt": Runtime(
        title="TensorRT",
        targets=("tensorrt-plugins", *_PLANAR_TARGETS),
        facts=runtime_facts.TENSORRT,
        dialects=frozenset({"tensorrt-plugins"}),
        why="TensorRT samples 4-D images; 5-D ones since 11.2. Up to 11.1 it takes opset 20's "
        "linear and cubic for nearest, and it got deformable attention as GridSamples wrong in "
        "some engines. Its plugin computes deformable attention.",
    ),
    "tvm": Runtime(
        title="TVM",
        facts=runtime_facts.TVM,
        has_allowzero=False,
        computes_shapes=False,
        why="TVM 0.27 cannot compile a Reshape to a computed shape, or a Range of a computed "
        "length. They are written as for IREE.",
    ),
    "webgpu": replace(
        _WEBGPU,
        targets=_PLANAR_TARGETS,
        why="The provider samples 4-D images of opset 16. Basic operators have the form of "
        "onnxruntime-webgpu.",
    ),
}
