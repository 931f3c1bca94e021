"""A process that runs cases one after another, until one ends it."""

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
from support.processes import SCRIPT_START, WITHOUT_TORCH

from .inputs import Case
from .verdict import Outcome, outcome

#: Seconds after which a case has failed. Most of the time, kernels with checks are compiled.
CASE_TIMEOUT = 300.0
#: Bytes that a worker may address. Larger arrays are refused; smaller ones cost time.
ADDRESS_SPACE = 5 << 29
#: Environment variables that compile kernels with checks of indices. Such kernels have their own
#: cache, because Numba does not distinguish them from others.
_CACHE = Path(tempfile.gettempdir()) / f"ort_gridsample_checked_{getpass.getuser()}"
CHECKED_KERNELS = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(_CACHE)}


class Worker(workers.Worker):
    """Run cases in another process, and start a new one if a case ended it."""

    grace = 60.0

    def __init__(self, core: str, ops: str, check_kernels: bool) -> None:
        self.name = f"{core}-{ops}"
        environment = {"ORT_GRIDSAMPLE_CORE": core, "ORT_GRIDSAMPLE_OPS": ops}
        if check_kernels:
            environment |= CHECKED_KERNELS
        assignments = [f"{name}={value}" for name, value in environment.items()]
        code = WITHOUT_TORCH + SCRIPT_START + "from fuzz.worker import main; main()"
        super().__init__(("env", *assignments, sys.executable, "-c", code), CASE_TIMEOUT)

    def run(self, case: Case) -> Outcome:
        """Return the outcome of ``case``, which may be the end of the process."""
        answer = self.start() or self.exchange(case.to_json())
        return Outcome("abort", "", answer) if isinstance(answer, str) else Outcome(**answer)


def main() -> None:
    """Read cases as lines of JSON, and write their outcomes, after a line when ready."""
    import resource

    from ort_gridsample.reference import blocks

    blocks.INDEX_MODE = "raise"  # for indices outside X
    sys.unraisablehook = _end_if_outside
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    outcomes = sys.stdout
    sys.stdout = sys.stderr  # for what libraries print
    print("{}", file=outcomes, flush=True)
    for line in sys.stdin:
        result = outcome(Case.from_json(line))
        print(json.dumps(asdict(result)), file=outcomes, flush=True)


def _end_if_outside(unraisable: Any) -> None:
    """End the process if compiled code would read outside an array, where it cannot raise."""
    sys.__unraisablehook__(unraisable)
    if unraisable.exc_type is IndexError:
        os._exit(1)
