"""A bar for what takes longer than two seconds, with tqdm: on terminals and in notebooks, nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SECONDS = 2.0


@contextmanager
def shown(what: str, total: int | None = None) -> Iterator[Callable[[str], None]]:
    """Show how far ``what`` is, of ``total`` steps if that is known; without tqdm, or in a log, show nothing.

    Yields the function to call as each step begins, with what that is.
    """
    bar, begun = _bar(what, total), False

    def begin(step: str) -> None:
        nonlocal begun
        if bar is not None:
            bar.set_postfix_str(step, refresh=False)
            bar.update(int(begun))  # the step before, which is done now
            begun = True

    try:
        yield begin
    finally:
        if bar is not None:
            bar.close()


def _bar(what: str, total: int | None) -> Any:
    # Not imported in vain, as it takes a while.
    if sys.stderr is None or not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    quiet = type("Bar", (tqdm,), {"monitor_interval": 0})  # no thread that watches it
    return quiet(desc=what, total=total, delay=SECONDS, leave=False, disable=None)
