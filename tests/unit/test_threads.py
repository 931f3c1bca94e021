"""Threads: how many there are, the pool that runs blocks, and the helpers of the compiled core."""

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
from unittest.mock import Mock, call

import numpy as np
import pytest

import ort_gridsample as ogs
from ort_gridsample import settings
from ort_gridsample.reference import affine, cpus, sampler, threads
from ort_gridsample.reference.plan import plan_for
from support.processes import run_script

pytest.importorskip("numba", reason="the compiled core is one of those that threads run")

from ort_gridsample.kernels import jit_core

pytestmark = pytest.mark.usefixtures("default_core")


def wait_until(
    condition: Callable[[], bool], meanwhile: Callable[[], object] = lambda: time.sleep(0.001)
) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        meanwhile()


class TestNumThreads:
    @pytest.fixture(autouse=True)
    def _default(self, monkeypatch):
        monkeypatch.delenv(settings.NUM_THREADS.variable, raising=False)
        monkeypatch.setattr(settings.NUM_THREADS, "value", None)

    def test_it_is_what_was_set_or_the_environment_s_or_the_machine_s(self, monkeypatch):
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

    @pytest.mark.parametrize("wrong", [1.5, "many", 0, np.int8(-1)])
    def test_what_is_no_number_of_threads_is_refused(self, wrong, monkeypatch):
        monkeypatch.setenv(settings.NUM_THREADS.variable, str(wrong))
        with pytest.raises(
            ValueError, match=rf"ORT_GRIDSAMPLE_NUM_THREADS is '{wrong}', expected a whole number"
        ):
            ogs.get_num_threads()
        kind = TypeError if isinstance(wrong, float | str) else ValueError
        ogs.set_num_threads(5)
        expected = rf"num_threads is {re.escape(repr(wrong))}, expected a whole number, at least 1"
        with pytest.raises(kind, match=expected):
            ogs.set_num_threads(wrong)
        assert ogs.get_num_threads() == 5
        X = np.zeros((1, 1, 2, 2))
        grid = np.zeros((1, 1, 1, 2))
        theta = np.zeros((1, 2, 3))
        for function, arguments in (
            (ogs.grid_sample, (X, grid)),
            (ogs.affine_grid, (theta, (1, 1, 2, 2))),
        ):
            with pytest.raises(ogs.GridSampleError, match=expected):
                function(*arguments, num_threads=wrong)

    @pytest.mark.parametrize("core", ["numpy", "jit"])
    def test_so_many_are_used_and_no_more(self, core, monkeypatch):
        """What was set, unless a call says another number; a small call takes one."""
        ogs.set_core(core)
        seen = []
        original = threads.for_each
        for user in (sampler, affine):
            monkeypatch.setattr(
                user, "for_each", lambda f, items, n: (seen.append(n), original(f, items, n))
            )
        do = jit_core._run_phase
        monkeypatch.setattr(jit_core, "_run_phase", lambda *run: (seen.append(run[-1]), do(*run)))
        X = np.zeros((4, 4, 8, 8), np.float32)
        grid = np.zeros((4, 300, 300, 2), np.float32)
        ogs.set_num_threads(3)
        for sample, most in (
            (lambda: ogs.grid_sample(X, grid), 3),
            (lambda: ogs.grid_sample(X, grid, num_threads=np.int64(2)), 2),
            (lambda: ogs.grid_sample(X, grid[:, :2, :2]), 1),
            (lambda: ogs.affine_grid(np.zeros((4, 2, 3)), (4, 1, 200, 200)), 3),
            (lambda: ogs.affine_grid(np.zeros((4, 2, 3)), (4, 1, 200, 200), num_threads=1), 1),
        ):
            seen.clear()
            sample()
            assert max(seen, default=1) == most  # a small call runs in a single C function


