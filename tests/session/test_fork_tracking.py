"""Which native sessions are tracked: those that a forked child must not destroy."""

import gc
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from ort_gridsample.session import forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


class Native:
    """An object with weak references, as a native session."""


def test_track_from_several_threads_forgets_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_tracked", {})
    monkeypatch.setattr(forks, "_limit", 64)
    sessions = [Native() for _ in range(2000)]

    def track(part: list[Native]) -> None:
        for native in part:
            forks.track(native)
            for _ in range(20):
                forks.track(Native())

    def do_nothing(phase: str, info: dict[str, int]) -> None:
        """Let the interpreter change threads while it collects garbage."""

    gc.callbacks.append(do_nothing)
    thresholds = gc.get_threshold()
    interval = sys.getswitchinterval()
    gc.set_threshold(20)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(track, [sessions[first::4] for first in range(4)]))
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(do_nothing)
    tracked = {id(reference()) for reference in forks._tracked.values()}
    assert tracked.issuperset(map(id, sessions))
