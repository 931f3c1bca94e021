"""The runtimes for which lowered nodes have a form of their own, and why; all others run the common one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: The runtimes below, for type checkers.
RuntimeName: TypeAlias = Literal[
    "iree", "mnn", "onnx2tf", "onnx2torch", "onnxconverter-common", "onnxruntime-webgpu", "rknn", "tvm"
]


@dataclass(frozen=True)
class Runtime:
    """The form of lowered nodes for a runtime."""

    #: What the nodes do without: operators by name; ``"int64"`` as the type of indices; ``"allowzero"``, the attribute
    #: of Reshape; and ``"lengths"``, shapes computed from lengths that are known only at run time.
    without: frozenset[str] = frozenset()
    #: The most Gathers: taps of the outer axes are gathered one by one, those of the others together. One by one takes
    #: the least memory and time, together the fewest nodes.
    gathers: int = 16
    parts: int = 16  #: the most outputs of a Split
    #: The type in which coordinates, indices and weights are computed; None: the type that the operator computes in.
    coordinates: str | None = None
    opset: int | None = None  #: the newest that the model is written in, unless another is asked for; None: any
    why: str = ""  #: what the runtime does with the common form, and what its own costs


#: The common form.
ANY = Runtime()

RUNTIMES: Mapping[str, Runtime] = {
    "iree": Runtime(
        without=frozenset({"allowzero", "lengths"}),
        why="IREE 3.13 follows no Reshape to a shape that was calculated. One -1 stands for that, so that lengths that "
        "are not known before it runs must not turn out to be 0, and a few Reshapes more.",
    ),
    "mnn": Runtime(
        without=frozenset({"Mod", "Round"}),
        why="MNN 3.6.1 rounds ties away from zero, and its Mod of floats is another one. A sum and a difference round "
        "instead, a quotient's floor takes whole periods off: beyond some millions of them not exactly.",
    ),
    "onnx2tf": Runtime(
        without=frozenset({"Mod"}),
        why="onnx2tf 2.6.9 knows no Mod of floats. A quotient's floor takes whole periods off, as for MNN.",
    ),
    "onnx2torch": Runtime(
        without=frozenset({"allowzero"}),
        opset=17,
        why="onnx2torch 1.5.15 knows no Split or Pad of opset 18 and no Reshape with allowzero. Without that, "
        "lengths that are not known before it runs must not turn out to be 0.",
    ),
    "onnxconverter-common": Runtime(
        coordinates="float64",
        why="Not a runtime: its conversion to float16 (1.16.0) leaves a listed node in float32, but rounds the outputs "
        "of a listed Constant, and of a listed node that several nodes read. The one of onnxruntime.transformers "
        "(1.32) rounds every float32 value between two listed nodes. Neither converts float64, so coordinates, their "
        "constants and the weights are computed in float64. A weight is float32 where it meets a pixel.",
    ),
    "onnxruntime-webgpu": Runtime(
        without=frozenset({"Max", "Min", "Mod", "Round", "int64"}),
        parts=8,
        why="onnxruntime's WebGPU provider 1.27 leaves these to the CPU, and a GPU has few buffers at once. A Less "
        "and a Where stand for Max and Min, the others are as for MNN. Where its shape is not known before it runs, X "
        "must have less than 2**31 pixels, those of its whole batch together.",
    ),
    "rknn": Runtime(
        gathers=1,
        opset=19,
        why="RKNN's toolkit 2.5.0 reads opset 19 at most, and takes two Gathers of one tensor for the same, whatever "
        "their indices. One that gathers all taps takes as many times the memory as there are taps.",
    ),
    "tvm": Runtime(
        without=frozenset({"allowzero", "lengths"}),
        why="TVM 0.27 follows no Reshape to a shape that was calculated, and no Range to such a length. As for IREE.",
    ),
}
