"""What a run costs besides the kernels."""

from __future__ import annotations

import statistics
from functools import partial

import onnxruntime

from ort_gridsample.cli.table import table
from ort_gridsample.cli.timing import Turn, measure

from .contestants import CONTESTANTS, kept, options_for
from .report import NONE, digits
from .suite import grid_sample_case, one_node

#: What ``--only`` and ``--list`` call it.
TINY_CALL = "a run on tiny tensors"


def tiny_call(threads: int, rounds: int, seconds: float) -> str:
    """A table of how long a run of one node takes, in microseconds, and how much more than an Identity."""
    case = grid_sample_case((1, 1, 2, 2), (2, 2), "linear")
    feeds, X = case.feeds(), ("float32", (1, 1, 2, 2))
    session = onnxruntime.InferenceSession(one_node("Identity", {"X": X}, X, {}), options_for(threads))
    turns = {"native Identity": Turn(partial(session.run, None, {"X": feeds["X"]}))}
    with kept():
        turns |= {c.name: c.turn(case, feeds, threads)[0] for c in CONTESTANTS if c.networks and c.installed}
        turns["native Identity"].call()
        timings = measure(turns, rounds, seconds)
    rows, floor = [["", "µs", "above Identity"]], timings["native Identity"]
    for name, timing in timings.items():
        above = statistics.median(a - b for a, b in zip(timing.rounds, floor.rounds, strict=True)) * 1e6
        rows.append([name, digits(timing.median * 1e6), NONE if timing is floor else digits(above)])
    return f"A run on tiny tensors (2×2 pixels), µs\n{table(rows, indent='  ')}"
