"""Packing: any number of channels is sampled as if each channel were sampled alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ort_gridsample as ogs
from support.cases import dtype_of
from support.parameters import with_slow

pytest.importorskip("numba", reason="the compiled core needs Numba")

from ort_gridsample.kernels import jit_core, simd
from ort_gridsample.kernels.llvm_helpers import CPU_GATHERS_FAST
from ort_gridsample.kernels.packing import MIN_CHANNELS_WIDE
from ort_gridsample.kernels.simd import NARROW_PANEL, WIDE_PANEL
from ort_gridsample.kernels.structs import (
    LAUNCH,
    PACKED_BY_EACH,
    PACKED_FOR_ALL,
    UNPACKED,
    ctypes_type,
)
from ort_gridsample.reference.coordinates import PADDING_RULES
from ort_gridsample.reference.taps import MODE_RULES

pytestmark = pytest.mark.usefixtures("default_core")

needs_fast_vectors = pytest.mark.skipif(
    not simd.CPU_HAS_FAST_VECTORS, reason="other processors pack any channels after whole panels"
)
#: Less than a panel, a panel, and some more, up to three panels.
CHANNELS = (1, 2, 3, 5, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 48)
#: The largest differences from the NumPy core, by the type of X.
TOLERANCE = {"float16": 2e-2, "bfloat16": 2e-1, "float32": 1e-4, "float64": 1e-10}


def coherent_grid(n: int, height: int, width: int) -> np.ndarray:
    """Return a grid whose neighboring positions are neighboring pixels, some of them outside."""
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    one = np.stack([1.05 * x + 0.03 * y, 0.97 * y - 0.02 * x], -1)
    return np.broadcast_to(one, (n, *one.shape)).astype(np.float32)


def grid_of(kind: str, n: int, height: int, width: int) -> np.ndarray:
    if kind == "coherent":
        return coherent_grid(n, height, width)
    rng = np.random.default_rng(1)
    return rng.uniform(-1.1, 1.1, (n, height, width, 2)).astype(np.float32)


def bits_of(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


@pytest.mark.parametrize("kind", ["coherent", "incoherent"])
@pytest.mark.parametrize("padding_mode", PADDING_RULES)
@pytest.mark.parametrize("mode", MODE_RULES)
@with_slow("X_type", ["float32", "float16"], ["float64", "bfloat16"])
def test_channels_of_any_number_are_those_sampled_alone(
    X_type: str, mode: str, padding_mode: str, kind: str
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2, max(CHANNELS), 43, 29)).astype(dtype_of(X_type))
    grid = grid_of(kind, 2, 41, 37)
    attributes: Any = {"mode": mode, "padding_mode": padding_mode}
    ogs.set_core("numpy")
    by_numpy = ogs.grid_sample(X, grid, **attributes).astype(np.float64)
    ogs.set_core("jit")
    alone = [
        ogs.grid_sample(np.ascontiguousarray(X[:, [channel]]), grid, **attributes)
        for channel in range(X.shape[1])
    ]
    expected = np.concatenate(alone, 1)
    tolerance = 0 if mode == "nearest" else TOLERANCE[X_type]
    np.testing.assert_allclose(expected.astype(np.float64), by_numpy, rtol=0, atol=tolerance)
    for channels in CHANNELS:
        for n_threads in (1, 2):
            some = np.ascontiguousarray(X[:, :channels])
            Y = ogs.grid_sample(some, grid, num_threads=n_threads, **attributes)
            if simd.CPU_HAS_FAST_VECTORS:
                np.testing.assert_array_equal(bits_of(Y), bits_of(expected[:, :channels]))
            else:
                np.testing.assert_allclose(
                    Y.astype(np.float64), by_numpy[:, :channels], rtol=0, atol=tolerance
                )


@pytest.fixture
def plan_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that samples and returns the plan of the launch."""
    plans: list[Any] = []
    original = jit_core._sampling_functions.__wrapped__
    monkeypatch.setattr(jit_core, "available_cpus", lambda: 64)

    def recording_functions(*arguments: Any) -> Any:
        functions = original(*arguments)

        def proceed(address: int) -> int:
            count: int = functions.proceed(address)
            launch = ctypes_type(LAUNCH).from_address(address)
            plans.append(ctypes_type(LAUNCH["plan"]).from_buffer_copy(bytes(launch.plan)))
            return count

        return functions._replace(proceed=proceed)

    monkeypatch.setattr(jit_core, "_sampling_functions", recording_functions)
    monkeypatch.setattr(jit_core, "_prepared_call", jit_core._prepared_call.__wrapped__)

    def plan(
        channels: int, kind: str, mode: str, n_threads: int = 1, n: int = 1, side: int = 64
    ) -> Any:
        plans.clear()
        ogs.set_core("jit")
        X = np.ones((n, channels, side, side), np.float32)
        ogs.grid_sample(X, grid_of(kind, n, side, side), mode, num_threads=n_threads)
        return plans[0]

    return plan


