"""Compare the backends over a sweep of sizes, and print the least ratios beside the means.

This is ``python -m tests.benchmarks.sweep``. By default it times a random sample of the cases, the
same in each run. The function on the compiled core is compared with PyTorch and OpenVINO, compiled
ops with onnxruntime's own kernels. In mode nearest the function is also compared with itself in
mode linear, on the same arrays.
"""

import argparse
import math
import random
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from ort_gridsample import spec
from ort_gridsample.cli.arguments import magnitude, positive
from ort_gridsample.cli.output import table
from ort_gridsample.cli.timing import Turn
from ort_gridsample.progress import progress_bar

from . import report
from . import run as runner
from .__main__ import THREADS
from .backends import BACKENDS, COMPILED, NATIVE, Backend, kept
from .suite import GRIDS, Case, Shape, grid_sample_case

CHANNELS = (1, 2, 3, 4, 8, 16, 32, 64, 256)
#: The spatial lengths of X and of the output.
LENGTHS: tuple[Shape, ...] = (
    (16, 16),
    (64, 64),
    (128, 128),
    (480, 640),
    (1080, 1920),
    (8, 8, 8),
    (32, 32, 32),
    (96, 96, 96),
)
BATCHES = (1, 8)
TYPES = {"float32": 4, "float16": 2, "uint8": 1}
#: The maximum size of X and of Y. Larger cases would take most of the time.
MAX_BYTES = 1 << 26
#: The number of cases of the default sample, and the seed that selects them.
SAMPLE = 150
SEED = 0

FUNCTION = "function jit"
LINEAR = "function jit, linear"
#: The pairs that are compared: the first one is ours.
COMPARISONS = ((COMPILED, NATIVE), (FUNCTION, "PyTorch"), (FUNCTION, "OpenVINO"))
#: In mode nearest, a position reads one pixel of each channel. Compared with linear, this pays off
#: for at least so many channels and positions.
MIN_CHANNELS = 8
MIN_POSITIONS = 4096
#: A ratio below this one is not explained by noise.
LEAST = 0.97


def sweep_cases() -> Iterator[Case]:
    """Yield all cases of the sweep."""
    combinations = product(LENGTHS, BATCHES, CHANNELS, TYPES, spec.MODES, GRIDS)
    for lengths, n, channels, type_, mode, grid in combinations:
        nbytes = n * channels * math.prod(lengths) * TYPES[type_]
        if nbytes > MAX_BYTES or (mode == "cubic" and len(lengths) == 3):  # like onnxruntime
            continue
        yield grid_sample_case((n, channels, *lengths), lengths, mode, grid=grid, type=type_)


def linear_turn(case: Case, backend: Backend, threads: int) -> Turn:
    """Return the turn of a ``backend`` on the arrays of a case, in mode linear."""
    linear = Case(
        heading=case.heading,
        label=LINEAR,
        group=case.group,
        short=case.short,
        feeds=case.feeds,
        model=case.model,
        operator=case.operator,
        attributes={**case.attributes, "mode": "linear"},
    )
    turn, _ = backend.turn(linear, case.feeds(), threads)
    return turn


def is_compared_with_linear(case: Case) -> bool:
    """Whether the case has mode nearest and enough channels and positions."""
    _, channels, *lengths = (int(word) for word in case.heading.split(" ")[0].split("×"))
    is_large = channels >= MIN_CHANNELS and math.prod(lengths) >= MIN_POSITIONS
    return is_large and case.attributes["mode"] == "nearest"


def losses_text(results: Sequence[runner.Result]) -> str:
    """Return a table of the cases in which another backend is ahead, the worst ones first."""
    losses: list[tuple[float, Sequence[str]]] = []
    for result in results:
        for ours, other in COMPARISONS:
            ratio = result.ratio(ours, other)
            if ratio is not None and ratio.median < LEAST:
                times = (result.timings[name].median * 1e6 for name in (ours, other))
                row = (report.digits(ratio.median), other, *map(report.digits, times))
                losses.append((ratio.median, (*row, result.case.name)))
    title = f"Cases in which another backend is ahead (ratio below {LEAST}), in µs"
    if not losses:
        return f"{title}: none"
    rows = [("", "ahead", "ours", "its", "case"), *(row for _, row in sorted(losses))]
    return f"{title}\n{table(rows, indent='  ')}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. The exit status is 1 if an output is wrong, and 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sweep", description=__doc__)
    parser.add_argument("--whole", action="store_true", help="all cases, which takes hours")
    parser.add_argument(
        "--cases", type=positive, default=SAMPLE, metavar="N", help="so many (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=SEED, metavar="N", help="of the sample (default: %(default)s)"
    )
    parser.add_argument(
        "--only", type=re.compile, default="", metavar="REGEX", help="only cases whose names match"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the names of the cases, and stop"
    )
    parser.add_argument(
        "--threads",
        type=positive,
        default=THREADS,
        metavar="N",
        help="for each backend (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds", type=positive, default=5, metavar="N", help="at most (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=magnitude, default=1.0, metavar="S", help="a case, about (default: 1)"
    )
    arguments = parser.parse_args(argv)
    cases = [case for case in sweep_cases() if arguments.only.search(case.name)]
    if not cases:
        parser.error(f"argument --only: {arguments.only.pattern!r} matches no case of --list")
    if not arguments.whole and len(cases) > arguments.cases:
        chosen = random.Random(arguments.seed).sample(range(len(cases)), arguments.cases)
        cases = [cases[index] for index in sorted(chosen)]
    if arguments.list:
        print("\n".join(case.name for case in cases))
        return 0
    time_case = partial(
        _time_case,
        threads=arguments.threads,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
    )
    results: list[runner.Result] = []
    interrupted = False
    try:
        with progress_bar("sweep", len(cases)) as begin, kept():
            for case in cases:
                begin(case.name)
                results.append(time_case(case))
    except KeyboardInterrupt:
        interrupted = True
    parts = [report.environment_text(arguments.threads)]
    for ours, other in COMPARISONS:
        parts += report.comparison_text(results, ours, other)
    parts += report.comparison_text(results, FUNCTION, LINEAR)
    print("\n\n".join([*parts, losses_text(results), *report.reasons_text(results)]))
    return 130 if interrupted else int(any(result.wrong for result in results))


def _time_case(case: Case, threads: int, rounds: int, seconds: float) -> runner.Result:
    """Time all backends that are compared on a case."""
    names = {name for pair in COMPARISONS for name in pair}
    backends = [backend for backend in BACKENDS if backend.name in names and backend.installed]
    others = {}
    if is_compared_with_linear(case):
        for backend in backends:
            if backend.name == FUNCTION:
                others[LINEAR] = linear_turn(case, backend, threads)
    return runner.run_case(case, backends, threads, rounds, seconds, others)


if __name__ == "__main__":
    sys.exit(main())
