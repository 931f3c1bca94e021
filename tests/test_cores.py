"""What is particular to the cores: they agree, are chosen as documented, and keep within memory and bounds."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import ort_gridsample as ogs
from ort_gridsample import spec
from ort_gridsample.core import affine, choice, numpy_core, threads
from ort_gridsample.core.plan import plan_for
from processes import WITHOUT_TORCH, python

pytest.importorskip("numba", reason="the compiled core is held against the NumPy core: both are needed")
import numba

from ort_gridsample.core import compilation, crew, halves, jit_core, kernels, lanes, vectors, ways

ROOT = Path(ogs.__file__).parents[1]
NUMERIC = [name for name in spec.TYPES if name != "str"]
SHAPES = {1: (7,), 2: (5, 6), 3: (3, 1, 4), 4: (2, 3, 1, 2)}
STRANGE = np.array([1e10, -1e10, 1e30, -1e30, np.nan, np.inf, -np.inf, 1, -1, 0])


@pytest.fixture(autouse=True)
def _default_core():
    yield
    ogs.set_core(None)


def dtype_of(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def image(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    dtype = dtype_of(name)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    values = rng.normal(size=shape)
    if dtype.kind == "c":
        values = values + 1j * rng.normal(size=shape)
    values = values.astype(dtype)
    values.flat[0] = np.nan
    values.flat[-1] = np.inf
    return values


def positions(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    grid = rng.uniform(-2.5, 2.5, shape)
    return np.where(rng.random(shape) < 0.1, rng.choice(STRANGE, shape), grid)


def tolerance(dtype: np.dtype) -> float:
    """Of floats: the order of a sum changes its last bits, and half a type's precision may make that one step."""
    if dtype.itemsize == 2:
        return 2 * float(ml_dtypes.finfo(dtype).eps)
    return 1e-12 if np.finfo(dtype).dtype == np.float64 else 1e-5


def assert_same(a: np.ndarray, b: np.ndarray) -> None:
    if a.dtype.kind in "iu":  # truncation may make the last bit of a sum a whole
        distance = np.abs(a.astype(object) - b.astype(object))
        assert (distance <= max(1, np.iinfo(a.dtype).max >> 48)).all()
    else:
        close = tolerance(a.dtype)
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        a, b = a.astype(wide), b.astype(wide)
        # A tap beyond the last pixel weighs nothing: infinity times 0 is no number, or nothing where it is left out.
        a = np.where(np.isnan(a) & np.isinf(b), b, a)
        np.testing.assert_allclose(a, b, rtol=close, atol=close)


@pytest.mark.parametrize("mode", spec.MODES)
@pytest.mark.parametrize("name", NUMERIC)
def test_jit_equals_numpy(name, mode):
    rng = np.random.default_rng(7)
    # The grid's type chooses the kernel of the coordinates: both are seen, at half the compilations.
    grid_types = {"float32": FLOATS, "float64": ["float64"], "int8": ["float16"]}.get(name, ["float32"])
    for rank, lengths in SHAPES.items():
        for padding_mode in spec.PADDING_MODES:
            for align_corners in (False, True):
                for grid_type in grid_types:
                    X = image(name, (2, 5, *lengths), rng)
                    with np.errstate(over="ignore"):
                        grid = positions((2, *(3,) * rank, rank), rng).astype(dtype_of(grid_type))
                    answers = []
                    for core in ("numpy", "jit"):
                        ogs.set_core(core)
                        answers.append(ogs.grid_sample(X, grid, mode, padding_mode, align_corners))
                    a, b = answers
                    assert a.dtype == b.dtype == X.dtype
                    if mode == "nearest":
                        np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))
                    elif name == "bool":
                        sums = ogs.grid_sample(X.astype(np.float64), grid, mode, padding_mode, align_corners)
                        clear = np.abs(sums) > 1e-5  # a sum of 0 may be a rounding error beside it
                        np.testing.assert_array_equal(a[clear], b[clear])
                    else:
                        assert_same(a, b)


@pytest.mark.parametrize("mode", spec.MODES)
@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "uint8", "int64", "complex64"])
def test_a_block_that_lies_inside(name, mode):
    """No tap of it is outside, and the table is not written out: the compiled core has a shorter way."""
    rng = np.random.default_rng(8)
    for channels, lengths in itertools.product((1, 5), ((7,), (8, 9), (7, 8, 9))):
        X = image(name, (2, channels, *lengths), rng)
        for count in (1, 3, 40, kernels.BLOCK_POSITIONS + 76):
            grid = rng.uniform(-0.3, 0.3, (2, *[1] * (len(lengths) - 1), count, len(lengths))).astype(np.float32)
            answers = []
            for core in ("numpy", "jit"):
                ogs.set_core(core)
                answers.append(ogs.grid_sample(X, grid, mode))
            assert_same(*answers)


FLOATS = list(spec.FLOATS)


@pytest.fixture
def phases(monkeypatch):
    """Those that the compiled core goes through, READING, LAYING or BOTH, on a machine of many CPUs."""
    seen, original = [], jit_core._way.__wrapped__  # its answers are for this machine
    monkeypatch.setattr(ways, "available_cpus", lambda: 64)

    def watched(*words):
        way = original(*words)

        def steer(run, what, memory):
            if what == lanes.ADVANCE:
                seen.append(ctypes.c_int64.from_address(run + lanes.PHASE).value)
            return way.steer(run, what, memory)

        return way._replace(steer=steer)

    monkeypatch.setattr(jit_core, "_way", watched)
    return seen


#: Channels, pixels of an axis and positions: those that fit a thread's share of the cache, and those that do not, of
#: which one chunk, or not even that, is laid out at a time.
SIZES = [(2, 6, 400), (5, 6, 400), (16, 6, 400), (37, 6, 400), (37, 60, 4000), (37, 130, 9000)]


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("name", ["uint8", "float16", "float32", "float64", "complex128"])
def test_a_copy_past_the_caches(name, channels):
    """Where Y is large, in whole lines of the caches and what is left over at either end of a block.

    The channels are three at once, and then two, or one by itself.
    """
    rng = np.random.default_rng(0)
    positions = lanes.PASSED_BYTES // (channels * dtype_of(name).itemsize) + 7
    X = image(name, (1, channels, 20, 30), rng)
    grid = rng.uniform(-1.2, 1.2, (1, positions, 1, 2)).astype(np.float32)
    answers = []
    for core in ("numpy", "jit"):
        ogs.set_core(core)
        answers.append(ogs.grid_sample(X, grid, "nearest"))
    assert answers[0].nbytes >= lanes.PASSED_BYTES
    np.testing.assert_array_equal(*(answer.view(np.uint8) for answer in answers))