class TestForEach:
    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_the_first_exception_stops_the_work(self, error):
        work = Mock(side_effect=chain([None] * 3, [error], repeat(None)))
        with pytest.raises(error):
            threads.for_each(work, range(10**6), 2)
        assert work.call_count < 10**6

    @pytest.mark.parametrize("startable", [0, 1])
    def test_a_thread_that_cannot_be_started_leaves_the_work_to_the_others(
        self, startable, monkeypatch
    ):
        """The call waits for the helper that has started, and keeps no reference."""
        monkeypatch.setattr(threads, "_pool", threads._Pool())
        start = threading.Thread.start
        started = []

        def start_some(thread: threading.Thread) -> None:
            if len(started) == startable:
                raise RuntimeError("can't start new thread")
            started.append(thread)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_some)
        main = threading.get_ident()
        helping = threading.Event()
        done = np.zeros(5)

        def work(item: int, done: np.ndarray = done) -> None:
            if threading.get_ident() != main:
                helping.set()
                time.sleep(0.1)  # while the others finish
            elif startable:
                assert helping.wait(60)
            done[item] += 1

        for _ in range(1 if startable else 3):
            threads.for_each(work, range(5), 4)
        assert set(done) == {1 if startable else 3}
        kept = weakref.ref(done)
        del done, work
        gc.collect()
        wait_until(lambda: kept() is None)  # the helper may still be on its way out

    def test_an_error_of_a_helper_is_raised_and_keeps_nothing(self):
        class WrongError(Exception):
            pass

        main = threading.get_ident()
        failed = threading.Event()
        held = np.zeros(3)

        def work(item: int, held: np.ndarray = held) -> None:
            if threading.get_ident() != main:
                failed.set()
                raise WrongError
            assert failed.wait(60)

        gc.collect()
        gc.disable()
        try:
            with contextlib.suppress(WrongError):
                threads.for_each(work, range(100), 2)
                pytest.fail("nothing was raised")
            kept = weakref.ref(held)
            del held, work
            wait_until(lambda: kept() is None)  # the helper may still be on its way out
        finally:
            gc.enable()

    @pytest.mark.parametrize(
        ("woken", "cpus", "error", "moves"),
        [
            (3, {2, 3, 5}, None, [{2, 5}, {2, 3, 5}]),
            (3, {2, 3, 5}, OSError, [{2, 5}]),
            (3, {3}, None, []),
            (2, {2, 3}, None, []),
        ],
    )
    def test_one_that_wakes_beside_its_waker_moves_if_it_can(
        self, woken, cpus, error, moves, monkeypatch
    ):
        """To any other processor, and then it may run where it could before."""
        move = Mock(side_effect=error)
        done = threading.Event()
        monkeypatch.setattr(threads, "_current_cpu", Mock(side_effect=[3, woken]))
        monkeypatch.setattr(os, "sched_getaffinity", lambda thread: cpus, raising=False)
        monkeypatch.setattr(os, "sched_setaffinity", move, raising=False)
        threads.submit(done.set, 1)
        assert done.wait(60)
        assert move.call_args_list == [call(0, each) for each in moves]

    @pytest.mark.parametrize("num_threads", [1, 2, 4])
    def test_every_item_once_and_nested_calls_do_not_wait_for_each_other(self, num_threads):
        done: list[int] = []
        threads.for_each(
            lambda _: threads.for_each(done.append, range(50), num_threads), range(4), num_threads
        )
        assert sorted(done) == sorted([*range(50)] * 4)


