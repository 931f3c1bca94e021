"""Time the first session of its kind, whose kernels are compiled, in new processes.

This is ``python -m tests.benchmarks.cold_start [MODEL.onnx ...]``. By default, it opens exported
models. For each model, the cache of kernels is empty at first. One process opens the model, another
process opens it with the kernels on disk, and, with an empty cache again, two processes open it at
the same time. The CPU time is that of all processes together.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

EXPORTED = Path(__file__).parent.parent / "exported"
MODELS = ("rt_detr_v2", "raft", "voxelmorph")
ROUNDS = 3
#: The program that opens a model.
_PROGRAM = """\
import sys, onnxruntime, ort_gridsample
onnxruntime.set_default_logger_severity(3)
ort_gridsample.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
"""


class Cost(NamedTuple):
    """The time that processes took, in seconds."""

    elapsed: float
    cpu: float


def open_at_once(
    model: Path, cache: str, n_processes: int, python: str | Path = sys.executable
) -> Cost:
    """Open a model in several new processes at the same time.

    Args:
        model: the path of the model.
        cache: the folder of compiled kernels.
        n_processes: the number of processes.
        python: the interpreter of the processes.

    Raises:
        RuntimeError: a process failed.
    """
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "ORT_DISABLE_TELEMETRY": "1"}
    command = [str(python), "-c", _PROGRAM, str(model)]
    cpu_before = _cpu_of_children()
    began = time.perf_counter()
    processes = [subprocess.Popen(command, env=environment) for _ in range(n_processes)]
    statuses = [process.wait() for process in processes]
    elapsed = time.perf_counter() - began
    if any(statuses):
        raise RuntimeError(f"a process that opened {model} ended with {max(statuses, key=abs)}")
    return Cost(elapsed, _cpu_of_children() - cpu_before)


def _cpu_of_children() -> float:
    """Return the CPU time of all child processes that have ended, in seconds."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cold_start")
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    models = arguments.models or [EXPORTED / f"{name}.onnx" for name in MODELS]
    print(
        f"{'seconds':20}{'cold':>8}{'CPU':>8}{'on disk':>9}{'two cold':>10}{'CPU':>8}{'ratio':>7}"
    )
    for model in models:
        rounds = []
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as cache:
                one = open_at_once(model, cache, 1)
                warm = open_at_once(model, cache, 1)
            with tempfile.TemporaryDirectory() as cache:
                two = open_at_once(model, cache, 2)
            rounds.append((*one, warm.elapsed, *two))
        cold, cpu, warm_elapsed, both, both_cpu = map(statistics.median, zip(*rounds, strict=True))
        print(
            f"{model.stem:20}{cold:8.1f}{cpu:8.1f}{warm_elapsed:9.2f}"
            f"{both:10.1f}{both_cpu:8.1f}{both / cold:7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
