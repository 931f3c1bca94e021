"""Why sessions with Python ops turn off the spinning of onnxruntime's threads: ``python -m tests.benchmarks.spinning``.

Whole small models, in turns: a native session with its default options, and one with Python ops whose threads spin
(onnxruntime's default), spinning for a moment, not at all (this package's default), and without threads.
"""

from __future__ import annotations

import argparse
from functools import partial

import onnxruntime

import ort_gridsample as ogs
from ort_gridsample.cli.timing import Turn, measure

from . import suite

SPINNING, DURATION = "session.intra_op.allow_spinning", "session.intra_op.spin_duration_us"
#: Session entries and number of threads (0: as many as processors) by column.
WAYS = {
    "spinning": ({SPINNING: "1"}, 0),
    "20 µs": ({SPINNING: "1", DURATION: "20"}, 0),
    "off": ({SPINNING: "0"}, 0),
    "1 thread": ({SPINNING: "0"}, 1),
}


def options(entries: dict[str, str], threads: int) -> onnxruntime.SessionOptions:
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = threads
    for key, value in entries.items():
        made.add_session_config_entry(key, value)
    return made


def turn(session: onnxruntime.InferenceSession, feeds: suite.Arrays) -> Turn:
    return Turn(partial(session.run, None, feeds))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.spinning", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds, seconds = (3, 0.3) if parser.parse_args().quick else (15, 15.0)
    print(
        f"onnxruntime {onnxruntime.__version__}, core {ogs.get_core()}: how many times as fast as the native session\n"
    )
    print(f"| model | native ms | {' | '.join(WAYS)} |")
    print(f"|---|---{'|---' * len(WAYS)}|")
    ogs.set_ops("python")
    for case in suite.network_cases():
        model, feeds = case.model(), case.feeds()
        turns = {"native": turn(onnxruntime.InferenceSession(model), feeds)}
        ways = {way: ogs.InferenceSession(model, options(*how), nodes="all") for way, how in WAYS.items()}
        turns |= {way: turn(session, feeds) for way, session in ways.items()}
        times = measure(turns, rounds, seconds)
        ratios = " | ".join(f"{times[way].times_faster_than(times['native']).median:.2f}" for way in WAYS)
        print(f"| {case.label} | {times['native'].median * 1e3:.1f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
