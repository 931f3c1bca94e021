"""A process that runs cases, one after another, until one ends it."""

import faulthandler
import getpass
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runtimes import workers
from support.processes import BEGINNING, WITHOUT_TORCH

from .inputs import Case
from .verdict import Outcome, outcome

#: A case that takes longer than this, in seconds, hangs; most of the time kernels with checks are compiled.
PATIENCE = 300.0
#: Memory that a worker may address: what a case claims beyond it is refused; what it claims below takes its time.
ADDRESS_SPACE = 5 << 29
#: Let kernels raise where they would read outside X, each compiled anew for that; Numba does not tell them from others
#: in its cache.
_CACHE = Path(tempfile.gettempdir()) / f"ort_gridsample_checked_{getpass.getuser()}"
CHECKED_KERNELS = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(_CACHE)}


class Worker(workers.Worker):
    """Runs cases in a process of its own, and starts another where a case ended it."""

    grace = 60.0

    def __init__(self, core: str, ops: str, check_kernels: bool) -> None:
        self.name = f"{core}-{ops}"
        chosen = {
            "ORT_GRIDSAMPLE_CORE": core,
            "ORT_GRIDSAMPLE_OPS": ops,
            **(CHECKED_KERNELS if check_kernels else {}),
        }
        code = WITHOUT_TORCH + BEGINNING + "from fuzz.worker import main; main()"
        super().__init__(
            ("env", *map("=".join, chosen.items()), sys.executable, "-c", code), PATIENCE
        )

    def run(self, case: Case) -> Outcome:
        """The outcome of ``case``; an abort is one too."""
        answer = self.start() or self.exchange(case.to_json())
        return Outcome("abort", "", answer) if isinstance(answer, str) else Outcome(**answer)


def main() -> None:
    import resource

    from ort_gridsample.reference import sampler

    sampler.INDEX_MODE = "raise"  # where it would read outside X
    sys.unraisablehook = _end_if_outside
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    answers, sys.stdout = sys.stdout, sys.stderr
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(outcome(Case.from_json(line)))), file=answers, flush=True)


def _end_if_outside(unraisable: Any) -> None:
    """End the process where compiled code would read outside an array: it has nobody to raise to, and says it here."""
    sys.__unraisablehook__(unraisable)
    if unraisable.exc_type is IndexError:
        os._exit(1)