@pytest.mark.parametrize("name", FLOATS)
def test_rows_of_channels(name, phases, monkeypatch):
    """A small X read often is laid out in rows: whatever the number of channels, in as many goes as fit.

    One thread does all of it by itself, several share what is laid out where there is too little for each.
    """
    monkeypatch.setattr(jit_core, "TAPS_PER_THREAD", 1)
    rng, seen = np.random.default_rng(11), set()
    for (channels, side, count), n in itertools.product(SIZES, (1, 3)):
        X, grid = image(name, (n, channels, side, side), rng), positions((n, 1, count, 2), rng).astype(np.float32)
        for num_threads, (mode, padding_mode) in itertools.product(
            (1, 8), (("linear", "reflection"), ("cubic", "zeros")) if side == 6 else (("linear", "zeros"),)
        ):
            phases.clear()
            answers = []
            for core in ("numpy", "jit"):
                ogs.set_core(core)
                answers.append(ogs.grid_sample(X, grid, mode, padding_mode, num_threads=num_threads))
            assert_same(*answers)
            seen.add(tuple(phases))
    shared = (lanes.LAYING, lanes.READING)
    assert {(lanes.BOTH,), shared, 3 * shared} <= seen


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("name", [*FLOATS, "complex64", "complex128"])
def test_numpy_takes_many_channels_at_once(name, num_threads, monkeypatch):
    """And answers as it does channel by channel, of which not all can be turned round together."""
    monkeypatch.setattr(numpy_core, "TAPS_PER_THREAD", 1)
    sampled, original = [], numpy_core._sample_rows
    monkeypatch.setattr(numpy_core, "_sample_rows", lambda *a: (sampled.append(len(a[0])), original(*a)))
    ogs.set_core("numpy")
    rng, channels = np.random.default_rng(12), numpy_core.CHANNELS_LAST + 3
    for n, r, mode in ((1, 1, "linear"), (3, 2, "linear"), (1, 2, "cubic"), (2, 3, "linear")):
        X = image(name, (n, channels, *(9, 8, 5)[:r]), rng)
        X[:, 3, ..., 4], X[:, 5, ..., 2] = np.inf, np.nan
        grid = positions((n, *(3000, *[1] * (r - 1)), r), rng).astype(np.float32)
        for padding_mode in spec.PADDING_MODES:
            found = ogs.grid_sample(X, grid, mode, padding_mode, num_threads=num_threads)
            one_by_one = [
                ogs.grid_sample(X[:, c : c + 1], grid, mode, padding_mode, num_threads=num_threads)
                for c in range(channels)
            ]
            assert_same(found, np.concatenate(one_by_one, axis=1))
    assert sampled == [channels] * 3 * (1 + 3 + 1 + 2)


