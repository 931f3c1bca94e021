"""The memory that the process keeps for large calls of the compiled core."""

from types import SimpleNamespace

import numpy as np
import pytest

import ort_gridsample as ogs

pytest.importorskip("numba", reason="the compiled core needs Numba")

from ort_gridsample.kernels import jit_core

pytestmark = pytest.mark.usefixtures("default_core")


def test_memory_of_a_large_call_is_kept_while_calls_need_it(monkeypatch):
    memory = jit_core._LargeMemory()
    monkeypatch.setattr(jit_core, "_large_memory", memory)
    ogs.set_core("jit")
    large = np.ones((1, 16, 256, 256), np.float32)
    small = np.ones((1, 1, 256, 256), np.float32)
    grid = np.random.default_rng(0).uniform(-1, 1, (1, 256, 256, 2)).astype(np.float32)
    first = ogs.grid_sample(large, grid, "cubic")
    (kept,) = memory._kept
    assert large.nbytes < kept.nbytes <= jit_core.MAX_KEPT_LARGE_BYTES
    for _ in range(jit_core.MAX_UNNEEDED_CALLS):
        ogs.grid_sample(small, grid, "cubic")
    np.testing.assert_array_equal(ogs.grid_sample(large, grid, "cubic"), first)
    assert memory._kept[0] is kept
    for _ in range(jit_core.MAX_UNNEEDED_CALLS + 1):
        ogs.grid_sample(small, grid, "cubic")
    assert not memory._kept


def test_memory_that_a_call_uses_is_not_given_to_another_call():
    memory = jit_core._LargeMemory()
    memory.keep(None, jit_core.KEPT_BYTES + 1)
    assert memory.take() is not None
    assert memory.take() is None


def test_memory_beyond_the_limit_is_not_kept():
    memory = jit_core._LargeMemory()
    memory.keep(None, jit_core.MAX_KEPT_LARGE_BYTES + 1)
    assert memory.take() is None


def test_call_does_not_fail_if_no_memory_is_left_to_keep(monkeypatch):
    def empty(*_arguments: object) -> None:
        raise MemoryError("none is left")

    memory = jit_core._LargeMemory()
    monkeypatch.setattr(jit_core, "np", SimpleNamespace(empty=empty, uint8=np.uint8))
    memory.keep(None, jit_core.KEPT_BYTES + 1)
    assert memory.take() is None
