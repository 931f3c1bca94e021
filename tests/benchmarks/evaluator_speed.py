"""How fast onnx's own evaluator is with this package's operators: ``python -m tests.benchmarks.evaluator_speed``.

Against the evaluator's own: a node each, in turns, medians.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import ort_gridsample as ogs
from ort_gridsample.cli.timing import Turn, measure

from .lowered_speed import one_node
from .suite import times

SHAPES = ((1, 2, 24, 24), (1, 1, 8, 8, 8))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.evaluator_speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds, seconds = (1, 0.1) if parser.parse_args().quick else (9, 4.0)
    generator = np.random.default_rng(0)
    print(f"onnx {onnx.__version__}, core {ogs.get_core()}\n")
    print("| X → Y | mode, padding | its own ms | ort_gridsample's ms | times as fast | largest difference |")
    print("|---|---|---|---|---|---|")
    for shape in SHAPES:
        X, r = generator.uniform(0, 1, shape).astype(np.float32), len(shape) - 2
        feeds = {"X": X, "grid": generator.uniform(-1.2, 1.2, (1, *shape[2:], r)).astype(np.float32)}
        for mode in ("nearest", "linear", "cubic"):
            for padding_mode in ("zeros", "border", "reflection"):
                model = one_node(shape, mode, padding_mode)
                own, ours = ReferenceEvaluator(model), ReferenceEvaluator(model, new_ops=ogs.reference_ops())
                theirs, answer = (list(side.run(None, feeds)) for side in (own, ours))
                difference = np.abs(np.subtract(theirs[0], answer[0])).max()
                turns = {"own": Turn(partial(own.run, None, feeds)), "ours": Turn(partial(ours.run, None, feeds))}
                timings = measure(turns, rounds, seconds)
                a, b = (timings[side].median * 1e3 for side in ("own", "ours"))
                ratio = timings["ours"].times_faster_than(timings["own"]).median
                print(
                    f"| {times(shape)} | {mode}, {padding_mode} | {a:.1f} | {b:.3f} | {ratio:.0f} | {difference:.2g} |"
                )


if __name__ == "__main__":
    main()
