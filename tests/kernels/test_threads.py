"""The number of threads, the thread pool of the NumPy core, and helpers of the compiled core."""

import contextlib
import gc
import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from unittest.mock import Mock

import numpy as np
import pytest

import ort_gridsample as ogs
from ort_gridsample import settings
from ort_gridsample.reference import affine, sampler
from ort_gridsample.reference.plan import plan_for
from ort_gridsample.system import cpus, threads
from support.compare import refusal

pytest.importorskip("numba", reason="the compiled core needs Numba")

from ort_gridsample.kernels import jit_core

pytestmark = pytest.mark.usefixtures("default_core")


def wait_until(
    condition: Callable[[], bool], between: Callable[[], object] = lambda: time.sleep(0.001)
) -> None:
    """Wait until ``condition`` holds; call ``between`` before each new check."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        between()


class TestWakeUpTime:
    def test_average_moves_to_the_times_that_are_added(self):
        average = threads.WakeUpTime()
        average.add(20_000, 0)
        assert average.average(0) == 90_000
        for _ in range(100):
            average.add(20_000, 0)
        assert average.average(0) == pytest.approx(20_000, rel=1e-3)

    def test_average_of_very_long_times_is_limited(self):
        average = threads.WakeUpTime()
        for _ in range(100):
            average.add(10**10, 0)
        assert average.average(0) == pytest.approx(threads.WakeUpTime.LONGEST, rel=1e-3)

    @pytest.mark.parametrize(("nanoseconds", "expected"), [(10**6, 100_000), (20_000, 20_000)])
    def test_long_average_is_forgotten_and_a_short_one_is_kept(self, nanoseconds, expected):
        average = threads.WakeUpTime()
        for _ in range(100):
            average.add(nanoseconds, 0)
        later = threads.WakeUpTime.MAX_AGE + 1
        assert average.average(later) == pytest.approx(expected, rel=1e-3)
        average.add(expected, later)
        assert average.average(later) == pytest.approx(expected, rel=1e-3)

    def test_submit_adds_the_time_until_the_call(self, monkeypatch):
        added = []
        monkeypatch.setattr(threads.wake_up_time, "add", lambda *times: added.append(times))
        called = threading.Event()
        before = time.perf_counter_ns()
        threads.submit(called.set, 1)
        assert called.wait(60)
        ((nanoseconds, now),) = added
        assert 0 < nanoseconds <= now - before


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="threads cannot be moved here",
)
def test_submitted_work_stays_off_the_processor_of_its_caller(monkeypatch):
    """The thread of the pool may use all processors again afterwards."""
    allowed = os.sched_getaffinity(0)
    monkeypatch.setattr(threads, "_pool", threads._Pool())
    for cpu in sorted(allowed)[:2]:
        monkeypatch.setattr(threads, "_current_cpu", lambda cpu=cpu: cpu)
        used: list[set[int]] = []
        threads.submit(lambda used=used: used.append(os.sched_getaffinity(0)), 1)
        wait_until(lambda used=used: len(used) == 1)
        assert used == [allowed - {cpu}]


class TestNumThreads:
    @pytest.fixture(autouse=True)
    def _default(self, monkeypatch):
        monkeypatch.delenv(settings.NUM_THREADS.variable, raising=False)
        monkeypatch.setattr(settings.NUM_THREADS, "value", None)

    def test_get_num_threads_is_the_setting_the_variable_or_the_processors(self, monkeypatch):
        assert ogs.get_num_threads() == cpus.available_cpus()
        monkeypatch.setenv(settings.NUM_THREADS.variable, "7")
        assert ogs.get_num_threads() == 7
        ogs.set_num_threads(np.int64(3))
        assert ogs.get_num_threads() == 3
        assert type(ogs.get_num_threads()) is int
        ogs.set_num_threads(None)
        assert ogs.get_num_threads() == 7
        monkeypatch.setenv(settings.NUM_THREADS.variable, "")
        assert ogs.get_num_threads() == cpus.available_cpus()

    @pytest.mark.parametrize("invalid", ["1.5", "many", "0", "-1"])
    def test_get_num_threads_with_invalid_variable_raises(self, invalid, monkeypatch):
        monkeypatch.setenv(settings.NUM_THREADS.variable, invalid)
        error = refusal(ogs.get_num_threads)
        assert error.where == "environment"
        assert (error.argument, error.found) == (settings.NUM_THREADS.variable, repr(invalid))
        assert error.expected == "a whole number, at least 1"

    @pytest.mark.parametrize("invalid", [0, np.int8(-1)])
    def test_set_num_threads_of_invalid_number_raises_and_keeps_the_setting(self, invalid):
        ogs.set_num_threads(5)
        error = refusal(ogs.set_num_threads, invalid)
        assert (error.where, error.argument) == ("set_num_threads", "num_threads")
        assert error.found == repr(invalid)
        assert ogs.get_num_threads() == 5

    @pytest.mark.parametrize("invalid", [1.5, "many"])
    def test_set_num_threads_of_another_type_raises_type_error(self, invalid):
        ogs.set_num_threads(5)
        expected = rf"num_threads is {re.escape(repr(invalid))}, expected a whole number"
        with pytest.raises(TypeError, match=expected):
            ogs.set_num_threads(invalid)
        assert ogs.get_num_threads() == 5

    @pytest.mark.parametrize("invalid", [1.5, "many", 0, np.int8(-1)])
    def test_function_with_invalid_num_threads_raises(self, invalid):
        X = np.zeros((1, 1, 2, 2))
        grid = np.zeros((1, 1, 1, 2))
        error = refusal(ogs.grid_sample, X, grid, num_threads=invalid)
        assert (error.argument, error.found) == ("num_threads", repr(invalid))
        error = refusal(ogs.affine_grid, np.zeros((1, 2, 3)), (1, 1, 2, 2), num_threads=invalid)
        assert (error.argument, error.found) == ("num_threads", repr(invalid))

    @pytest.mark.parametrize("core", ["numpy", "jit"])
    def test_functions_use_at_most_num_threads(self, core, monkeypatch):
        """The number is that of the call, else that of the setting; a small call takes one."""
        ogs.set_core(core)
        thread_counts = []
        original_for_each = threads.for_each
        original_run_phase = jit_core._run_phase

        def count_for_each(function, items, num_threads):
            thread_counts.append(num_threads)
            return original_for_each(function, items, num_threads)

        def count_run_phase(*arguments):
            thread_counts.append(arguments[-1])
            return original_run_phase(*arguments)

        for module in (sampler, affine):
            monkeypatch.setattr(module, "for_each", count_for_each)
        monkeypatch.setattr(jit_core, "_run_phase", count_run_phase)
        X = np.zeros((4, 4, 8, 8), np.float32)
        grid = np.zeros((4, 300, 300, 2), np.float32)
        theta = np.zeros((4, 2, 3))
        size = (4, 1, 200, 200)
        ogs.set_num_threads(3)
        for call_function, max_threads in (
            (lambda: ogs.grid_sample(X, grid), 3),
            (lambda: ogs.grid_sample(X, grid, num_threads=np.int64(2)), 2),
            (lambda: ogs.grid_sample(X, grid[:, :2, :2]), 1),
            (lambda: ogs.affine_grid(theta, size), 3),
            (lambda: ogs.affine_grid(theta, size, num_threads=1), 1),
        ):
            thread_counts.clear()
            call_function()
            # A small call runs in a single C function.
            assert max(thread_counts, default=1) == max_threads

    def test_small_call_uses_several_threads_of_the_default(self, monkeypatch):
        """One channel of 128 by 128 is worth a helper that spins, smaller calls are not."""
        resolved = []
        original = jit_core.resolve_num_threads

        def resolve(num_threads):
            resolved.append(num_threads)
            return original(num_threads)

        monkeypatch.setattr(jit_core, "resolve_num_threads", resolve)
        ogs.set_core("jit")
        for side, expected in ((32, []), (128, [None])):
            resolved.clear()
            ogs.grid_sample(
                np.zeros((1, 1, 128, 128), np.float32),
                np.zeros((1, side, side, 2), np.float32),
                "nearest",
            )
            assert resolved == expected

    def test_environment_that_is_another_mapping_is_read(self, monkeypatch):
        monkeypatch.setattr("os.environ", {settings.NUM_THREADS.variable: "7"})
        assert ogs.get_num_threads() == 7

    def test_processors_of_a_call_are_at_most_10_ms_old(self, monkeypatch):
        monkeypatch.setattr(cpus, "available_cpus", lambda: 5)
        wait_until(lambda: cpus.recently_available_cpus() == 5)
        monkeypatch.setattr(cpus, "available_cpus", lambda: 6)
        start = time.monotonic_ns()
        wait_until(lambda: cpus.recently_available_cpus() == 6)
        assert time.monotonic_ns() - start < 10**9

    def test_processors_of_a_thread_are_not_those_of_another_one(self, monkeypatch):
        monkeypatch.setattr(cpus, "MAX_AGE", 10**11)
        monkeypatch.setattr(cpus, "_recent_cpus", cpus._RecentCpus())
        monkeypatch.setattr(cpus, "available_cpus", lambda: 5)
        assert cpus.recently_available_cpus() == 5
        monkeypatch.setattr(cpus, "available_cpus", lambda: 6)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(cpus.recently_available_cpus).result() == 6
        assert cpus.recently_available_cpus() == 5


class TestForEach:
    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_for_each_stops_at_the_first_exception(self, error):
        work = Mock(side_effect=chain([None] * 3, [error], repeat(None)))
        with pytest.raises(error):
            threads.for_each(work, range(10**6), 2)
        assert work.call_count < 10**6

    @pytest.mark.parametrize("max_started", [0, 1])
    def test_for_each_does_all_items_if_threads_cannot_be_started(self, max_started, monkeypatch):
        """The call waits for the helper that has started, and keeps no reference."""
        monkeypatch.setattr(threads, "_pool", threads._Pool())
        original_start = threading.Thread.start
        started = []

        def start(thread: threading.Thread) -> None:
            if len(started) == max_started:
                raise RuntimeError("can't start new thread")
            started.append(thread)
            original_start(thread)

        monkeypatch.setattr(threading.Thread, "start", start)
        main_thread = threading.get_ident()
        is_helping = threading.Event()
        counts = np.zeros(5)

        def work(item: int, counts: np.ndarray = counts) -> None:
            if threading.get_ident() != main_thread:
                is_helping.set()
                time.sleep(0.1)  # while the main thread finishes its items
            elif max_started:
                assert is_helping.wait(60)
            counts[item] += 1

        n_calls = 1 if max_started else 3
        for _ in range(n_calls):
            threads.for_each(work, range(5), 4)
        assert set(counts) == {n_calls}
        reference = weakref.ref(counts)
        del counts, work
        gc.collect()
        wait_until(lambda: reference() is None)  # the helper may not have ended yet

    def test_for_each_raises_the_error_of_a_helper_and_keeps_no_reference(self):
        class WrongError(Exception):
            pass

        main_thread = threading.get_ident()
        has_failed = threading.Event()
        array = np.zeros(3)

        def work(item: int, array: np.ndarray = array) -> None:
            if threading.get_ident() != main_thread:
                has_failed.set()
                raise WrongError
            assert has_failed.wait(60)

        gc.collect()
        gc.disable()
        try:
            with contextlib.suppress(WrongError):
                threads.for_each(work, range(100), 2)
                pytest.fail("nothing was raised")
            reference = weakref.ref(array)
            del array, work
            wait_until(lambda: reference() is None)  # the helper may not have ended yet
        finally:
            gc.enable()

    @pytest.mark.parametrize("num_threads", [1, 2, 4])
    def test_nested_for_each_does_every_item_once(self, num_threads):
        items: list[int] = []

        def inner(_: int) -> None:
            threads.for_each(items.append, range(50), num_threads)

        threads.for_each(inner, range(4), num_threads)
        assert sorted(items) == sorted([*range(50)] * 4)


class TestHelpers:
    """Threads of the compiled core, which spin briefly after a task."""

    X = np.ones((1, 4, 64, 64), np.float32)
    grid = np.zeros((1, 300, 300, 2), np.float32)
    Y = np.ones((1, 4, 300, 300), np.float32)

    @pytest.fixture(autouse=True)
    def setup(self):
        ogs.set_core("jit")

    @pytest.fixture
    def runs(self, monkeypatch):
        """The records of all launches, which this list keeps alive."""
        launches = []
        original = jit_core._run_phase

        def run_phase(*arguments):
            launches.append(arguments[1])
            return original(*arguments)

        monkeypatch.setattr(jit_core, "_run_phase", run_phase)
        return launches

    @pytest.fixture
    def cheap(self, monkeypatch):
        """Let any call be large enough for helpers."""
        monkeypatch.setattr(jit_core, "WORK_PER_HELPER", 1)
        monkeypatch.setattr(jit_core, "_work_per_helper", lambda: 1)

    @pytest.fixture
    def slots(self):
        """The slots in which helpers wait, after all helpers have left."""
        slots = jit_core._slots.view(np.int64)
        wait_until(lambda: not slots.any())
        return slots

    def sample(self, num_threads=2):
        np.testing.assert_array_equal(
            ogs.grid_sample(self.X, self.grid, num_threads=num_threads), self.Y
        )

    @pytest.mark.parametrize("num_threads", [2, 5, 1000])
    def test_call_without_helpers_is_complete_and_leaves_no_task(
        self, num_threads, runs, slots, cheap, monkeypatch
    ):
        """A helper that is late finds nothing to do."""
        submitted = []
        monkeypatch.setattr(jit_core, "submit", lambda *arguments: submitted.append(arguments))
        self.sample(num_threads)
        ((work, count),) = submitted
        assert count == runs[0].task.wanted
        assert 0 < count < num_threads
        assert work() == 0
        assert not slots.any()

    @pytest.mark.parametrize("nanoseconds", [1000, 30_000, 100_000, 400_000])
    def test_single_call_uses_helpers_for_work_that_is_worth_the_measured_time(
        self, nanoseconds, monkeypatch
    ):
        now = time.perf_counter_ns()
        monkeypatch.setattr(jit_core._thread_local, "end_of_call", 0, raising=False)
        wake_up_time = threads.WakeUpTime()
        monkeypatch.setattr(jit_core, "wake_up_time", wake_up_time)
        assert jit_core._work_per_helper() == 2_100_000
        for _ in range(200):
            wake_up_time.add(nanoseconds, now)
        expected = max(jit_core.WORK_PER_HELPER, jit_core.WORK_PER_NANOSECOND * nanoseconds)
        assert jit_core._work_per_helper() == pytest.approx(expected, rel=1e-3)
        monkeypatch.setattr(jit_core._thread_local, "end_of_call", time.perf_counter_ns())
        monkeypatch.setattr(jit_core, "MAX_PAUSE_OF_LOOP", 1 << 62)
        assert jit_core._work_per_helper() == jit_core.WORK_PER_HELPER

    def test_small_call_with_a_spinning_helper_is_a_single_call_of_compiled_code(
        self, runs, cheap, monkeypatch
    ):
        """The helper works on it, and no thread is started."""
        monkeypatch.setattr(jit_core, "submit", Mock())
        task_numbers = []
        original_run = jit_core._run

        def run(functions, launch, *arguments):
            original_run(functions, launch, *arguments)
            task_numbers.append(launch.task.number)

        monkeypatch.setattr(jit_core, "_run", run)
        functions = jit_core._sampling_functions("float32", "float32", "linear", "zeros", False)
        helper = threading.Thread(
            target=lambda: [functions.helper_loop(*jit_core._slots_arguments) for _ in range(1000)]
        )
        helper.start()

        def has_helped() -> bool:
            runs.clear()
            self.sample()
            return not runs and task_numbers[-1] == 2

        wait_until(has_helped)
        helper.join()

    def test_start_of_helpers_is_not_repeated_while_their_threads_start(self, monkeypatch):
        submitted = []
        monkeypatch.setattr(jit_core, "submit", lambda *arguments: submitted.append(arguments))
        monkeypatch.setattr(jit_core, "MAX_TIME_OF_START", 1 << 61)
        monkeypatch.setattr(jit_core, "_start_time", -(1 << 61))
        assert jit_core._startable_helpers(1 << 40) > 0
        functions = jit_core._sampling_functions("float32", "float32", "linear", "zeros", False)
        jit_core._start_helpers(functions, 2)
        ((work, count),) = submitted
        assert count == 2
        assert jit_core._startable_helpers(1 << 40) == 0
        work()  # in a thread that has started
        assert jit_core._startable_helpers(1 << 40) > 0

    def test_interrupted_call_waits_for_its_helpers(self, runs, cheap, monkeypatch):
        """Helpers write to memory of the call."""
        original = jit_core._sampling_functions
        interrupts = []

        def interrupted(*arguments):
            functions = original(*arguments)

            def worker(launch, number):
                wait_until(lambda: runs[-1].task.number != 1, between=lambda: None)
                interrupts.append(1)
                raise KeyboardInterrupt

            return functions._replace(process_items=worker)

        monkeypatch.setattr(jit_core, "_sampling_functions", interrupted)
        # Bypass the cache, whose entries have the original functions.
        monkeypatch.setattr(jit_core, "_prepared_call", jit_core._prepared_call.__wrapped__)
        # A smaller call is a single call of compiled code if a helper spins.
        Y = np.empty((1, 4, 360_000), np.float32)
        grid = np.zeros((1, 360_000, 2), np.float32)
        plan = plan_for(self.X.dtype, "linear", "zeros", False)
        for _ in range(5):
            with pytest.raises(KeyboardInterrupt):
                jit_core.grid_sample(self.X, grid, Y, plan, 3)
            assert runs[-1].task.active_helpers == 0
            before = Y.copy()
            time.sleep(0.01)
            np.testing.assert_array_equal(Y, before)
        assert len(interrupts) == 5

    def test_concurrent_calls_of_many_threads_have_their_own_results(self):

        def work(seed):
            rng = np.random.default_rng(seed)
            X = rng.random((2, 3, 20, 20), np.float32)
            grid = rng.uniform(-1.2, 1.2, (2, 150, 150, 2)).astype(np.float32)
            expected = ogs.grid_sample(X, grid, num_threads=1)
            return [
                np.array_equal(ogs.grid_sample(X, grid, num_threads=n), expected)
                for n in (2, 3, 8) * 15
            ]

        with ThreadPoolExecutor(5) as callers:
            assert [*callers.map(work, range(5))] == [[True] * 45] * 5


def test_signal_handler_during_a_call_may_sample(monkeypatch):
    """The call of the handler has a launch with memory of its own."""
    X = np.ones((1, 20, 8, 8), np.float32)
    grid = np.zeros((1, 40, 40, 2), np.float32)
    calls = []
    ogs.set_core("jit")
    functions = jit_core._sampling_functions("float32", "float32", "linear", "zeros", False)

    def handler(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            ogs.grid_sample(2 * X, grid, num_threads=2)
        return functions.process_items(*arguments)

    monkeypatch.setattr(
        jit_core, "_sampling_functions", lambda *_: functions._replace(process_items=handler)
    )
    # Bypass the cache, whose entries have the original functions.
    monkeypatch.setattr(jit_core, "_prepared_call", jit_core._prepared_call.__wrapped__)
    Y = ogs.grid_sample(X, grid, num_threads=2)
    np.testing.assert_array_equal(Y, np.ones((1, 20, 40, 40), np.float32))
    assert len(set(calls)) == 2


@pytest.mark.timeout(30)
def test_submit_from_a_signal_handler_inside_submit_does_not_wait(monkeypatch):
    """The handler gets no threads, and runs all of its items itself."""
    pool = threads._Pool()
    monkeypatch.setattr(threads, "_pool", pool)
    results = []

    class InterruptedExecutor(ThreadPoolExecutor):
        def submit(self, *arguments):
            with self._shutdown_lock:  # where a handler interrupts ThreadPoolExecutor.submit
                threads.for_each(results.append, range(3), 2)
            return super().submit(*arguments)

    monkeypatch.setattr(threads, "ThreadPoolExecutor", InterruptedExecutor)
    started = threading.Event()
    threads.submit(started.set, 1)
    assert started.wait(20)
    assert results == [0, 1, 2]
