"""Time several backends that compute the same, in turns and in one process."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..progress import progress_bar

#: The calls of a turn take about this long together.
TURN_SECONDS = 0.01
#: A call that takes longer needs no untimed call before it.
SLOW_SECONDS = 0.05
MAX_CALLS = 500
MIN_ROUNDS = 3
#: Other threads of this process are idle if it uses less than this part of a processor.
IDLE_PART = 0.3
#: In a shorter interval, a thread's time may not be counted yet.
IDLE_POLL_SECONDS = 0.02
IDLE_LIMIT_SECONDS = 0.25


@dataclass(frozen=True)
class Timing:
    """The seconds of a call, or ratios of such seconds: one number for each round."""

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
        """Half the distance of the quartiles, divided by the median."""
        first, third = self.quartiles
        return (third - first) / 2 / self.median

    def times_faster_than(self, other: "Timing") -> "Timing":
        """Return the ratios of the seconds of ``other`` to these, round by round.

        The median of the ratios is what the commands print.
        """
        pairs = zip(self.rounds, other.rounds, strict=True)
        return Timing(tuple(other_seconds / seconds for seconds, other_seconds in pairs))


@dataclass(frozen=True)
class Turn:
    """The turn of a backend: ``begin()``, which is not timed, then ``call()`` several times."""

    call: Callable[[], object]
    begin: Callable[[], None] = lambda: None


def measure(turns: Mapping[str, Turn], rounds: int, seconds: float) -> dict[str, Timing]:
    """Time each of ``turns`` once in each round, in rotating order.

    The time in a round is the median of a few calls. Before its timed calls, a backend waits until
    the threads of the previous one sleep, and makes an untimed call.

    Args:
        turns: the turns by the name of the backend. Each must have been called before.
        rounds: the number of rounds.
        seconds: after this time the current round is the last one, but at least MIN_ROUNDS are
            made.
    """
    call_seconds = dict[str, float]()
    for name, turn in turns.items():
        turn.begin()
        seconds_of_first = _timed(turn.call)
        is_slow = seconds_of_first >= SLOW_SECONDS
        # The first call after ``begin`` may load what others only use.
        call_seconds[name] = seconds_of_first if is_slow else _timed(turn.call)
    medians: dict[str, list[float]] = {name: [] for name in turns}
    names = list(turns)
    start = time.perf_counter()
    with progress_bar("timing", rounds * len(names)) as show:
        for round_number in range(rounds):
            if round_number >= MIN_ROUNDS and time.perf_counter() - start > seconds:
                break
            first = round_number % len(names)
            for name in names[first:] + names[:first]:
                show(name)
                medians[name].append(_timed_turn(turns[name], call_seconds[name]))
    return {name: Timing(tuple(times)) for name, times in medians.items()}


def _timed_turn(turn: Turn, call_seconds: float) -> float:
    """Return the median time of the calls of a turn, each of which takes about ``call_seconds``."""
    turn.begin()
    _wait_until_idle()
    if call_seconds < SLOW_SECONDS:
        turn.call()
    count = round(TURN_SECONDS / max(call_seconds, 1e-9))
    count = max(1, min(MAX_CALLS, count))
    return statistics.median(_timed(turn.call) for _ in range(count))


def _wait_until_idle() -> None:
    """Wait until no other thread of this process is busy.

    Threads of libraries spin for a while after a call.
    """
    end = time.perf_counter() + IDLE_LIMIT_SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        start_used = time.process_time()
        time.sleep(IDLE_POLL_SECONDS)
        used = time.process_time() - start_used
        if used < IDLE_PART * (time.perf_counter() - start):
            return


def _timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
