"""How the time goes with the size: ``python -m tests.benchmarks.scales``.

Every contestant, linear, with more and more positions, channels and batches, on a smooth grid and on a random one:
nanoseconds an element of Y, in turns, medians, beside a plain copy of the bytes that must move.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ort_gridsample.cli.table import table
from ort_gridsample.progress import shown

from . import cores, plot, report
from .__main__ import QUICK_ROUNDS, QUICK_SECONDS, THREADS, picture
from .contestants import CONTESTANTS, COPY
from .run import run_case, taking_part
from .suite import GRIDS, GridSampleCase, name_of

ROUNDS, SECONDS = 9, 1.5


@dataclass(frozen=True)
class Scale:
    """Something that grows.

    Attributes:
        name: what it counts.
        sizes: how many.
        case: from a size and a grid of :data:`GRIDS` to what is timed.
    """

    name: str
    sizes: Sequence[int]
    case: Callable[[int, str], GridSampleCase]


SCALES = (
    Scale(
        "elements of Y (1×4×512×512 → 4 channels)",
        [4**k for k in range(5, 15)],
        lambda size, grid: GridSampleCase((1, 4, 512, 512), (round((size / 4) ** 0.5),) * 2, "linear", grid=grid),
    ),
    Scale(
        "channels (1×C×64×64 → 64×64)",
        [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048],
        lambda size, grid: GridSampleCase((1, size, 64, 64), (64, 64), "linear", grid=grid),
    ),
    Scale(
        "batches (N×4×32×32 → 32×32)",
        [4**k for k in range(6)],
        lambda size, grid: GridSampleCase((size, 4, 32, 32), (32, 32), "linear", grid=grid),
    ),
)

#: Size -> contestant, or COPY, -> nanoseconds an element of Y.
Curves = Mapping[int, Mapping[str, float]]


def measured(
    scale: Scale, grid: str, *, quick: bool, threads: int, begin: Callable[[str], None]
) -> Iterator[tuple[int, dict[str, float]]]:
    """The points of the :data:`Curves`, one by one.

    Raises:
        AssertionError: an answer of this package is wrong.
    """
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if quick else (ROUNDS, SECONDS)
    for size in scale.sizes[:1] if quick else scale.sizes:
        case = scale.case(size, grid)
        begin(f"{size} {scale.name} {grid}")
        result = run_case(case, taking_part(), threads=threads, rounds=rounds, seconds=seconds)
        assert not result.wrong, f"{name_of(case)}: {result.wrong}"
        elements = case.X[0] * case.X[1] * prod(case.output)
        yield size, {name: timing.median / elements * 1e9 for name, timing in result.timings.items()}


def as_text(name: str, curves: Curves) -> str:
    """A table, a line a size."""
    names = [c.name for c in CONTESTANTS if any(c.name in points for points in curves.values())] + [COPY]
    rows = [
        [report.digits(points[each]) if each in points else report.NONE for each in names] for points in curves.values()
    ]
    return f"{name}, ns an element\n" + table(
        [["", *names], *([str(size), *row] for size, row in zip(curves, rows, strict=True))], indent="  "
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table for each, and draw them if that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scales", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the smallest sizes, and fewer rounds")
    parser.add_argument("--plot", type=picture, metavar="FILE.png", help="draw what was found")
    arguments = parser.parse_args(argv)
    found: dict[tuple[str, str], Curves] = {}
    print(report.environment_text(report.environment(THREADS)))
    steps = sum(1 if arguments.quick else len(scale.sizes) for scale in SCALES) * len(GRIDS)
    with cores.kept(), shown("scales", steps) as begin:
        for scale in SCALES:
            for grid in GRIDS:
                points = measured(scale, grid, quick=arguments.quick, threads=THREADS, begin=begin)
                found[scale.name, grid] = curves = dict(points)
                print(f"\n{as_text(f'{scale.name}, {grid} grid', curves)}", flush=True)
    if arguments.plot:
        plot.draw_scales(arguments.plot, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
