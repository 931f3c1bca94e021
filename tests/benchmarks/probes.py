"""What must be measured in a process of its own: run as a module, with a probe's arguments, this prints JSON."""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import onnxruntime

from ort_gridsample.runtime.session import InferenceSession

from .contestants import CONTESTANTS, options_for
from .suite import SHAPES, grid_sample_case, modes_of

#: Sessions made after the first.
REPEATS = 5

#: Memory is looked at with these shapes of X and output, in these modes.
SIZES: Mapping[str, Sequence[tuple[tuple[int, ...], tuple[int, ...], str]]] = {
    "suite": [(X, output, mode) for X, output in SHAPES for mode in modes_of(len(output))],
    "large": [((1, 3, 512, 512), (8192, 8192), "linear")],
}

_IMPORT = """
import time, numpy, onnx, onnxruntime, onnxruntime_extensions
start = time.perf_counter()
import ort_gridsample
print(time.perf_counter() - start)
"""


class ProbeError(Exception):
    """A probe's process ended with an error."""


def ask(probe: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """What ``probe`` answers in a fresh process."""
    return json.loads(_python(["-m", f"{__package__}.probes", probe, *arguments], environment))


def import_seconds() -> float:
    """How long a fresh process imports this package, its hard dependencies being imported."""
    return float(_python(["-c", _IMPORT]))


def _python(arguments: list[str], environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ProbeError(f"{' '.join(arguments)}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return done.stdout


def making(name: str) -> dict[str, float]:
    """Seconds to make a session for one node, native and of a contestant: the first, and the median of others after.

    And the seconds of the first run, in which nothing should be left to be made.
    """
    case = grid_sample_case((1, 3, 64, 64), (64, 64), "linear")
    model, options, feeds = case.model(), options_for(2), case.feeds()
    sessions: dict[str, Callable[[], onnxruntime.InferenceSession]] = {
        "native": lambda: onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]),
        "patched": lambda: InferenceSession(model, options_for(2), providers=["CPUExecutionProvider"], nodes="all"),
    }
    next(contestant for contestant in CONTESTANTS if contestant.name == name).begin()
    found = {}
    for name, make in sessions.items():
        start = time.perf_counter()
        session = make()
        found[f"{name} first"] = time.perf_counter() - start
        found[f"{name} run"] = _seconds(partial(session.run, None, feeds))
        found[f"{name} after"] = statistics.median(_seconds(make) for _ in range(REPEATS))
    return found


def memory(core: str, which: str) -> dict[str, dict[str, float]]:
    """MiB beyond inputs and output at the peak of a call of the function, and of each session's, case by case.

    ``copies`` is what onnxruntime-extensions copies for an op: the inputs and the output.

    The peak is the kernel's, so that it has everything in it; blocks of memory are given back at once (see
    :data:`MEMORY_ENVIRONMENT`), so that none hides in what a call before left.
    """
    found: dict[str, dict[str, float]] = {}
    for X, output, mode in SIZES[which]:
        case = grid_sample_case(X, output, mode)
        small = grid_sample_case((1, 1, *[8] * len(output)), (64,) * len(output), mode)  # it needs the same code
        mebibytes = found[case.name] = {}
        for contestant in (c for c in CONTESTANTS if c.core == core and c.installed):
            contestant.turn(small, small.feeds(), 2)  # threads, and what is compiled at the first call
            feeds = case.feeds()
            call = contestant.prepare(case, feeds, 2)
            gc.collect()
            before = _reset_peak()
            outputs = call()
            kept = sum(array.nbytes for array in outputs)
            mebibytes["copies"] = (kept + sum(array.nbytes for array in feeds.values())) / 2**20
            mebibytes[contestant.name] = (_status("VmHWM") - before - kept) / 2**20
            del outputs, call, feeds
    return found


#: glibc: every block of 128 KiB and more is mapped, and unmapped when it is free.
MEMORY_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 17)}


def _reset_peak() -> float:
    """Forget the peak of the resident memory; what is resident now, in bytes."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _status("VmRSS")


def _status(key: str) -> float:
    with open("/proc/self/status") as file:
        return next(float(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


PROBES: Mapping[str, Callable[..., Any]] = {"making": making, "memory": memory}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]](*sys.argv[2:])))
