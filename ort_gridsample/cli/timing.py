"""Timing several ways to do the same thing in turns, in one process."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..progress import progress_bar

#: A turn's calls take about so long together; a call of more than SLOW_SECONDS needs no untimed one before it.
TURN_SECONDS = 0.01
SLOW_SECONDS = 0.05
MAX_CALLS = 500
MIN_ROUNDS = 3
#: Other threads of this process are idle when it uses less than this part of a processor.
IDLE_PART = 0.3
IDLE_POLL_SECONDS = 0.02  # sooner, a thread's time may not be counted yet
IDLE_LIMIT_SECONDS = 0.25


@dataclass(frozen=True)
class Timing:
    """Seconds a call (or ratios of them), one number a round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The range of the middle half of the rounds."""
        if len(self.rounds) < 2:
            return self.rounds[0], self.rounds[0]
        first, _, third = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return first, third

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, over the median."""
        first, third = self.quartiles
        return (third - first) / 2 / self.median

    def times_faster_than(self, other: "Timing") -> "Timing":
        """The ratios of ``other``'s seconds to these, round by round; their median is reported."""
        return Timing(tuple(theirs / ours for ours, theirs in zip(self.rounds, other.rounds, strict=True)))


@dataclass(frozen=True)
class Turn:
    """A backend's turn: ``begin()``, not timed, then ``call()`` a number of times."""

    call: Callable[[], object]
    begin: Callable[[], None] = lambda: None


def measure(turns: Mapping[str, Turn], rounds: int, seconds: float) -> dict[str, Timing]:
    """Time each of ``turns``, whose first calls are done, once a round, in rotating order: the median of a few calls.

    Before its timed calls a backend waits until the threads of the one before sleep, and makes an untimed call. The
    last round is number ``rounds``, or the first after ``seconds`` that is not among the first MIN_ROUNDS.
    """
    once = {}
    for name, turn in turns.items():
        turn.begin()
        once[name] = _timed(turn.call)
    found: dict[str, list[float]] = {name: [] for name in turns}
    names = list(turns)
    start = time.perf_counter()
    with progress_bar("timing", rounds * len(names)) as begin:
        for done in range(rounds):
            if done >= MIN_ROUNDS and time.perf_counter() - start > seconds:
                break
            first = done % len(names)
            for name in names[first:] + names[:first]:
                begin(name)
                turn = turns[name]
                turn.begin()
                _wait_until_idle()
                if once[name] < SLOW_SECONDS:
                    turn.call()
                count = max(1, min(MAX_CALLS, round(TURN_SECONDS / max(once[name], 1e-9))))
                found[name].append(statistics.median(_timed(turn.call) for _ in range(count)))
    return {name: Timing(tuple(times)) for name, times in found.items()}


def _wait_until_idle() -> None:
    """Wait until no other thread of this process is busy: threads of libraries spin for a while after a call."""
    end = time.perf_counter() + IDLE_LIMIT_SECONDS
    while time.perf_counter() < end:
        wall, used = time.perf_counter(), time.process_time()
        time.sleep(IDLE_POLL_SECONDS)
        if time.process_time() - used < IDLE_PART * (time.perf_counter() - wall):
            return


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
