"""The locks between processes that compile kernels."""

import gc
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.processes import start_program

pytest.importorskip("numba", reason="the kernels are Numba's")
from numba import config

from ort_gridsample.kernels import compilation
from ort_gridsample.kernels.kernel_lock import is_locked, try_lock


def one_less(number: int) -> int:
    return number - 1


@contextmanager
def locked_by_another_process(path: Path) -> Iterator[None]:
    """Lock a file in another process, which is killed at the end."""
    with start_program("hold_kernel_lock.py", str(path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield


@pytest.fixture
def function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> compilation.CompiledFunction:
    """A function that is not on disk, for each spec."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    function = compilation.CompiledFunction(one_less)
    monkeypatch.setattr(compilation, "compiled_function", lambda spec: function)
    return function


def test_try_lock_of_a_file_that_another_process_locked_fails(tmp_path: Path) -> None:
    path = tmp_path / "kernel.lock"
    with locked_by_another_process(path), try_lock(path) as is_free:
        assert not is_free


def test_is_locked_while_another_process_has_the_lock_is_true(tmp_path: Path) -> None:
    path = tmp_path / "kernel.lock"
    with locked_by_another_process(path):
        assert is_locked(path)


def test_is_locked_after_the_process_was_killed_is_false(tmp_path: Path) -> None:
    path = tmp_path / "kernel.lock"
    with locked_by_another_process(path):
        pass
    assert path.exists()
    assert not is_locked(path)


def test_try_lock_at_its_end_removes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kernel.lock"
    with try_lock(path) as is_free:
        assert is_free
        assert path.exists()
    assert not path.exists()


@pytest.mark.parametrize("path", [None, Path("no such folder", "kernel.lock")])
def test_try_lock_without_a_file_locks_nothing(path: Path | None) -> None:
    with try_lock(path) as is_free:
        assert is_free


def test_try_lock_on_a_disk_without_locks_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lockf(*arguments: object) -> None:
        raise OSError(95, "Operation not supported")

    fcntl = pytest.importorskip("fcntl", reason="Windows locks files in another way")
    monkeypatch.setattr(fcntl, "lockf", lockf)
    with try_lock(tmp_path / "kernel.lock") as is_free:
        assert is_free


def test_compilation_waits_for_the_process_that_compiles_the_same_kernel(
    function: compilation.CompiledFunction,
) -> None:
    assert function.lock_path is not None
    spec = (one_less,)
    thread = threading.Thread(target=compilation.addresses, args=([spec],))
    with locked_by_another_process(function.lock_path):
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
    thread.join(60)
    assert function.needs_no_lock


def test_compilation_after_the_maximum_wait_does_without_the_lock(
    function: compilation.CompiledFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "MAX_WAIT", 0.2)
    assert function.lock_path is not None
    with locked_by_another_process(function.lock_path):
        compilation.addresses([(one_less,)])
    assert function.needs_no_lock


def test_compilation_restores_the_threshold_of_the_garbage_collector(
    function: compilation.CompiledFunction,
) -> None:
    before = gc.get_threshold()
    function.address()
    assert gc.get_threshold() == before


def test_two_processes_that_start_at_once_compile_each_kernel_once(tmp_path: Path) -> None:
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    with (
        start_program("compile_kernels.py", env=environment) as first,
        start_program("compile_kernels.py", env=environment) as second,
    ):
        outputs = [process.communicate(timeout=280)[0] for process in (first, second)]
    compiled = [name for output in outputs for name in json.loads(output)]
    assert sorted(compiled) == ["uint16", "uint32", "uint64", "uint8"]