class TestHelpers:
    """Threads that stay for a moment when they have helped, of the compiled core."""

    X, grid = np.ones((1, 4, 64, 64), np.float32), np.zeros((1, 300, 300, 2), np.float32)
    Y = np.ones((1, 4, 300, 300), np.float32)

    @pytest.fixture(autouse=True)
    def setup(self):
        ogs.set_core("jit")

    @pytest.fixture
    def runs(self, monkeypatch):
        """The words of all runs, which outlive them here."""
        seen, original = [], jit_core._do
        monkeypatch.setattr(
            jit_core, "_do", lambda way, words, *rest: (seen.append(words), original(way, words, *rest))
        )
        return seen

    @staticmethod
    def words_of_places():
        return jit_core._places_of_crew.view(np.int64)

    def wait_until_all_have_gone(self):
        deadline = time.monotonic() + 60
        while self.words_of_places().any():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def sample(self, num_threads=2):
        np.testing.assert_array_equal(ogs.grid_sample(self.X, self.grid, num_threads=num_threads), self.Y)

    def test_one_who_is_there_helps_where_nobody_is_woken(self, runs, monkeypatch):
        """Less is worth a helper than is worth waking one."""
        way = jit_core._way("float32", "float32", "linear", "zeros", False)
        ends = threading.Event()
        monkeypatch.setattr(jit_core, "TAPS_PER_THREAD", 1 << 40)
        monkeypatch.setattr(jit_core, "submit", lambda *_: pytest.fail("one is woken"))

        def stay():
            while not ends.is_set():
                way.steer(0, lanes.ATTEND, jit_core._places)

        self.wait_until_all_have_gone()
        self.sample()
        assert runs.pop()[(lanes.TASK + crew.NUMBER) // 8] == 1
        thread = threading.Thread(target=stay)
        thread.start()
        try:
            deadline = time.monotonic() + 60
            while not runs or runs.pop()[(lanes.TASK + crew.NUMBER) // 8] == 1:  # it goes, and comes back at once
                assert time.monotonic() < deadline
                self.sample()
        finally:
            ends.set()
            thread.join()

    @pytest.mark.parametrize("num_threads", [2, 5, 1000])
    def test_where_nobody_comes_nothing_is_missed(self, num_threads, runs, monkeypatch):
        asked = []
        monkeypatch.setattr(jit_core, "submit", lambda work, count: asked.append(count))
        monkeypatch.setattr(jit_core, "TAPS_PER_HELPER", 1)
        monkeypatch.setattr(jit_core, "TAPS_PER_THREAD", 1)
        self.wait_until_all_have_gone()
        self.sample(num_threads)
        assert asked == [runs[0][(lanes.TASK + crew.WANTED) // 8]]
        assert asked[0] == min(num_threads - 1, asked[0]) > 0
        assert not self.words_of_places().any()

    def test_one_who_comes_late_finds_nothing(self, monkeypatch):
        late = []
        monkeypatch.setattr(jit_core, "submit", lambda work, count: late.append(work))
        self.wait_until_all_have_gone()
        self.sample()
        (work,) = late
        assert work() == 0
        assert not self.words_of_places().any()

    def test_no_more_than_there_are_places(self):
        """Some wait for an offer, the others go at once."""
        way = jit_core._way("float32", "float32", "linear", "zeros", False)
        self.wait_until_all_have_gone()
        self.words_of_places()[:] = 1
        try:
            assert way.steer(0, lanes.ATTEND, jit_core._places) == 0
            assert self.words_of_places().all()
        finally:
            self.words_of_places()[:] = 0

    def test_an_interrupted_call_waits_for_them(self, runs, monkeypatch):
        """They write to memory of its own."""
        monkeypatch.setattr(jit_core, "TAPS_PER_HELPER", 1)
        monkeypatch.setattr(jit_core, "TAPS_PER_THREAD", 1)
        original, helped = jit_core._way, []

        def interrupted(*words):
            way = original(*words)

            def lane(run, index):
                deadline = time.monotonic() + 60
                while runs[-1][(lanes.TASK + crew.NUMBER) // 8] == 1:
                    assert time.monotonic() < deadline
                helped.append(1)
                raise KeyboardInterrupt

            return way._replace(lane=lane)

        monkeypatch.setattr(jit_core, "_way", interrupted)
        Y, plan = np.empty((1, 4, 90000), np.float32), plan_for(self.X.dtype, "linear", "zeros", False)
        for _ in range(5):
            with pytest.raises(KeyboardInterrupt):
                jit_core.grid_sample(self.X, self.grid.reshape(1, -1, 2), Y, plan, 3)
            assert runs[-1][(lanes.TASK + crew.EXPECTED) // 8] == 0
            before = Y.copy()
            time.sleep(0.01)
            np.testing.assert_array_equal(Y, before)
        assert helped == 5 * [1]

    def test_many_callers_share_them(self):
        """Whoever comes first is helped, and every answer is right."""
        failed = []

        def work(seed):
            rng = np.random.default_rng(seed)
            X = rng.random((2, 3, 20, 20), np.float32)
            grid = rng.uniform(-1.2, 1.2, (2, 150, 150, 2)).astype(np.float32)
            expected = ogs.grid_sample(X, grid, num_threads=1)
            for num_threads in (2, 3, 8) * 15:
                if not np.array_equal(ogs.grid_sample(X, grid, num_threads=num_threads), expected):
                    failed.append((seed, num_threads))

        callers = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert not failed

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
    def test_a_forked_child_has_none(self):
        script = """
import os
import numpy as np, ort_gridsample as ogs
from ort_gridsample.core import jit_core
ogs.set_core("jit")
X, grid = np.ones((1, 4, 64, 64), np.float32), np.zeros((1, 300, 300, 2), np.float32)
expected = ogs.grid_sample(X, grid, num_threads=1)
jit_core._places_of_crew[:] = 1  # all are there, and at work
child = os.fork()
if child == 0:
    none = not jit_core._places_of_crew.any()
    os._exit(0 if none and (ogs.grid_sample(X, grid, num_threads=3) == expected).all() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (ogs.grid_sample(X, grid, num_threads=3) == expected).all())
"""
        assert python(script) == ["0 True"]


def test_rough_grids_are_known(phases):
    """Where each pixel is read about once, rows pay for a grid whose neighbours lie pixels apart, and no other."""
    ogs.set_core("jit")
    X = np.ones((1, 37, 60, 60), np.float32)
    smooth = np.linspace(-1, 1, 900, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    rough = np.random.default_rng(0).uniform(-1, 1, (900, 2)).astype(np.float32)
    for grid, is_laid_out in ((smooth, False), (rough, True), (np.full_like(rough, np.inf), False)):
        phases.clear()
        ogs.grid_sample(X, grid[None, None], "linear", "border")
        assert (set(phases) != {lanes.READING}) == is_laid_out


def test_a_signal_s_handler_may_sample_too():
    """Memory is kept for the next call, and is nobody else's while it is used."""
    X, grid = np.ones((1, 20, 8, 8), np.float32), np.zeros((1, 40, 40, 2), np.float32)
    ogs.set_core("jit")
    ogs.grid_sample(X, grid)
    kept, calls = jit_core._kept.memory, []

    def handler(*_):
        calls.append(hasattr(jit_core._kept, "memory"))
        ogs.grid_sample(2 * X, grid)

    way = jit_core._way("float32", "float32", "linear", "zeros", False)
    with pytest.MonkeyPatch.context() as patch:
        interrupted = way._replace(lane=lambda *words: (calls or handler(), way.lane(*words))[1])
        patch.setattr(jit_core, "_way", lambda *_: interrupted)
        np.testing.assert_array_equal(ogs.grid_sample(X, grid), np.ones((1, 20, 40, 40), np.float32))
    assert calls == [False]
    assert jit_core._kept.memory is kept


@pytest.mark.parametrize("core", ["numpy", "jit"])
def test_layouts_are_one_kernel(core):
    """Read-only, strided and misaligned arrays give what plain ones give, and compile nothing new."""
    rng = np.random.default_rng(3)
    X, grid = rng.random((2, 3, 6, 6), np.float32), rng.uniform(-1.2, 1.2, (2, 4, 5, 2)).astype(np.float32)
    ogs.set_core(core)
    expected = ogs.grid_sample(X, grid)
    compiled = compilation.function.cache_info().currsize
    locked_X, locked_grid = X.copy(), grid.copy()
    locked_X.flags.writeable = locked_grid.flags.writeable = False
    raw = np.zeros(X.nbytes + 1, np.uint8)
    crooked = raw[1:].view(np.float32).reshape(X.shape)
    crooked[...] = X
    for x, g in (
        (locked_X, locked_grid),
        (crooked, grid),
        (np.asfortranarray(X), np.asfortranarray(grid)),
        (X.astype(">f4"), grid.astype(">f4")),
    ):
        np.testing.assert_array_equal(ogs.grid_sample(x, g), expected)
    assert compilation.function.cache_info().currsize == compiled
    assert X.flags.writeable
    assert grid.flags.writeable


@pytest.mark.parametrize("core", ["numpy", "jit"])
@pytest.mark.parametrize("mode", spec.MODES)
def test_threads_and_blocks_change_nothing(core, mode):
    rng = np.random.default_rng(5)
    X = rng.random((2, 3, 40, 50), np.float32)
    grid = rng.uniform(-1.1, 1.1, (2, 150, 170, 2)).astype(np.float32)
    ogs.set_core(core)
    one = ogs.grid_sample(X, grid, mode, "reflection", num_threads=1)
    np.testing.assert_array_equal(ogs.grid_sample(X, grid, mode, "reflection", num_threads=3), one)
    part = ogs.grid_sample(X, grid[:, 17:19], mode, "reflection", num_threads=1)
    np.testing.assert_allclose(part, one[:, :, 17:19], rtol=1e-6)


def test_float16_of_every_pattern_is_read_exactly():
    X = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(1, 1, -1)
    grid = ((2 * np.arange(1 << 16) + 1) / (1 << 16) - 1).reshape(1, -1, 1)
    ogs.set_core("jit")
    Y = ogs.grid_sample(X, grid, "linear", "border")
    # A pixel's own weight is 1, its neighbour's 0: only infinity or NaN next to it leaves a trace.
    finite = np.isfinite(X[0, 0])
    kept = finite & np.roll(finite, -1)
    np.testing.assert_array_equal(Y[0, 0][kept], X[0, 0][kept])
    assert np.isnan(Y[0, 0][np.isnan(X[0, 0])]).all()


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a process of its own, with the default core unless ``environment`` says another."""
    inherited = {name: value for name, value in os.environ.items() if name != choice.ENVIRONMENT_VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + textwrap.dedent(code)],
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        cwd=Path(sys.prefix),  # Python looks for modules in the working folder first
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_import_brings_neither_numba_nor_onnx_references():
    code = """
    import sys, json, ort_gridsample
    ort_gridsample.get_core()
    ort_gridsample.set_core("auto")
    unwanted = ("numba", "onnx.reference", "onnx.backend")
    print(json.dumps([name for name in sys.modules if name.startswith(unwanted)]))
    """
    assert json.loads(run(code).stdout) == []


def test_choice(monkeypatch):
    monkeypatch.delenv(choice.ENVIRONMENT_VARIABLE, raising=False)
    assert ogs.get_core() == ("jit" if find_spec("numba") else "numpy")
    ogs.set_core("numpy")
    assert ogs.get_core() == "numpy"
    assert choice.core() is numpy_core
    ogs.set_core("jit")
    assert choice.core() is jit_core
    assert ogs.get_core() == "jit"
    with pytest.raises(ValueError, match=r"'cuda'.*'auto', 'numpy', 'jit'"):
        ogs.set_core("cuda")


def test_choice_by_environment(monkeypatch):
    monkeypatch.setenv(choice.ENVIRONMENT_VARIABLE, "numpy")
    ogs.set_core(None)
    assert ogs.get_core() == "numpy"
    monkeypatch.setenv(choice.ENVIRONMENT_VARIABLE, "fast")
    with pytest.raises(ValueError, match="ORT_GRIDSAMPLE_CORE is 'fast'"):
        ogs.get_core()


def test_without_numba(monkeypatch):
    monkeypatch.delenv(choice.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(choice.importlib.util, "find_spec", lambda name: None)
    ogs.set_core(None)
    assert ogs.get_core() == "numpy"
    assert choice.core() is numpy_core
    with pytest.raises(ImportError, match="pip install numba"):
        ogs.set_core("jit")


def test_broken_numba_falls_back(tmp_path):
    (tmp_path / "numba.py").write_text("raise SystemError('made for another NumPy')\n")
    code = """
    import numpy as np, ort_gridsample as ogs
    for _ in range(2):
        print(ogs.grid_sample(np.ones((1, 1, 2, 2)), np.zeros((1, 1, 1, 2))).item(), ogs.get_core())
    """
    done = run(code, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.stdout.split() == ["1.0", "numpy"] * 2
    assert done.stderr.count("made for another NumPy") == 1
    asked = run(code, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}", ORT_GRIDSAMPLE_CORE="jit")
    assert "ImportError: the core 'jit' needs Numba" in asked.stderr


@pytest.mark.parametrize("core", ["numpy", "jit"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_memory_is_bounded(core, dtype):
    """At most 64 MB beyond X, grid and Y, by the process' own peak."""
    code = f"""
    import resource, numpy as np, ort_gridsample as ogs
    def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    X = np.ones((1, 3, 1500, 1500), "{dtype}")
    grid = np.zeros((1, 3000, 2000, 2), np.float16)
    ogs.grid_sample(X, grid[:, :1], "cubic", num_threads=2)
    before = peak()
    Y = ogs.grid_sample(X, grid, "cubic", num_threads=2)
    print(peak() - before - Y.nbytes)
    """
    done = run(code, ORT_GRIDSAMPLE_CORE=core)
    assert int(done.stdout) < 64 << 20, done.stderr


def test_kernels_stay_inside(tmp_path):
    """With every index checked, and coordinates from everywhere."""
    code = """
    import numpy as np, ort_gridsample as ogs
    rng = np.random.default_rng(0)
    for lengths in ((5, 7), (1, 1), (9,), (2, 3, 4)):
        X = rng.random((1, 5, *lengths), np.float32)
        grid = rng.uniform(-3, 3, (1, 2000, *[1] * (len(lengths) - 1), len(lengths))).astype(np.float32)
        grid.flat[::7] = rng.choice([1e10, -1e38, np.nan, np.inf, -np.inf], grid.flat[::7].shape)
        for mode in ("nearest", "linear", "cubic"):
            for padding_mode in ("zeros", "border", "reflection"):
                for align_corners in (False, True):
                    Y = ogs.grid_sample(X, grid, mode, padding_mode, align_corners)
                    assert np.isfinite(Y).all()
    print("inside")
    """
    done = run(code, ORT_GRIDSAMPLE_CORE="jit", NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))
    assert (done.stdout, done.stderr) == ("inside\n", "")


LOADED = """
import json, numpy as np
from ort_gridsample.core import choice, compilation, lanes
compiled = []
address = compilation.Function.address
def counted(self):
    compiled.extend([] if self.is_at_hand else [self])
    return address(self)
compilation.Function.address = counted
choice.core().prepare(np.dtype("float32"), np.dtype("float32"), "nearest")
function = compilation.function((lanes.copy_for, "uint32"))
print(json.dumps([len(compiled), function._cache.cache_path]))
"""


def test_the_cache_works_where_the_package_is_read_only(tmp_path):
    shutil.copytree(
        ROOT / "ort_gridsample", tmp_path / "site" / "ort_gridsample", ignore=shutil.ignore_patterns("__pycache__")
    )
    # A file where the folder would be: nobody, not even root, can write to it.
    (tmp_path / "site" / "ort_gridsample" / "core" / "__pycache__").write_text("")
    environment = {
        "PYTHONPATH": str(tmp_path / "site"),
        "XDG_CACHE_HOME": str(tmp_path / "home"),
        "HOME": str(tmp_path / "home"),
    }
    environment |= {"ORT_GRIDSAMPLE_CORE": "jit", "NUMBA_CACHE_DIR": ""}
    first, second = (json.loads(run(LOADED, **environment).stdout) for _ in range(2))
    assert first[0] > 0
    assert second[0] == 0
    assert str(tmp_path / "home") in second[1]


def test_a_compilation_is_explained_once_and_nothing_else_is(tmp_path):
    code = """
    import logging, numpy as np
    from ort_gridsample.core import jit_core
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    for _ in range(2):
        jit_core.prepare(np.dtype("uint8"), np.dtype("float32"), "nearest")
    """
    explained = ["compiling nearest for X of uint8, a few seconds, once: Numba keeps it on disk (NUMBA_CACHE_DIR)"]
    for expected in (explained, []):
        assert run(code, NUMBA_CACHE_DIR=str(tmp_path)).stderr.splitlines() == expected


def rows_and_taps(width: int, kind: str) -> tuple[np.ndarray, ...]:
    """Rows of X, and the table of one position more than the vectors look ahead."""
    rng, taps = np.random.default_rng(width), 6
    X, weight = rng.normal(size=(9, width)).astype(kind), rng.normal(size=(taps, vectors.AHEAD + 2)).astype(kind)
    index = rng.integers(0, 9, weight.shape).astype(np.uint32)
    index[2] = kernels.OUTSIDE
    return X, index, weight


def in_kernel(vector):
    """What is to be called in a kernel, as a function."""
    return numba.njit(lambda *arguments: vector(*arguments))


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("width", [vectors.NARROW, vectors.WIDE])
def test_vectors_and_loops_agree(width, kind):
    """Sums over rows: of taps apart, of taps together, and of these where some are gaps."""
    X, index, weight = rows_and_taps(width, kind)
    sums = np.einsum("tpw,tp->pw", X[np.minimum(index, 8)], weight)
    loops = vectors.add_up_in_loops
    functions = [(vectors.add_up(width), loops, (X, index, weight), sums)]
    first, offsets = index[0] % 4, np.array([0, 1, 2, 3, 4, 5])
    rows, loops = X[first + offsets[:, None].astype(np.uint32)], vectors.add_up_together_in_loops
    for gaps in (False, True):
        if gaps:
            weight = np.where(np.random.default_rng(1).random(weight.shape) < 0.3, np.nan, weight).astype(kind)
        sums = np.einsum("tpw,tp->pw", rows, np.nan_to_num(weight))
        functions.append((vectors.add_up_together(width, gaps), loops, (X, first, offsets, weight), sums))
    for vector, loops, arguments, expected in functions:
        for function in (in_kernel(vector), numba.njit(loops), loops):
            sums = np.full((3, width), np.nan, kind)
            for p in range(2):
                function(*arguments, p, sums, p)
            assert np.isnan(sums[2]).all()
            np.testing.assert_allclose(sums[:2], expected[:2], rtol=0, atol=100 * np.finfo(kind).eps)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("width", [vectors.NARROW, vectors.WIDE])
def test_vectors_and_loops_transpose(width, kind):
    source = np.random.default_rng(width).normal(size=(width + 2, width)).astype(kind)
    expected = np.full((width + 1, width + 3), np.nan, kind)
    expected[1:, 2:-1] = source[1:-1].T
    transpose = vectors.transpose(width)
    for function in (in_kernel(transpose), numba.njit(vectors.transpose_in_loops), vectors.transpose_in_loops):
        to = np.full_like(expected, np.nan)
        function(source, 1, 0, to, 1, 2)
        np.testing.assert_array_equal(to, expected)


@pytest.mark.parametrize("size", vectors.VECTORS)
@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16"])
def test_vectors_and_loops_gather(kind, size):
    """Sums over pixels from anywhere: the vectors write their lanes only, and an index outside is not read."""
    rng, taps, pixels, start = np.random.default_rng(5), 4, 40, 3
    real = np.dtype(spec.TYPES[kind].compute)
    numbers = rng.normal(size=pixels).astype(dtype_of(kind))
    X = numbers.view({"float16": np.uint16, "bfloat16": np.int16}.get(kind, kind))
    lanes = size // real.itemsize
    weight = rng.normal(size=(taps, lanes + start)).astype(real)
    offsets = np.array([0, 1, 7, 8])
    first = rng.integers(0, pixels - 8, lanes + start).astype(np.uint32)
    first[start] = pixels - 9  # its last tap is the last pixel
    index = first + offsets[:, None].astype(np.uint32)
    expected = (numbers.astype(real)[index] * weight).sum(0)[start:]
    loops = vectors.gather_whole_in_loops
    functions = [(vectors.gather_whole(size, gaps=False), loops, (X, first, offsets, weight), expected)]
    gaps = np.where(rng.random(weight.shape) < 0.3, np.nan, weight)
    left_out = (numbers.astype(real)[index] * np.nan_to_num(gaps)).sum(0)[start:]
    functions.append((vectors.gather_whole(size, gaps=True), loops, (X, first, offsets, gaps.astype(real)), left_out))
    if X.dtype == real:
        index[2, start + 1 :: 2] = kernels.OUTSIDE
        inside = np.where(index < pixels, numbers[np.minimum(index, pixels - 1)], 0)
        one_by_one = vectors.gather(size), vectors.gather_in_loops
        functions.append((*one_by_one, (X, index, weight), (inside * weight).sum(0)[start:]))
    for vector, loop, arguments, expected in functions:
        ways = (in_kernel(vector), ()), (numba.njit(loop), (lanes,)), (loop, (lanes,))
        for function, more in ways:
            Y = np.full(lanes + 2, np.nan, real)
            function(*arguments, start, Y, 1, *more)
            assert np.isnan(Y[[0, -1]]).all()
            np.testing.assert_allclose(Y[1:-1], expected, rtol=0, atol=100 * np.finfo(real).eps)


@pytest.mark.parametrize("size", vectors.VECTORS)
@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int16"])
def test_vectors_and_loops_gather_integers(kind, size):
    """Truncated, saturated, and exact where all taps are equal; what lies outside is not read."""
    rng, taps, pixels, lanes, start = np.random.default_rng(6), 4, 40, size // 4, 3
    limits = np.iinfo(kind)
    X = rng.integers(limits.min, limits.max, pixels, kind, endpoint=True)
    X[:4] = limits.max
    index = rng.integers(0, pixels, (taps, lanes + start)).astype(np.uint32)
    index[:, start] = range(4)
    index[rng.random(index.shape) < 0.2] = kernels.OUTSIDE
    index[:, start + 1] = kernels.OUTSIDE
    weight = rng.normal(size=index.shape).astype(np.float32)
    weight[-1] = 1 - weight[:-1].sum(0)
    value = np.where(index < pixels, X[np.minimum(index, pixels - 1)], 0).astype(np.float64)
    expected = np.clip(np.trunc((value * weight).sum(0)), limits.min, limits.max)[start:]
    loop = vectors.gather_integers_in_loops
    ways = (in_kernel(vectors.gather_integers(size)), ()), (numba.njit(loop), (lanes,)), (loop, (lanes,))
    for function, more in ways:
        Y = np.full(lanes + 2, 7, kind)
        function(X, index, weight, start, Y, 1, *more)
        assert list(Y[[0, -1]]) == [7, 7]
        assert abs(Y[1:-1].astype(np.float64) - expected).max() <= 1
        assert Y[2] == 0
    index[:, start] = range(4)
    in_kernel(vectors.gather_integers(size))(X, index, weight, start, Y, 1)
    assert Y[1] == limits.max


@pytest.mark.parametrize("size", vectors.VECTORS)
@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("taps", [2, 4, 10])
def test_vectors_and_loops_gather_integers_together(taps, kind, size):
    """As of integers apart; few taps are called ahead, whose table may end before, and the last is X's last pixel."""
    rng, pixels, lanes, start = np.random.default_rng(7), 40, size // 4, 3
    limits = np.iinfo(kind)
    X = rng.integers(limits.min, limits.max, pixels, kind, endpoint=True)
    X[:14] = limits.max
    offsets = np.array([0, 1, 7, 8, 10, 11, 12, 13, 14, 15])[:taps]
    first = rng.integers(14, pixels - offsets[-1], lanes + start).astype(np.uint32)
    first[start], first[-1] = 0, pixels - 1 - offsets[-1]
    weight = rng.normal(size=(taps, lanes + start)).astype(np.float32)
    weight[-1] = 1 - weight[:-1].sum(0)
    value = X[first + offsets[:, None]].astype(np.float64)
    expected = np.clip(np.trunc((value * weight).sum(0)), limits.min, limits.max)[start:]
    loop = vectors.gather_integers_whole_in_loops
    ways = (in_kernel(vectors.gather_integers_whole(size)), ()), (numba.njit(loop), (lanes,)), (loop, (lanes,))
    for function, more in ways:
        Y = np.full(lanes + 2, 7, kind)
        function(X, first, offsets, weight, start, Y, 1, *more)
        assert list(Y[[0, -1]]) == [7, 7]
        assert abs(Y[1:-1].astype(np.float64) - expected).max() <= 1
        if taps < 10:
            assert Y[1] == limits.max  # all are equal


@pytest.mark.parametrize("padding_mode", spec.PADDING_MODES)
def test_an_axis_so_long_that_float32_knows_no_pixel_of_its_own(padding_mode):
    """Coordinates are whole there, and every other pixel's at best: no tap beyond the last is read."""
    length = (1 << 24) + 5
    X = np.arange(2 * length, dtype=np.float32).reshape(1, 2, length)
    X[0, 1] = np.nan  # where a tap beyond the first channel would be
    grid = np.array([-1, -1 + 1e-6, 0, 0.5, 1 - 1e-7, 1, 1 + 1e-7, 1.5], np.float32).reshape(1, -1, 1)
    for align_corners in (False, True):
        answers = []
        for core in ("numpy", "jit"):
            ogs.set_core(core)
            answers.append(ogs.grid_sample(X, grid, "linear", padding_mode, align_corners)[:, :1])
        np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("way", ["the CPU's", "in bits"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_halves_are_converted_as_by_numpy(kind, way):
    half, dtype = halves.HALVES[kind], dtype_of(kind)
    ways = {"the CPU's": (half.widened, half.rounded), "in bits": (halves.from_float16, halves.to_float16)}
    if kind == "bfloat16":
        ways["in bits"] = halves.from_bfloat16, halves.to_bfloat16
    widened, rounded = ways[way]

    @numba.njit
    def convert(numbers, bits, back, forth):
        for i in range(len(numbers)):
            back[i] = widened(bits[i])
            forth[i] = rounded(numbers[i])

    bits = np.arange(1 << 16, dtype=np.uint16)
    rng = np.random.default_rng(2)
    near = bits.view(dtype).astype(np.float32)  # every half, and numbers around each
    with np.errstate(invalid="ignore"):
        numbers = np.concatenate([near, near * np.float32(1 + 2**-11), np.float32(1e5) * rng.normal(size=1 << 16)])
    numbers = numbers.astype(np.float32)
    back, forth = np.empty(len(numbers), np.float32), np.empty(len(numbers), np.uint16)
    convert(numbers, np.resize(bits, len(numbers)), back, forth)
    np.testing.assert_array_equal(back[: len(bits)], near)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(forth.view(dtype).astype(np.float32), numbers.astype(dtype).astype(np.float32))


def test_a_cpu_that_does_not_gather(tmp_path):
    """The loops' answers are the vectors', but for a rounding."""
    code = """
    import os, numpy as np
    from ort_gridsample.core import vectors
    vectors.GATHERS = vectors.GATHERS and os.environ["WAY"] == "vectors"
    import ort_gridsample as ogs
    rng = np.random.default_rng(0)
    answers = {}
    for kind in ("float32", "float64", "float16"):
        for mode in ("linear", "cubic"):
            for r in (1, 2, 3):
                X = rng.normal(size=(1, 3, *(9,) * r)).astype(kind)
                grid = rng.uniform(-1.2, 1.2, (1, 70, *(5,) * (r - 1), r)).astype(np.float32)
                grid[:, :20] *= 0.5
                answers[f"{kind} {mode} {r}"] = ogs.grid_sample(X, grid, mode=mode)
    np.savez(os.environ["OUT"], **answers)
    """
    found = []
    for way in ("vectors", "loops"):
        out = str(tmp_path / f"{way}.npz")
        done = run(code, WAY=way, OUT=out, NUMBA_CACHE_DIR=str(tmp_path / way), ORT_GRIDSAMPLE_CORE="jit")
        assert done.returncode == 0, done.stderr
        found.append(np.load(out))
    for name in found[0]:
        assert_same(*(answers[name] for answers in found))


def test_loops_work_where_numba_s_insides_are_others(monkeypatch, caplog):
    # What comes before the loop that is missing.
    names = ("unpack_tuple", "alloca_once_value", "get_or_insert_function")
    monkeypatch.setattr(vectors, "cgutils", SimpleNamespace(**{name: getattr(vectors.cgutils, name) for name in names}))
    add_up, (X, index, weight) = vectors.add_up(4), rows_and_taps(4, "float32")
    sums, expected = np.empty((1, 4), np.float32), np.empty((1, 4), np.float32)
    numba.njit(lambda *a: add_up(*a))(X, index, weight, 1, sums, 0)
    vectors.add_up_in_loops(X, index, weight, 1, expected, 0)
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    assert "for_range" in caplog.text
    monkeypatch.setattr(vectors, "cgutils", SimpleNamespace())
    transpose, to = vectors.transpose(4), np.empty((4, 4), np.float32)
    numba.njit(lambda *a: transpose(*a))(X, 2, 0, to, 0, 0)
    np.testing.assert_array_equal(to, X[2:6].T)
    assert "unpack_tuple" in caplog.text


@pytest.mark.parametrize("changed", [path.name for path in compilation.SOURCES])
def test_the_cache_notices_a_change_in_every_file_that_kernels_are_made_of(changed, tmp_path):
    package = tmp_path / "ort_gridsample"
    shutil.copytree(ROOT / "ort_gridsample", package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {
        "PYTHONPATH": str(tmp_path),
        "ORT_GRIDSAMPLE_CORE": "jit",
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }
    first, second = (json.loads(run(LOADED, **environment).stdout)[0] for _ in range(2))
    (source,) = (path for path in package.rglob(changed) if path.parent.name in ("core", "ort_gridsample"))
    source.write_text(source.read_text() + "# changed\n")
    third = json.loads(run(LOADED, **environment).stdout)[0]
    assert second == 0
    assert min(first, third) > 0  # another process may help


def test_what_two_processes_save_at_once_is_not_mixed_up(tmp_path, monkeypatch):
    """Neither sees what the other is about to save."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    files = [compilation._Files(str(tmp_path), "f", "stamp") for _ in range(2)]
    saved = []
    monkeypatch.setattr(compilation._Files, "_save_data", lambda self, name, data: saved.append((name, data)))
    for each, key in zip(files, ("first", "second"), strict=True):
        each.save(key, key)
    monkeypatch.undo()
    for name, data in saved:
        files[0]._save_data(name, data)
    assert [files[1].load(key) for key in ("first", "second", "third")] == ["first", "second", None]
    assert compilation._Files(str(tmp_path), "f", "another stamp").load("first") is None


def test_one_thread_at_a_time_asks_what_is_on_disk():
    """Numba's registries are no more for two at once than its compiler."""
    asked, answers = compilation.Function(lanes.steer, compilation.SOURCES), []
    thread = threading.Thread(target=lambda: answers.append(asked.is_at_hand))
    with compilation.global_compiler_lock:
        thread.start()
        thread.join(0.3)
        assert not answers
    thread.join()
    assert len(answers) == 1


def test_plan_names_every_sum():
    for name in NUMERIC:
        assert plan_for(dtype_of(name), "nearest", "zeros", False).sum is None
        assert plan_for(dtype_of(name), "cubic", "zeros", False).sum is not None


def test_what_the_kernels_do_not_state_is_the_numpy_cores(monkeypatch):
    X, grid = np.random.default_rng(0).random((1, 2, 5, 6)), np.zeros((1, 3, 3, 2))
    ogs.set_core("jit")
    monkeypatch.delitem(ways.TAPS, "cubic")
    Y = ogs.grid_sample(X, grid, "cubic")
    ogs.set_core("numpy")
    np.testing.assert_array_equal(Y, ogs.grid_sample(X, grid, "cubic"))


class TestNumThreads:
    @pytest.fixture(autouse=True)
    def _default(self, monkeypatch):
        monkeypatch.delenv(threads.ENVIRONMENT_VARIABLE, raising=False)
        monkeypatch.setattr(threads, "_num_threads", None)

    def test_it_is_what_was_set_or_the_environment_s_or_the_machine_s(self, monkeypatch):
        assert ogs.get_num_threads() == threads.available_cpus()
        monkeypatch.setenv(threads.ENVIRONMENT_VARIABLE, "7")
        assert ogs.get_num_threads() == 7
        ogs.set_num_threads(np.int64(3))
        assert ogs.get_num_threads() == 3
        assert type(ogs.get_num_threads()) is int
        ogs.set_num_threads(None)
        assert ogs.get_num_threads() == 7
        monkeypatch.setenv(threads.ENVIRONMENT_VARIABLE, "")
        assert ogs.get_num_threads() == threads.available_cpus()

    @pytest.mark.parametrize("said", ["0", "-2", "1.5", "many"])
    def test_an_environment_that_says_no_number_is_an_error(self, said, monkeypatch):
        monkeypatch.setenv(threads.ENVIRONMENT_VARIABLE, said)
        with pytest.raises(ValueError, match=rf"ORT_GRIDSAMPLE_NUM_THREADS is '{said}', expected a whole number"):
            ogs.get_num_threads()

    @pytest.mark.parametrize(
        ("wrong", "kind"), [(1.5, TypeError), ("2", TypeError), (0, ValueError), (np.int8(-1), ValueError)]
    )
    def test_what_is_no_number_of_threads_is_refused(self, wrong, kind):
        ogs.set_num_threads(5)
        expected = rf"num_threads is {re.escape(repr(wrong))}, expected a whole number, at least 1"
        with pytest.raises(kind, match=expected):
            ogs.set_num_threads(wrong)
        assert ogs.get_num_threads() == 5
        X, grid, theta = np.zeros((1, 1, 2, 2)), np.zeros((1, 1, 1, 2)), np.zeros((1, 2, 3))
        for function, arguments in ((ogs.grid_sample, (X, grid)), (ogs.affine_grid, (theta, (1, 1, 2, 2)))):
            with pytest.raises(ogs.GridSampleError, match=expected):
                function(*arguments, num_threads=wrong)

    @pytest.mark.parametrize("core", ["numpy", "jit"])
    def test_so_many_are_used_and_no_more(self, core, monkeypatch):
        """What was set, unless a call says another number; a small call takes one."""
        ogs.set_core(core)
        seen = []
        original = threads.for_each
        for user in (numpy_core, affine):
            monkeypatch.setattr(user, "for_each", lambda f, items, n: (seen.append(n), original(f, items, n)))
        do = jit_core._do
        monkeypatch.setattr(jit_core, "_do", lambda *run: (seen.append(run[-1]), do(*run)))
        X, grid = np.zeros((4, 4, 8, 8), np.float32), np.zeros((4, 300, 300, 2), np.float32)
        ogs.set_num_threads(3)
        for call, most in (
            (lambda: ogs.grid_sample(X, grid), 3),
            (lambda: ogs.grid_sample(X, grid, num_threads=np.int64(2)), 2),
            (lambda: ogs.grid_sample(X, grid[:, :2, :2]), 1),
            (lambda: ogs.affine_grid(np.zeros((4, 2, 3)), (4, 1, 200, 200)), 3),
            (lambda: ogs.affine_grid(np.zeros((4, 2, 3)), (4, 1, 200, 200), num_threads=1), 1),
        ):
            seen.clear()
            call()
            assert max(seen) == most


class TestForEach:
    def test_every_item_once(self):
        done: list[int] = []
        threads.for_each(done.append, range(100), 4)
        assert sorted(done) == list(range(100))

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_the_first_exception_stops_the_work(self, error):
        done = []

        def work(item: int) -> None:
            if item == 3:
                raise error(item)
            done.append(item)

        with pytest.raises(error):
            threads.for_each(work, range(10**9), 2)

    @pytest.mark.parametrize("startable", [0, 1])
    def test_a_thread_that_cannot_be_started_leaves_the_work_to_the_others(self, startable, monkeypatch):
        """The call returns when all is done, also what the helper does that did start."""
        monkeypatch.setattr(threads, "_pool", None)
        start, started = threading.Thread.start, []

        def start_some(thread: threading.Thread) -> None:
            if len(started) == startable:
                raise RuntimeError("can't start new thread")
            started.append(thread)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_some)
        main, helping, done = threading.get_ident(), threading.Event(), []

        def work(item: int) -> None:
            if threading.get_ident() != main:
                helping.set()
                time.sleep(0.1)  # while the others finish
            elif startable:
                assert helping.wait(60)
            done.append(item)

        threads.for_each(work, range(5), 4)
        assert sorted(done) == list(range(5))

    def test_what_could_not_be_started_keeps_nothing(self, monkeypatch):
        """Where no thread can be started, however often that is tried."""
        monkeypatch.setattr(threads, "_pool", None)

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        kept = []
        for _ in range(3):
            held = np.zeros(3)
            kept.append(weakref.ref(held))
            threads.for_each(lambda i, held=held: held.__setitem__(i, 1), range(3), 4)
            assert held.tolist() == [1, 1, 1]
            del held
        gc.collect()
        assert all(ref() is None for ref in kept)

    def test_an_error_of_a_helper_is_raised_and_keeps_nothing(self):
        class WrongError(Exception):
            pass

        main, failed, held = threading.get_ident(), threading.Event(), np.zeros(3)

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
            deadline = time.monotonic() + 60
            while kept() is not None and time.monotonic() < deadline:  # the helper may still be on its way out
                time.sleep(0.001)
            assert kept() is None
        finally:
            gc.enable()

    @pytest.mark.parametrize("error", [None, OSError])
    def test_one_that_wakes_beside_its_waker_moves(self, error, monkeypatch):
        """To any other processor, and then it may run where it could before."""
        moves, done = [], threading.Event()

        def move(thread: int, cpus: set[int]) -> None:
            moves.append((thread, cpus))
            if error is not None:
                raise error

        monkeypatch.setattr(threads, "_cpu", lambda: 3)
        monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {2, 3, 5}, raising=False)
        monkeypatch.setattr(os, "sched_setaffinity", move, raising=False)
        threads.submit(done.set, 1)
        assert done.wait(60)
        assert moves == [(0, {2, 5}), (0, {2, 3, 5})][: 1 if error else 2]

    @pytest.mark.parametrize(("waker", "woken", "cpus"), [(3, 2, {2, 3}), (3, 3, {3})])
    def test_one_that_cannot_move_or_need_not_stays(self, waker, woken, cpus, monkeypatch):
        places, done = [waker, woken], threading.Event()
        monkeypatch.setattr(threads, "_cpu", lambda: places.pop(0))
        monkeypatch.setattr(os, "sched_getaffinity", lambda thread: cpus, raising=False)
        monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("it moved"), raising=False)
        threads.submit(done.set, 1)
        assert done.wait(60)

    def test_nested_calls_do_not_wait_for_each_other(self):
        done: list[int] = []
        threads.for_each(lambda _: threads.for_each(done.append, range(5), 2), range(4), 2)
        assert len(done) == 20
