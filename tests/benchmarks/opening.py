"""Time how long it takes to open a model, compared with onnxruntime.

This is ``python -m tests.benchmarks.opening [MODEL.onnx ...]``. By default, it opens models of one
node, the exported models, and a model of 10,000 nodes. Kernels are on disk, modules are imported
before, and the sides alternate; the times are medians. ``--cpu`` measures the CPU time of the
thread, which depends less on other processes. With ``--options``, SessionOptions are given.
``--peak`` prints the processes' peaks of memory.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from onnx import numpy_helper

from ort_gridsample.cli.bench import SIDES

EXPORTED = Path(__file__).parent.parent / "exported"
ROUNDS = 15
#: The models of one node.
SINGLE_NODES = {
    "GridSample 2-D": """g (float[1,3,64,64] X, float[1,64,64,2] G) => (float[1,3,64,64] Y) {
        Y = GridSample (X, G) }""",
    "GridSample 3-D": """g (float[1,1,8,8,8] X, float[1,8,8,8,3] G) => (float[1,1,8,8,8] Y) {
        Y = GridSample (X, G) }""",
    "GridSample of uint8": """g (uint8[1,3,64,64] X, float[1,64,64,2] G) => (uint8[1,3,64,64] Y) {
        Y = GridSample <mode = "nearest"> (X, G) }""",
    "AffineGrid": """g (float[1,2,3] theta, int64[4] size) => (float[1,N,M,2] G) {
        G = AffineGrid (theta, size) }""",
}
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


def single_node(graph: str) -> onnx.ModelProto:
    """Return a model of one node."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 20]> {graph}')


def count_nodes(graph: onnx.GraphProto) -> int:
    """Return the number of nodes of a graph, with those of the graphs in its nodes."""
    bodies = [attribute.g for node in graph.node for attribute in node.attribute]
    return len(graph.node) + sum(map(count_nodes, bodies))


def seconds(
    side: str,
    model: Path,
    with_options: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the time in seconds that a side takes to open a model."""
    options = onnxruntime.SessionOptions() if with_options else None
    began = clock()
    session = SIDES[side](model, options, providers=["CPUExecutionProvider"])
    elapsed = clock() - began
    del session  # the end of the session's threads is not measured
    return elapsed


def alternating_seconds(
    model: Path, rounds: int, sides: Sequence[str] = tuple(SIDES), **how: Any
) -> list[float]:
    """Return the median seconds of each side, which open ``model`` in turns.

    ``how`` are arguments of :func:`seconds`. A first round is not counted.
    """
    turns = [[seconds(side, model, **how) for side in sides] for _ in range(rounds + 1)]
    return [statistics.median(times) for times in zip(*turns[1:], strict=True)]


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


def write_default_models(folder: Path) -> list[Path]:
    """Write the models to ``folder`` that are not files, and return the paths of all models."""
    paths = []
    for name, graph in SINGLE_NODES.items():
        paths.append(folder / f"{name}.onnx")
        onnx.save(single_node(graph), paths[-1])
    long_path = folder / f"{NODES} nodes.onnx"
    onnx.save(long_model(), long_path)
    return [*paths, *sorted(EXPORTED.glob("*.onnx")), long_path]


def print_peaks(models: Sequence[Path]) -> None:
    print(f"{'MiB':34}{'onnxruntime':>12}{'ort_gridsample':>16}{'ratio':>7}")
    for model in models:
        theirs, ours = (peak(side, model) for side in SIDES)
        print(f"{model.stem:34}{theirs:12.1f}{ours:16.1f}{ours / theirs:7.2f}", flush=True)


def print_times(
    models: Sequence[Path],
    rounds: int,
    with_options: bool,
    clock: Callable[[], float],
) -> None:
    heads = f"{'onnxruntime':>12}{'ort_gridsample':>16}{'difference':>12}{'ratio':>7}"
    print(f"{'ms':34}{'nodes':>7}{heads}")
    for model in models:
        n_nodes = count_nodes(onnx.load(model, load_external_data=False).graph)
        try:
            medians = alternating_seconds(model, rounds, with_options=with_options, clock=clock)
        except Exception as error:  # such as a node that onnxruntime does not run
            print(f"{model.stem:34}{n_nodes:7} {' '.join(str(error).split())[:60]}", flush=True)
            continue
        theirs, ours = (1e3 * median for median in medians)
        times = f"{theirs:12.2f}{ours:16.2f}{ours - theirs:12.2f}{ours / theirs:7.2f}"
        print(f"{model.stem:34}{n_nodes:7}{times}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.opening")
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--options", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--peak", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    onnxruntime.set_default_logger_severity(3)
    with tempfile.TemporaryDirectory() as folder:
        models = arguments.models or write_default_models(Path(folder))
        if arguments.peak:
            print_peaks(models)
        else:
            clock = time.thread_time if arguments.cpu else time.perf_counter
            print_times(models, arguments.rounds, arguments.options, clock)


if __name__ == "__main__":
    main()
