"""Send this process signals inside ``with_signals_deferred``; print the order of the calls in JSON.

Argument: the name of a function here. Handlers record the number of their signal. That of SIGINT
raises an InterruptedError, too. The last item of the output is whether the handlers of both signals
are the same as before.
"""

import json
import os
import signal
import sys

from ort_gridsample.custom_ops.signals import with_signals_deferred

calls: list[object] = []


def record_and_raise(signum: int, frame: object) -> None:
    calls.append(signum)
    raise InterruptedError(signum)


def record(signum: int, frame: object) -> None:
    calls.append(signum)


HANDLERS = {signal.SIGINT: record_and_raise, signal.SIGTERM: record}


def terminate(name: str) -> str:
    """Send SIGTERM; record and return ``name``."""
    signal.raise_signal(signal.SIGTERM)
    calls.append(name)
    return name


def two_runs() -> None:
    for name in ("first", "second"):
        assert with_signals_deferred(terminate, name) == name


def nested_runs() -> None:
    def outer() -> str:
        return with_signals_deferred(terminate, "a") + with_signals_deferred(terminate, "b")

    assert with_signals_deferred(outer) == "ab"


def handler_that_raises() -> None:
    def interrupt_and_terminate() -> None:
        signal.raise_signal(signal.SIGINT)
        terminate("run")

    try:
        with_signals_deferred(interrupt_and_terminate)
    except InterruptedError:
        calls.append("InterruptedError")


def fork_in_run() -> None:
    """The first signal was sent to the parent, and the second to the child, which prints."""

    def terminate_after_fork() -> None:
        terminate("parent")
        child = os.fork()
        if child:
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        terminate("child")

    with_signals_deferred(terminate_after_fork)


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (two_runs, nested_runs, handler_that_raises, fork_in_run)
}
for signum, handler in HANDLERS.items():
    signal.signal(signum, handler)
SCENARIOS[sys.argv[1]]()
are_handlers_restored = all(signal.getsignal(signum) is HANDLERS[signum] for signum in HANDLERS)
print(json.dumps([*calls, are_handlers_restored]))