@needs_fast_vectors
@pytest.mark.parametrize("kind", ["coherent", "incoherent"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("channels", CHANNELS)
def test_packed_channels_are_whole_panels_or_all(channels, mode, kind, plan_of):
    plan = plan_of(channels, kind, mode)
    rest = channels % WIDE_PANEL
    assert plan.packed_channels in (channels - rest, channels)
    if rest == 0:
        assert plan.packed_channels == channels
    elif rest < MIN_CHANNELS_WIDE:
        assert plan.packed_channels == channels - rest
    assert (plan.packing == UNPACKED) == (plan.packed_channels == 0)


@needs_fast_vectors
def test_packed_channels_grow_with_reads_per_pixel_and_incoherence(plan_of):
    packed = {
        (mode, kind): plan_of(12, kind, mode).packed_channels
        for mode in ("linear", "cubic")
        for kind in ("coherent", "incoherent")
    }
    assert packed == {
        ("linear", "coherent"): 0,
        ("linear", "incoherent"): 12,
        ("cubic", "coherent"): 12,
        ("cubic", "incoherent"): 12,
    }


@pytest.mark.parametrize(
    ("channels", "n", "n_threads", "shares"),
    [
        (16, 1, 1, 1),
        (16, 1, 2, 2),
        (32, 1, 2, 1),
        (48, 1, 2, 2),
        (16, 3, 2, 2),
        (16, 9, 2, 1),
    ],
)
def test_groups_are_shared_if_threads_would_have_none(channels, n, n_threads, shares, plan_of):
    plan = plan_of(channels, "incoherent", "cubic", n_threads, n)
    assert (plan.packing, plan.workers, plan.shares) == (PACKED_BY_EACH, n_threads, shares)


@pytest.mark.parametrize(
    ("mode", "packing"), [("linear", PACKED_BY_EACH), ("nearest", PACKED_FOR_ALL)]
)
def test_threads_share_no_group_whose_packing_takes_as_long_as_reading(mode, packing, plan_of):
    plan = plan_of(16, "incoherent", mode, n_threads=2, side=130)
    assert (plan.packing, plan.shares) == (packing, 2 if mode == "linear" else 1)


@needs_fast_vectors
def test_table_is_used_for_channels_that_do_not_stay_in_caches(plan_of):
    uses_table = {
        (channels, kind, side): plan_of(channels, kind, "linear", side=side).uses_table
        for channels in (2, 6)
        for kind in ("coherent", "incoherent")
        for side in (64, 128, 640)
    }
    assert {case for case, is_used in uses_table.items() if is_used} == {
        (6, "incoherent", 128),
        (6, "incoherent", 640),
        (6, "coherent", 640),
    }


@needs_fast_vectors
@pytest.mark.parametrize("kind", ["coherent", "incoherent"])
def test_channels_that_fill_a_narrow_panel_are_packed_for_incoherent_grids(kind, plan_of):
    plan = plan_of(NARROW_PANEL, kind, "linear")
    packed = NARROW_PANEL if kind == "incoherent" and not CPU_GATHERS_FAST else 0
    assert (plan.packed_channels, plan.panel_channels) == (packed, packed)
