"""The limit of Python ops that compute at the same time."""

from __future__ import annotations

from queue import SimpleQueue

from .cpus import available_cpus
from .process import after_fork


class ConcurrencyLimit:
    """A context that at most ``count`` threads enter at once.

    More threads would contend for the caches and for the GIL. A semaphore would lose a place
    if the handler of a signal raises between two of its steps; a queue's operations are single
    steps.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.reset()

    def reset(self) -> None:
        """Forget all threads inside the context."""
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._count):
            self._free.put(None)

    def __enter__(self) -> None:
        self._free.get()

    def __exit__(self, *_: object) -> None:
        self._free.put(None)


#: All Python ops compute within this limit, in any session and thread.
ops_limit = ConcurrencyLimit(available_cpus())


@after_fork
def _after_fork() -> None:
    # Threads do not survive a fork, but their places would remain occupied.
    ops_limit.reset()
