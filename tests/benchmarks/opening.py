"""Time how long it takes to open a model, compared with onnxruntime.

This is ``python -m tests.benchmarks.opening [MODEL.onnx ...]``. By default, it opens exported
models, and a model of 10,000 nodes. Kernels are on disk, modules are imported before, and the sides
alternate. With ``--options``, SessionOptions are given. ``--peak`` prints the processes' peaks of
memory.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from onnx import numpy_helper

from ort_gridsample.cli.bench import SIDES

EXPORTED = Path(__file__).parent.parent / "exported"
ROUNDS = 7
NODES = 10_000
SIDE = 16


def long_model() -> onnx.ModelProto:
    """Return a model of MatMuls and Gathers, each with an initializer, and a GridSample."""
    pairs = range(NODES // 2)
    nodes = "".join(
        f"m{i} = MatMul (g{i}, w{i}) g{i + 1} = Gather <axis = 3> (m{i}, i{i})\n" for i in pairs
    )
    nodes += f"Y = GridSample (g{NODES // 2}, grid)"
    values = f"(float[1,3,{SIDE},{SIDE}] g0, float[1,4,4,2] grid) => (float[] Y)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> long {values} {{ {nodes} }}'
    )
    for name, value in (("w", np.eye(SIDE, dtype=np.float32)), ("i", np.arange(SIDE))):
        model.graph.initializer.extend(numpy_helper.from_array(value, f"{name}{i}") for i in pairs)
    return model


def seconds(side: str, model: Path, with_options: bool) -> float:
    """Return the time in seconds that a side takes to open a model."""
    options = onnxruntime.SessionOptions() if with_options else None
    began = time.perf_counter()
    SIDES[side](model, options, providers=["CPUExecutionProvider"])
    return time.perf_counter() - began


def peak(side: str, model: Path) -> float:
    """Return the peak memory in MiB of a process that opens ``model`` after another model."""
    code = f"from tests.benchmarks import opening as o; print(o.own_peak({side!r}, {str(model)!r}))"
    return float(subprocess.check_output([sys.executable, "-c", code], text=True))


def own_peak(side: str, model: str) -> float:
    """Return the peak memory in MiB of this process, which must not have opened a model."""
    for name in SIDES:
        seconds(name, EXPORTED / "rt_detr_v2.onnx", False)
    seconds(side, Path(model), False)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.opening")
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--options", action="store_true")
    parser.add_argument("--peak", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.models:
            long_path = Path(folder, f"{NODES} nodes.onnx")
            onnx.save(long_model(), long_path)
            names = "rt_detr_v2", "deformable_detr", "voxelmorph", "raft"
            arguments.models = [*(EXPORTED / f"{name}.onnx" for name in names), long_path]
        unit = "MiB" if arguments.peak else "ms"
        print(f"{'':30}{'onnxruntime':>14}{'ort_gridsample':>16}  ratio, of {unit}")
        for model in arguments.models:
            if arguments.peak:
                theirs, ours = (peak(side, model) for side in SIDES)
            else:
                turns = [
                    [1e3 * seconds(side, model, arguments.options) for side in SIDES]
                    for _ in range(ROUNDS + 1)
                ]
                theirs, ours = map(statistics.median, zip(*turns[1:], strict=True))
            print(f"{model.stem:30}{theirs:14.1f}{ours:16.1f}  {ours / theirs:.2f}", flush=True)


if __name__ == "__main__":
    main()
