"""A progress bar for work of more than two seconds, with tqdm: on terminals and in notebooks, nowhere else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SECONDS = 2.0


@contextmanager
def shown(what: str, total: int | None = None) -> Iterator[Callable[[str], None]]:
    """Show how far the work ``what`` is, of ``total`` steps if known; without tqdm, or in a log, show nothing.

    Yields the function to call with the name of each step as it begins.
    """
    bar, begun = _bar(what, total), False

    def begin(step: str) -> None:
        nonlocal begun
        if bar is not None:
            bar.set_postfix_str(step, refresh=False)
            bar.update(int(begun))  # the step before is done
            begun = True

    try:
        yield begin
    finally:
        if bar is not None:
            bar.close()


def _bar(what: str, total: int | None) -> Any:
    # tqdm takes a while to import.
    if sys.stderr is None or not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    quiet = type("Bar", (tqdm,), {"monitor_interval": 0})  # no thread that watches it
    return quiet(desc=what, total=total, delay=SECONDS, leave=False, disable=None)
