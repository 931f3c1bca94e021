"""Callbacks of ctypes, which ONNX Runtime calls."""

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest

from ort_gridsample.custom_ops import signals
from ort_gridsample.custom_ops.compiled_ops import c_api, registry
from ort_gridsample.custom_ops.signals import with_signals_deferred
from support.processes import run_json_program

needs_signals = pytest.mark.skipif(
    sys.platform == "win32", reason="a process of Windows cannot be sent signals"
)
FAILURE = 7


def fail(*arguments: int) -> int:
    raise ValueError("the callback fails")


def fail_to_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def interrupt_and_return(*arguments: int) -> int:
    signal.raise_signal(signal.SIGINT)
    return 3


def callback(function: Callable[..., int]) -> Callable[..., int]:
    """Return ``function`` as a C function of one argument."""
    pointer: Callable[..., int] = c_api.callback(1, function, lambda error, *arguments: FAILURE)
    return pointer


def call_and_wait(function: Callable[..., object], *arguments: object) -> None:
    """Call a C function, and wait for the handlers of its signals."""
    function(*arguments)
    time.sleep(60)


def test_callback_that_raises_returns_the_result_of_failure() -> None:
    assert callback(fail)(0) == FAILURE


def test_failure_gets_the_exception_and_the_arguments() -> None:
    calls = []

    def failure(error: BaseException, *arguments: int) -> int:
        calls.append((type(error), arguments))
        return 0

    c_api.callback(2, fail, failure)(5, 6)
    assert calls == [(ValueError, (5, 6))]


@needs_signals
def test_signal_in_a_callback_is_handled_after_the_callback_returned() -> None:
    results = []

    def interrupt(argument: int) -> int:
        results.append(interrupt_and_return())
        return 0

    with pytest.raises(KeyboardInterrupt):
        call_and_wait(callback(interrupt), 0)
    assert results == [3]


@needs_signals
def test_signal_in_a_callback_is_handled_after_the_c_function_returned() -> None:
    """The C function sorts numbers, and compares them by the callback."""
    libc = ctypes.CDLL(None)
    values = (ctypes.c_int * 6)(5, 3, 6, 1, 2, 4)
    calls = []

    def compare(first: int, second: int) -> int:
        calls.append(first)
        if len(calls) == 1:
            interrupt_and_return()
        return ctypes.c_int.from_address(first).value - ctypes.c_int.from_address(second).value

    function = c_api.callback(2, compare, lambda *_: FAILURE)
    with pytest.raises(KeyboardInterrupt):
        call_and_wait(libc.qsort, values, 6, ctypes.sizeof(ctypes.c_int), function)
    assert list(values) == [1, 2, 3, 4, 5, 6]


@needs_signals
def test_signal_before_the_handlers_are_replaced_is_handled_after_the_callback_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    getsignal = signals.getsignal
    interrupts = iter([signal.raise_signal])
    results = []

    def interrupt_once(signum: int) -> object:
        for interrupt in interrupts:
            interrupt(signal.SIGINT)
        return getsignal(signum)

    def call_and_keep(argument: int) -> int:
        results.append(argument)
        return argument

    monkeypatch.setattr(signals, "getsignal", interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        call_and_wait(callback(call_and_keep), 5)
    assert results == [5]


def test_callback_whose_exception_has_no_text_returns_the_result_of_failure() -> None:
    class NoTextError(Exception):
        def __str__(self) -> str:
            raise MemoryError

    def fail_without_text(argument: int) -> int:
        raise NoTextError

    failures = []

    def failure(error: BaseException, argument: int) -> int:
        failures.append(str(error))
        return FAILURE

    assert c_api.callback(1, fail_without_text, failure)(0) == FAILURE
    assert failures == ["a callback of ort_gridsample failed"]


@needs_signals
def test_signal_in_a_callback_restores_the_handlers() -> None:
    handlers = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt):
        call_and_wait(callback(interrupt_and_return), 0)
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == handlers


@needs_signals
def test_signal_in_a_callback_during_a_deferral_is_handled_at_its_end() -> None:
    steps = []

    def run() -> None:
        steps.append(callback(interrupt_and_return)(0))
        steps.append("end")

    with pytest.raises(KeyboardInterrupt):
        with_signals_deferred(run)
    assert steps == [3, "end"]


def test_callback_on_another_thread_defers_no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals._deferral, "begin", fail)
    results: list[int] = []
    function = callback(lambda argument: argument + 1)
    thread = threading.Thread(target=lambda: results.append(function(1)))
    thread.start()
    thread.join()
    assert results == [2]


@needs_signals
def test_signal_in_a_callback_without_another_thread_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threading.Thread, "start", fail_to_start)
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert callback(interrupt_and_return)(0) == 3
    finally:
        signal.signal(signal.SIGINT, handler)
    assert "is lost: RuntimeError" in caplog.text


def test_function_that_describes_an_op_and_fails_returns_0() -> None:
    describe = registry._description_callback(lambda op: fail())
    assert describe(0) == 0


DEFERRED_SIGNALS = {
    "two_runs": ["first", signal.SIGTERM, "second", signal.SIGTERM],
    "nested_runs": ["a", "b", signal.SIGTERM],
    "handler_that_raises": ["run", signal.SIGINT, signal.SIGTERM, "InterruptedError"],
    "fork_in_run": ["parent", signal.SIGTERM, "child"],
}


@needs_signals
@pytest.mark.parametrize("scenario", DEFERRED_SIGNALS)
def test_deferred_signals_are_handled_at_the_end_of_the_outermost_run(scenario: str) -> None:
    *calls, are_handlers_restored = run_json_program("deferred_signals.py", scenario)
    assert calls == DEFERRED_SIGNALS[scenario]
    assert are_handlers_restored
