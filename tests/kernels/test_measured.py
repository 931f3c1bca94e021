"""Facts about the machine that are measured once: where they are from, and what they change."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ort_gridsample as ogs
from ort_gridsample import settings
from ort_gridsample.cli import output
from support.compare import refusal

pytest.importorskip("numba", reason="the compiled core needs Numba")

from ort_gridsample.kernels import jit_core, measured, target
from ort_gridsample.kernels.kernel_factories import kernel_constants

LIMITS = {True: measured.PREFETCHED_FROM_L2, False: measured.PREFETCHED_FROM_MEMORY}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a new folder of answers, for a process that has none in memory."""
    monkeypatch.delenv(settings.PREFETCHED_BYTES.variable, raising=False)
    monkeypatch.setattr(measured.cache_folder, "cache_folder", lambda: tmp_path)
    measured._measured_once.cache_clear()
    yield tmp_path
    measured._measured_once.cache_clear()


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool | None], None]:
    """Return a function that fakes the next measurements; with None, there must be none."""

    def fake(pays_off: bool | None) -> None:
        def measure() -> bool:
            assert pays_off is not None, "it is measured once"
            return pays_off

        monkeypatch.setattr(measured, "prefetching_pays_off", measure)
        measured._measured_once.cache_clear()

    return fake


def limit_of_kernels(mode: str = "nearest") -> int:
    return kernel_constants("float32", "float32", mode)["prefetched_bytes"]


@pytest.mark.parametrize("pays_off", [True, False])
def test_limit_of_kernels_is_measured_once_per_machine(pays_off: bool, answer) -> None:
    assert measured.description() == "not measured"
    answer(pays_off)
    assert limit_of_kernels() == LIMITS[pays_off]
    answer(None)
    assert limit_of_kernels() == LIMITS[pays_off]
    assert measured.description() == f"from {LIMITS[pays_off]} bytes (measured)"


def test_limit_of_modes_with_weights_needs_no_measurement(answer) -> None:
    answer(None)
    assert limit_of_kernels("linear") == 0


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("module", "__version__", "9.9"),
        ("environment", "NUMBA_CPU_NAME", "generic"),
        ("processor", "_processor", lambda: ["another"]),
    ],
)
def test_limit_of_another_machine_or_release_is_measured_again(
    where: str, name: str, value, answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(True)
    limit_of_kernels()
    if where == "environment":
        monkeypatch.setenv(name, value)
    else:
        monkeypatch.setattr(ogs if where == "module" else measured, name, value)
    answer(False)
    assert limit_of_kernels() == LIMITS[False]


@pytest.mark.parametrize("content", [b"", b"1048576", b"many"])
def test_limit_of_a_damaged_answer_is_measured_again(content: bytes, answer, folder: Path) -> None:
    answer(True)
    limit_of_kernels()
    (file,) = (folder / "measured").iterdir()
    file.write_bytes(content)
    answer(False)
    assert limit_of_kernels() == LIMITS[False]


def test_limit_that_cannot_be_kept_is_measured_by_each_process(answer, folder: Path) -> None:
    (folder / "measured").write_text("not a folder")
    answer(False)
    assert limit_of_kernels() == LIMITS[False]
    answer(True)
    assert limit_of_kernels() == LIMITS[True]


def test_limit_of_the_environment_variable_is_not_measured(
    answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(None)
    monkeypatch.setenv(settings.PREFETCHED_BYTES.variable, "12345")
    assert limit_of_kernels() == 12345
    assert measured.description() == "from 12345 bytes (set)"


@pytest.mark.parametrize("invalid", ["0", "-1", "1.5", "many"])
def test_limit_of_an_invalid_variable_raises(invalid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.PREFETCHED_BYTES.variable, invalid)
    error = refusal(limit_of_kernels)
    assert (error.argument, error.found) == (settings.PREFETCHED_BYTES.variable, repr(invalid))
    assert output.versions()["prefetching"] == f"cannot be set ({error})"


@pytest.mark.parametrize("gathers", [True, False])
def test_limit_for_another_machine_is_chosen_by_its_features(
    gathers: bool, answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(None)
    monkeypatch.setattr(target, "_features", ["avx512fp16"] if gathers else ["avx2"])
    assert limit_of_kernels() == LIMITS[gathers]


def test_version_prints_the_limit(answer) -> None:
    assert output.versions()["prefetching"] == "not measured"
    answer(False)
    limit_of_kernels()
    assert output.versions()["prefetching"] == f"from {LIMITS[False]} bytes (measured)"


def test_measurement_returns_whether_copying_takes_less_time() -> None:
    assert measured.prefetching_pays_off() in (True, False)
    assert limit_of_kernels() in LIMITS.values()


@pytest.mark.usefixtures("default_core")
@pytest.mark.parametrize("limit", [0, 1 << 62])
@pytest.mark.parametrize("is_smooth", [True, False])
@pytest.mark.parametrize("type_", ["uint8", "float16", "float32", "float64", "complex128"])
def test_nearest_is_the_same_with_any_limit(
    limit: int, is_smooth: bool, type_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X exceeds the L2 cache, and some positions are outside."""
    rng = np.random.default_rng(1)
    X = rng.integers(1, 100, (1, 3, 700, 601)).astype(type_)
    grid = rng.uniform(-1.1, 1.1, (1, 50, 67, 2)).astype(np.float32)
    if is_smooth:
        grid = np.sort(grid.reshape(-1)).reshape(grid.shape)
    ogs.set_core("numpy")
    expected = ogs.grid_sample(X, grid, "nearest")
    ogs.set_core("jit")
    kernel = jit_core._sampling_functions(type_, "float32", "nearest", "zeros", False).kernel
    monkeypatch.setattr(kernel, "prefetched_bytes", limit)
    np.testing.assert_array_equal(ogs.grid_sample(X, grid, "nearest"), expected)
