"""The runtimes and converters for which lowered nodes have another form, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: The names of :data:`RUNTIMES`, for type checkers.
RuntimeName: TypeAlias = Literal[
    "iree",
    "mnn",
    "onnx2tf",
    "onnx2torch",
    "onnxconverter-common",
    "onnxruntime-webgpu",
    "rknn",
    "tvm",
]


@dataclass(frozen=True)
class Runtime:
    """The form of lowered nodes for a runtime.

    Attributes:
        without: the operators that the nodes must not have.
        has_int64_indices: whether indices may be int64.
        has_allowzero: whether Reshapes may have the attribute ``allowzero``.
        computes_shapes: whether shapes may be computed from lengths that are known only in a run.
        max_gathers: the maximum number of Gathers. The taps of outer axes are gathered one by one,
            which takes the least memory and time; those of inner axes are gathered together, which
            takes the fewest nodes.
        max_split_outputs: the maximum number of outputs of a Split.
        coordinate_type: the type in which coordinates, indices and weights are computed; None: the
            type that the operator computes in.
        opset: the newest opset that the model is written in by default, or None for any.
        why: what the runtime does with the common form, and the cost of the runtime's form.
    """

    without: frozenset[str] = frozenset()
    has_int64_indices: bool = True
    has_allowzero: bool = True
    computes_shapes: bool = True
    max_gathers: int = 16
    max_split_outputs: int = 16
    coordinate_type: str | None = None
    opset: int | None = None
    why: str = ""


#: The common form, for all other runtimes.
ANY = Runtime()

RUNTIMES: Mapping[str, Runtime] = {
    "iree": Runtime(
        has_allowzero=False,
        computes_shapes=False,
        why="IREE 3.13 cannot compile a Reshape to a computed shape. The shapes have one -1 "
        "instead, which takes a few more Reshapes. Lengths that are not known before a run "
        "must not be 0.",
    ),
    "mnn": Runtime(
        without=frozenset({"Mod", "Round"}),
        why="MNN 3.6.1 rounds ties away from zero, and its Mod of floats differs from ONNX's. A "
        "sum and a difference round instead, and the floor of a quotient gives the whole "
        "periods: beyond some millions of them inexactly.",
    ),
    "onnx2tf": Runtime(
        without=frozenset({"Mod"}),
        why="onnx2tf 2.6.9 has no Mod of floats. It is written as for MNN.",
    ),
    "onnx2torch": Runtime(
        has_allowzero=False,
        opset=17,
        why="onnx2torch 1.5.15 has no Split or Pad of opset 18, and no Reshape with allowzero. "
        "Without allowzero, lengths that are not known before a run must not be 0.",
    ),
    "onnxconverter-common": Runtime(
        coordinate_type="float64",
        why="Not a runtime: its conversion to float16 (1.16.0) leaves a listed node in float32, "
        "but rounds the outputs of a listed Constant, and of a listed node that several nodes "
        "read. The one of onnxruntime.transformers (1.32) rounds every float32 value between "
        "two listed nodes. Neither converts float64, so coordinates, their constants and the "
        "weights are computed in float64. A weight is cast to float32 before it is multiplied "
        "by a pixel.",
    ),
    "onnxruntime-webgpu": Runtime(
        without=frozenset({"Max", "Min", "Mod", "Round"}),
        has_int64_indices=False,
        max_split_outputs=8,
        why="onnxruntime's WebGPU provider 1.27 leaves these operators to the CPU, and a GPU has "
        "few buffers at once. Max and Min are written as a Less and a Where, the others as for "
        "MNN. If the shape of X is not known before a run, its batches together must have less "
        "than 2**31 pixels.",
    ),
    "rknn": Runtime(
        max_gathers=1,
        opset=19,
        why="RKNN's toolkit 2.5.0 reads opsets up to 19, and treats two Gathers of one tensor as "
        "the same, even with different indices. A single Gather of all taps multiplies the "
        "memory by the number of taps.",
    ),
    "tvm": Runtime(
        has_allowzero=False,
        computes_shapes=False,
        why="TVM 0.27 cannot compile a Reshape to a computed shape, or a Range of a computed "
        "length. They are written as for IREE.",
    ),
}
