"""How many runs a second one session answers when 1 and when 16 threads feed it, every answer checked.

    python -m tests.benchmarks.throughput

The model is a linear GridSample of 1×64×128×128; the session has 2 threads. Rounds with 1 and with 16 feeding threads
take turns, and the median of their ratios is printed.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import ort_gridsample as ogs
from ort_gridsample.core.arrays import Array

from .contestants import CONTESTANTS
from .suite import Arrays

FEEDERS, ROUNDS, RUNS = 16, 15, 96


def model() -> bytes:
    """One GridSample node, opset 20."""
    X, grid, Y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in ("X", "grid", "Y"))
    graph = helper.make_graph([helper.make_node("GridSample", ["X", "grid"], ["Y"])], "one", [X, grid], [Y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return proto.SerializeToString()


def runs_a_second(
    session: onnxruntime.InferenceSession, feeds: list[Arrays], expected: list[Array], feeders: int
) -> float:
    """Share RUNS runs among ``feeders`` threads; every answer is held against the expected one."""
    wrong: list[int] = []

    def feed(first: int) -> None:
        for i in range(first, RUNS, feeders):
            k = i % len(feeds)
            if not np.allclose(session.run(None, feeds[k])[0], expected[k], rtol=0, atol=1e-4):
                wrong.append(i)

    threads = [threading.Thread(target=feed, args=(first,)) for first in range(feeders)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    assert not wrong, f"{len(wrong)} of {RUNS} answers are wrong"
    return RUNS / seconds


def main() -> None:
    """Print both throughputs and their ratio, natively and on every kind of op that there is."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.throughput", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 1 if parser.parse_args().quick else ROUNDS
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1, 64, 128, 128)).astype(np.float32)
    feeds = [{"X": X, "grid": rng.uniform(-1, 1, (1, 128, 128, 2)).astype(np.float32)} for _ in range(4)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    expected = [ogs.grid_sample(feed["X"], feed["grid"]) for feed in feeds]
    for contestant in CONTESTANTS:
        if not (contestant.networks and contestant.installed):
            continue
        contestant.begin()
        if contestant.ops is None:
            session = onnxruntime.InferenceSession(model(), options)
        else:
            session = ogs.InferenceSession(model(), options, nodes="all")
        one, many = [], []
        for _ in range(rounds):
            one.append(runs_a_second(session, feeds, expected, 1))
            many.append(runs_a_second(session, feeds, expected, FEEDERS))
        ratio = statistics.median(b / a for a, b in zip(one, many, strict=True))
        print(
            f"{contestant.name:16}  1 thread: {statistics.median(one):6.0f} runs/s   {FEEDERS} threads: "
            f"{statistics.median(many):6.0f} runs/s   ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
