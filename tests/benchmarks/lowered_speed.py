"""How fast nodes lowered to basic operators run: ``python -m tests.benchmarks.lowered_speed``.

Against onnxruntime's own kernel, on every execution provider that is installed: two threads a side, in turns, medians.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import ort_gridsample as ogs
from ort_gridsample.cli.timing import Turn, measure

from .suite import Arrays, times

SHAPES = ((1, 64, 128, 128), (1, 3, 512, 512), (1, 32, 16, 64, 64))
PROVIDERS = [p for p in onnxruntime.get_available_providers() if p in ("CPUExecutionProvider", "CUDAExecutionProvider")]


def one_node(shape: tuple[int, ...], mode: str, padding_mode: str) -> onnx.ModelProto:
    r = len(shape) - 2
    node = helper.make_node("GridSample", ["X", "grid"], ["Y"], "sample", mode=mode, padding_mode=padding_mode)
    tensor = helper.make_tensor_value_info
    inputs = [
        tensor("X", TensorProto.FLOAT, shape),
        tensor("grid", TensorProto.FLOAT, (shape[0], *shape[2:], r)),
    ]
    graph = helper.make_graph([node], "one node", inputs, [tensor("Y", TensorProto.FLOAT, shape)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def turn(model: onnx.ModelProto, provider: str, feeds: Arrays) -> Turn:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[provider])
    return Turn(partial(session.run, None, feeds))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.lowered_speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds, seconds = (3, 0.3) if parser.parse_args().quick else (15, 4.0)
    generator = np.random.default_rng(0)
    print(f"onnxruntime {onnxruntime.__version__}\n")
    print("| X → Y | mode, padding | provider | native ms | lowered ms | lowered / native |")
    print("|---|---|---|---|---|---|")
    for shape in SHAPES:
        turned = np.eye(len(shape) - 2, len(shape) - 1, dtype=np.float32)[None] * np.float32(0.9)
        turned[0, 0, 1], turned[0, 1, 0] = 0.2, -0.2
        feeds = {"X": generator.standard_normal(shape, np.float32), "grid": ogs.affine_grid(turned, shape)}
        for mode, padding_mode in (("linear", "zeros"), ("linear", "border"), ("nearest", "zeros"), ("cubic", "zeros")):
            if mode == "cubic" and len(shape) == 5:
                continue  # onnxruntime has no kernel to compare with
            native = one_node(shape, mode, padding_mode)
            lowered = ogs.patch_model(native, target="primitives")
            for provider in PROVIDERS:
                turns = {"native": turn(native, provider, feeds), "lowered": turn(lowered, provider, feeds)}
                timings = measure(turns, rounds, seconds)
                ratio = timings["native"].times_faster_than(timings["lowered"]).median
                a, b = (timings[side].median * 1e3 for side in ("native", "lowered"))
                print(
                    f"| {times(shape)} | {mode}, {padding_mode} | {provider[:-17]} | {a:.2f} | {b:.2f} | {ratio:.1f} |"
                )


if __name__ == "__main__":
    main()