class TestHelpers:
    """Threads that stay for a moment when they have helped, of the compiled core."""

    X = np.ones((1, 4, 64, 64), np.float32)
    grid = np.zeros((1, 300, 300, 2), np.float32)
    Y = np.ones((1, 4, 300, 300), np.float32)

    @pytest.fixture(autouse=True)
    def setup(self):
        ogs.set_core("jit")

    @pytest.fixture
    def runs(self, monkeypatch):
        """The arguments of all launches, which outlive them here."""
        seen = []
        do = jit_core._run_phase
        monkeypatch.setattr(
            jit_core, "_run_phase", lambda *words: (seen.append(words[1]), do(*words))
        )
        return seen

    @pytest.fixture
    def cheap(self, monkeypatch):
        """Every helper is worth its while."""
        monkeypatch.setattr(jit_core, "TAPS_PER_HELPER", 1)
        monkeypatch.setattr(jit_core, "TAPS_PER_THREAD", 1)

    @pytest.fixture
    def slots(self):
        """Their words, when all helpers have gone."""
        words = jit_core._slots.view(np.int64)
        wait_until(lambda: not words.any())
        return words

    def sample(self, num_threads=2):
        np.testing.assert_array_equal(
            ogs.grid_sample(self.X, self.grid, num_threads=num_threads), self.Y
        )

    def test_one_who_is_there_helps_where_nobody_is_woken(self, runs, slots, monkeypatch):
        """Less is worth a helper than is worth waking one."""
        helping = jit_core._variant("float32", "float32", "linear", "zeros", False)
        ends = threading.Event()
        monkeypatch.setattr(jit_core, "TAPS_PER_THREAD", 1 << 40)
        monkeypatch.setattr(jit_core, "submit", lambda *_: pytest.fail("one is woken"))

        def stay():
            while not ends.is_set():
                helping.helper_loop(*jit_core._slots_arguments)

        self.sample()
        assert runs.pop().task.number == 1
        thread = threading.Thread(target=stay)
        thread.start()
        try:
            # It goes, and comes back at once.
            wait_until(lambda: bool(runs) and runs.pop().task.number != 1, meanwhile=self.sample)
        finally:
            ends.set()
            thread.join()

    @pytest.mark.parametrize("num_threads", [2, 5, 1000])
    def test_where_nobody_comes_nothing_is_missed(
        self, num_threads, runs, slots, cheap, monkeypatch
    ):
        """And who comes late finds nothing."""
        asked = []
        monkeypatch.setattr(
            jit_core, "submit", lambda *work_and_count: asked.append(work_and_count)
        )
        self.sample(num_threads)
        ((work, count),) = asked
        assert count == runs[0].task.wanted
        assert 0 < count < num_threads
        assert work() == 0
        assert not slots.any()

    def test_as_many_as_the_machine_has(self):
        """However many that are, they find what to do."""
        script = """
import numpy as np, ort_gridsample as ogs
from ort_gridsample.reference import cpus
cpus.available_cpus = lambda: 100
from ort_gridsample.kernels import jit_core
jit_core.TAPS_PER_HELPER = jit_core.TAPS_PER_THREAD = 1
jit_core.submit = lambda work, count: print(count)
do = jit_core._run_phase
def run_phase(variant, launch, *rest):
    print(rest[-1], launch.items >= 100, do(variant, launch, *rest))
jit_core._run_phase = run_phase
for most in (100, 1000):
    ogs.set_num_threads(most)
    ogs.grid_sample(np.ones((1, 4, 64, 64), "f"), np.zeros((1, 1000, 1000, 2), "f"))
"""
        assert (
            run_script(script, {**os.environ, "ORT_GRIDSAMPLE_CORE": "jit"})
            == ["99", "100 True None"] * 2
        )

    def test_no_more_than_there_are_places(self, slots):
        """Some wait for an offer, the others go at once; a forked child forgets them all."""
        helping = jit_core._variant("float32", "float32", "linear", "zeros", False)
        slots[:] = 1
        try:
            assert helping.helper_loop(*jit_core._slots_arguments) == 0
            assert slots.all()
        finally:
            jit_core._after_fork()
        assert not slots.any()

    def test_an_interrupted_call_waits_for_them(self, runs, cheap, monkeypatch):
        """They write to memory of its own."""
        original = jit_core._variant
        helped = []

        def interrupted(*words):
            variant = original(*words)

            def worker(launch, number):
                wait_until(lambda: runs[-1].task.number != 1, meanwhile=lambda: None)
                helped.append(1)
                raise KeyboardInterrupt

            return variant._replace(worker=worker)

        monkeypatch.setattr(jit_core, "_variant", interrupted)
        Y = np.empty((1, 4, 90000), np.float32)
        plan = plan_for(self.X.dtype, "linear", "zeros", False)
        for _ in range(5):
            with pytest.raises(KeyboardInterrupt):
                jit_core.grid_sample(self.X, self.grid.reshape(1, -1, 2), Y, plan, 3)
            assert runs[-1].task.expected == 0
            before = Y.copy()
            time.sleep(0.01)
            np.testing.assert_array_equal(Y, before)
        assert helped == 5 * [1]

    def test_many_callers_share_them(self):
        """Whoever comes first is helped, and every answer is right."""

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
    """In the midst of a launch, whose memory is nobody else's."""
    X = np.ones((1, 20, 8, 8), np.float32)
    grid = np.zeros((1, 40, 40, 2), np.float32)
    calls = []
    ogs.set_core("jit")
    variant = jit_core._variant("float32", "float32", "linear", "zeros", False)

    def handler(*words):
        calls.append(words)
        if len(calls) == 1:
            ogs.grid_sample(2 * X, grid, num_threads=2)
        return variant.worker(*words)

    monkeypatch.setattr(jit_core, "_variant", lambda *_: variant._replace(worker=handler))
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
