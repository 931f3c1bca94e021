"""``python -m tests.fuzz``: a long run, or one case again."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator

from ort_gridsample.progress import shown

from . import batches
from .batches import BATCH, Batch
from .inputs import Case
from .worker import Worker


def _batches(arguments: argparse.Namespace, indices: range) -> Iterator[Batch]:
    # Spawned: a forked Hypothesis would share its parent's state.
    chosen = arguments.core, arguments.ops
    with multiprocessing.get_context("spawn").Pool(arguments.workers, batches.start, chosen) as pool:
        yield from pool.imap_unordered(batches.batch, [(arguments.seed, index) for index in indices])


def main() -> int:
    """Run the command line; the exit status is 1 where a case went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the run: the same seed, the same cases")
    parser.add_argument("--batch", type=int, default=0, help=f"where to start, or go on; a batch has {BATCH} cases")
    parser.add_argument("--core", choices=("numpy", "jit"), help="the core to run on")
    parser.add_argument("--ops", choices=("python", "compiled"), help="the ops that sessions run on")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)")
    parser.add_argument("--case", metavar="JSON", help="run this one case, as a failure prints it, and nothing else")
    arguments = parser.parse_args()
    again = "python -m tests.fuzz"
    again += "".join(f" --{name} {value}" for name in ("core", "ops") if (value := getattr(arguments, name)))
    if arguments.case:
        worker = Worker(arguments.core, arguments.ops)
        result = worker.run(Case.from_json(arguments.case))
        worker.close()
        print(f"{result.kind}: {result.text}\n{result.wrong or 'as it must be'}")
        return int(bool(result.wrong))

    indices = range(arguments.batch, arguments.batch + -(-arguments.cases // BATCH))
    counts, failures = Counter[str](), 0
    with shown(f"batches of {BATCH} cases", len(indices)) as begin:
        begin("none wrong")
        for batch in _batches(arguments, indices):
            counts += batch.counts
            for case, wrong in batch.failures:
                failures += 1
                print(f"\nbatch {batch.index}: {wrong}\n  {again} --case {shlex.quote(case.to_json())}", flush=True)
            begin(f"{failures or 'none'} wrong")
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    print(f"{counts.total()} cases: {kinds}; {failures} wrong")
    print(f"{again} --seed {arguments.seed} --batch {arguments.batch} --cases {arguments.cases}")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
