"""A progress bar for work of more than two seconds.

It needs tqdm, and is shown on terminals and in notebooks only.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Shorter work shows no bar.
DELAY_SECONDS = 2.0


@contextmanager
def progress_bar(description: str, total: int | None = None) -> Iterator[Callable[[str], None]]:
    """Show the progress of some work; show nothing without tqdm or in a log.

    Args:
        description: the name of the work.
        total: the number of its steps, if it is known.

    Yields:
        A function to be called with the name of each step as the step begins.
    """
    bar = _open_bar(description, total)
    has_begun = False

    def begin(step: str) -> None:
        nonlocal has_begun
        if bar is None:
            return
        bar.set_postfix_str(step, refresh=False)
        bar.update(1 if has_begun else 0)  # the previous step is done
        has_begun = True

    try:
        yield begin
    finally:
        if bar is not None:
            bar.close()


def _open_bar(description: str, total: int | None) -> Any:
    """Return a bar of tqdm; None if it cannot be shown."""
    if sys.stderr is None:
        return None
    if not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        return None
    try:
        from tqdm.auto import tqdm  # takes a while to import
    except ImportError:
        return None
    # An interval of 0 makes tqdm start no monitor thread.
    bar_type = type("Bar", (tqdm,), {"monitor_interval": 0})
    return bar_type(desc=description, total=total, delay=DELAY_SECONDS, leave=False, disable=None)
