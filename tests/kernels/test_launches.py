"""A launch: its plan, which is made once, and its phases."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import ort_gridsample as ogs

pytest.importorskip("numba", reason="the compiled core needs Numba")

from ort_gridsample.kernels import jit_core
from ort_gridsample.kernels.structs import (
    CACHE_LINE,
    END,
    LAUNCH,
    PACKED_BY_EACH,
    PACKED_FOR_ALL,
    PACKING,
    PACKING_AND_READING,
    PHASES_OF_ROUND,
    READING,
    UNPACKED,
    ctypes_type,
)
from ort_gridsample.kernels.workers import N_PHASES

pytestmark = pytest.mark.usefixtures("default_core")


class Phase(NamedTuple):
    """What a launch has when a phase begins."""

    phase: int
    step: int
    first_batch: int
    first_channel: int
    plan: bytes


class Shape(NamedTuple):
    n: int
    channels: int
    side: int
    positions: int
    n_threads: int


#: A shape for each way of packing, whose launch is not a single call of compiled code.
SHAPES = {
    UNPACKED: Shape(n=2, channels=3, side=60, positions=200_000, n_threads=2),
    PACKED_BY_EACH: Shape(n=3, channels=37, side=6, positions=4000, n_threads=1),
    PACKED_FOR_ALL: Shape(n=2, channels=37, side=130, positions=9000, n_threads=16),
}

Recorder = Callable[..., list[Phase]]


@pytest.fixture
def phases_of(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Return a function that samples and returns the phases, on a machine of many processors."""
    recorded: list[Phase] = []
    original = jit_core._sampling_functions.__wrapped__
    monkeypatch.setattr(jit_core, "available_cpus", lambda: 64)
    monkeypatch.setattr(jit_core, "_work_per_helper", lambda: 1)

    def recording_functions(*arguments: Any) -> Any:
        functions = original(*arguments)

        def proceed(address: int) -> int:
            count: int = functions.proceed(address)
            if count > 0:
                launch = ctypes_type(LAUNCH).from_address(address)
                progress = launch.progress
                recorded.append(
                    Phase(
                        progress.phase,
                        progress.step,
                        progress.first_batch,
                        progress.first_channel,
                        plan=bytes(launch.plan),
                    )
                )
            return count

        return functions._replace(proceed=proceed)

    monkeypatch.setattr(jit_core, "_sampling_functions", recording_functions)
    # The cached calls have the functions of the real number of processors.
    monkeypatch.setattr(jit_core, "_prepared_call", jit_core._prepared_call.__wrapped__)

    def phases(shape: Shape, mode: str = "linear") -> list[Phase]:
        recorded.clear()
        ogs.set_core("jit")
        rng = np.random.default_rng(0)
        X = rng.normal(size=(shape.n, shape.channels, shape.side, shape.side)).astype(np.float32)
        grid = rng.uniform(-1.2, 1.2, (shape.n, 1, shape.positions, 2)).astype(np.float32)
        ogs.grid_sample(X, grid, mode, num_threads=shape.n_threads)
        return list(recorded)

    return phases


def plan_of(phase: Phase) -> Any:
    return ctypes_type(LAUNCH["plan"]).from_buffer_copy(phase.plan)


@pytest.mark.parametrize("packing", SHAPES)
def test_plan_does_not_change_after_the_first_phase_has_begun(packing, phases_of):
    phases = phases_of(SHAPES[packing])
    assert plan_of(phases[0]).packing == packing
    assert {phase.plan for phase in phases} == {phases[0].plan}


@pytest.mark.parametrize("packing", SHAPES)
def test_phases_are_those_of_the_table_once_per_round_and_one_for_other_channels(
    packing, phases_of
):
    phases = phases_of(SHAPES[packing])
    plan = plan_of(phases[0])
    of_round = PHASES_OF_ROUND[packing][: N_PHASES[packing]]
    expected = [*of_round * plan.rounds]
    if plan.packed_channels < SHAPES[packing].channels:
        expected.append(READING)
        assert phases[-1].first_channel == plan.packed_channels
    assert [phase.phase for phase in phases] == expected
    assert [phase.step for phase in phases] == [*range(len(expected))]


def test_rounds_of_shared_panels_cover_all_batches_and_channels(phases_of):
    phases = phases_of(SHAPES[PACKED_FOR_ALL])
    plan = plan_of(phases[0])
    shape = SHAPES[PACKED_FOR_ALL]
    channels_at_once = plan.panels_at_once * plan.panel_channels
    expected = [
        (batch, channel)
        for batch in range(0, shape.n, plan.batches_at_once)
        for channel in range(0, plan.packed_channels, channels_at_once)
    ]
    assert len(expected) > 1
    for phase in (PACKING, READING):
        rounds = [
            (p.first_batch, p.first_channel)
            for p in phases
            if p.phase == phase and p.first_channel < plan.packed_channels
        ]
        assert rounds == expected


@pytest.mark.parametrize("mode", ["linear", "cubic", "lanczos3"])
def test_tiles_of_a_large_launch_are_whole_vectors(mode, phases_of):
    shape = SHAPES[UNPACKED]
    tile_positions = plan_of(phases_of(shape, mode)[0]).tile_positions
    assert 0 < tile_positions < shape.positions
    assert tile_positions % (CACHE_LINE // np.dtype(np.float32).itemsize) == 0


def test_table_has_each_way_of_packing():
    assert N_PHASES == (0, 1, 2)
    assert {row[0] for row in PHASES_OF_ROUND} == {END, PACKING_AND_READING, PACKING}
