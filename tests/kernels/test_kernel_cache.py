"""The cache of compiled kernels on disk."""

import ctypes
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from types import FunctionType, SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

import ort_gridsample as ogs
from support.parameters import with_slow
from support.processes import run_script

pytest.importorskip("numba", reason="kernels are compiled by Numba")
from numba import config
from numba.core.compiler_lock import global_compiler_lock

from ort_gridsample.kernels import (
    cache_folder,
    compilation,
    jit_core,
    kernel_factories,
    kernel_key,
    workers,
)

PACKAGE = Path(ogs.__file__).parent


def one_more(number: int) -> int:
    return number + 1


def two_more(number: int) -> int:
    return number + 2


def load_or_compile(python_function: Callable[[int], int] = one_more) -> bool:
    """Load a function from the cache or compile it; return whether it was ready."""
    function = compilation.CompiledFunction(python_function)
    was_ready = function.needs_no_lock
    call_compiled = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(function.address())
    assert call_compiled(41) == python_function(41)
    assert function.needs_no_lock
    return was_ready


def with_wrong_bit(content: bytes, index: int, bit: int = 2) -> bytes:
    wrong = bytearray(content)
    wrong[index] ^= 1 << bit
    return bytes(wrong)


def with_wrong_bit_after(content: bytes, start: bytes, offset: int) -> bytes:
    return with_wrong_bit(content, content.index(start) + offset)


def test_unsealed_with_any_wrong_bit_is_none() -> None:
    content = cache_folder.sealed(b"data", "name")
    assert cache_folder.unsealed(content, "name") == b"data"
    for index, bit in product(range(len(content)), range(8)):
        assert cache_folder.unsealed(with_wrong_bit(content, index, bit), "name") is None


class RaisesWhenUnpickled:
    """An object whose pickle ends the process that reads it."""

    def __reduce__(self) -> tuple[Callable[[int], object], tuple[int]]:
        return os._exit, (1,)


#: What a damaged file contains, given its right content.
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[:100],
    "without its last byte": lambda content: content[:-1],
    "with another byte": lambda content: content + b"0",
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "garbage": lambda content: np.random.default_rng(0).bytes(len(content)),
    "wrong bit in the pickle": lambda content: with_wrong_bit(content, 5),
    "wrong bit in machine code": lambda content: with_wrong_bit_after(content, b"\x7fELF", 64),
    "wrong bit in bitcode": lambda content: with_wrong_bit_after(content, b"BC\xc0\xde", 9),
    "wrong bit in the hash": lambda content: with_wrong_bit(content, -3),
    "a pickle of another program": lambda content: pickle.dumps(RaisesWhenUnpickled()),
    "a kernel without a hash": lambda content: content[: -cache_folder._SEAL_SIZE],
}
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="machine code is an ELF file")


def damaged_by(names: Sequence[str] = tuple(DAMAGES)) -> pytest.MarkDecorator:
    marks = {"wrong bit in machine code": on_linux}
    return pytest.mark.parametrize(
        "damage",
        [pytest.param(DAMAGES[name], id=name, marks=marks.get(name, ())) for name in names],
    )


@damaged_by()
def test_kernel_cache_with_damaged_file_compiles_again(
    damage: Callable[[bytes], bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "ort_gridsample")
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert not load_or_compile()
    (file,) = tmp_path.rglob("*.nb*")
    file.write_bytes(damage(file.read_bytes()))
    assert not load_or_compile()
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert load_or_compile()


def test_kernel_cache_with_the_file_of_another_kernel_compiles_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    files = []
    for function in (one_more, two_more):
        load_or_compile(function)
        (file,) = {*tmp_path.rglob("*.nbc")} - {*files}
        files.append(file)
    shutil.copy(*files)
    assert not load_or_compile(two_more)


def test_kernel_cache_with_a_folder_in_place_of_a_file_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    load_or_compile()
    (file,) = tmp_path.rglob("*.nbc")
    file.unlink()
    file.mkdir()
    function = compilation.CompiledFunction(one_more)
    assert not function.needs_no_lock
    assert function.address()


@damaged_by(["empty", "wrong bit in the pickle"])
def test_kernel_cache_with_damaged_file_in_a_read_only_folder_writes_to_the_next_one(
    damage: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "filled"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    load_or_compile()
    (file,) = tmp_path.rglob("*.nbc")
    damaged = damage(file.read_bytes())
    file.write_bytes(damaged)
    make_read_only(monkeypatch, tmp_path / "filled")
    assert [load_or_compile() for _ in range(2)] == [False, True]
    assert file.read_bytes() == damaged
    assert len([*(tmp_path / "home").rglob("*.nbc")]) == 1


@damaged_by(["empty", "wrong bit in the pickle"])
def test_kernel_cache_without_a_writable_folder_compiles_a_damaged_kernel(
    damage: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    load_or_compile()
    (file,) = tmp_path.rglob("*.nbc")
    file.write_bytes(damage(file.read_bytes()))
    monkeypatch.setattr(cache_folder, "_is_writable", lambda path: False)
    load_or_compile()


def test_locks_of_a_helper_that_is_ended_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("first", "second")

    class Helper:
        def __init__(self, *_arguments: object, **_options: object) -> None:
            pass

        def kill(self) -> None:
            for name in names:  # as if it was compiling them
                (tmp_path / name).touch()

        def wait(self) -> None:
            assert all((tmp_path / name).exists() for name in names)

    monkeypatch.setattr(compilation, "available_cpus", lambda: 2)
    monkeypatch.setattr(compilation.subprocess, "Popen", Helper)
    monkeypatch.setattr(
        compilation,
        "compiled_function",
        lambda function_spec: SimpleNamespace(lock_path=tmp_path / function_spec[1]),
    )
    with compilation._helper_process([(load_or_compile, name) for name in names]):
        pass
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_processes_that_find_damaged_kernels_at_once_all_sample(tmp_path: Path) -> None:
    script = """
import numpy as np
import ort_gridsample as ogs
print(ogs.grid_sample(np.ones((1, 1, 4, 4), "f4"), np.zeros((1, 1, 1, 2), "f4"), "nearest").item())
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    assert run_script(script, environment) == ["1.0"]
    files = [*tmp_path.rglob("*.nbc")]
    contents = {file: file.read_bytes() for file in files}
    for file, content in contents.items():
        file.write_bytes(with_wrong_bit(content, len(content) // 2))
    with ThreadPoolExecutor(3) as pool:
        outputs = [*pool.map(lambda _: run_script(script, environment), range(3))]
    assert outputs == [["1.0"]] * 3
    for file in files:
        assert cache_folder.unsealed(file.read_bytes(), file.name) is not None
    assert not [*tmp_path.rglob("*.lock")]


def make_read_only(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let no file be written to ``folder``. Permissions do not prevent that root writes."""
    is_writable = cache_folder._is_writable
    monkeypatch.setattr(
        cache_folder,
        "_is_writable",
        lambda path: not path.is_relative_to(folder) and is_writable(path),
    )


def unwritable_folder(folder: Path) -> Path:
    """Return a path where not even root can create a folder: it leads through a file."""
    file = folder / "file"
    file.touch()
    return file / "cache"


@pytest.fixture
def no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the cache have no folder that can be written to."""
    folder = unwritable_folder(tmp_path)
    monkeypatch.setattr(config, "CACHE_DIR", str(folder / "numba"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(compilation, "_PACKAGE", folder)


def kernel_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.usefixtures("no_folder")
def test_kernel_cache_without_a_folder_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compilation, "_has_warned", False)
    assert [load_or_compile() for _ in range(2)] == [True, True]
    folders = ", ".join(map(str, compilation.kernel_folders()))
    assert kernel_warnings(caplog) == [
        "compiled kernels cannot be kept on disk, so each process compiles them again "
        f"(no folder can be written: {folders}): "
        "let NUMBA_CACHE_DIR be a folder that can be written"
    ]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), PermissionError(13, "Permission denied")]
)
def test_kernel_cache_that_cannot_be_written_warns_once(
    error: OSError,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(compilation, "_has_warned", False)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compilation._Files, "_save_data", Mock(side_effect=error))
    function = compilation.CompiledFunction(one_more)
    assert function.address()
    assert compilation.CompiledFunction(one_more).address()
    (warning,) = kernel_warnings(caplog)
    assert str(error) in warning
    assert not list(tmp_path.rglob("*.nb*"))


def test_kernel_cache_without_sources_warns_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a frozen program of bytecode only: every process compiles its kernels again."""
    monkeypatch.setattr(compilation, "_has_warned", False)
    monkeypatch.setattr(kernel_key, "_source_digest", kernel_key._source_digest.__wrapped__)
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    function = compilation.CompiledFunction(one_more)
    assert function.address()
    assert function._cache is None
    (warning,) = kernel_warnings(caplog)
    assert "a source file of ort_gridsample is missing" in warning
    assert str(tmp_path / "kernels") in warning


def test_kernel_cache_of_a_kernel_without_a_key_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compilation, "_has_warned", False)
    monkeypatch.setattr(compilation, "kernel_key", Mock(side_effect=TypeError("no text for it")))
    assert compilation.CompiledFunction(one_more).address()
    (warning,) = kernel_warnings(caplog)
    assert "(no text for it)" in warning


def test_kernel_cache_kept_in_a_folder_does_not_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compilation, "_has_warned", False)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    load_or_compile()
    assert kernel_warnings(caplog) == []


def test_kernel_folders_are_numbas_then_the_users_then_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "numba"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    numba = tmp_path / "numba" / "ort_gridsample"
    user = tmp_path / "user" / "ort_gridsample" / "kernels"
    package = PACKAGE / "__pycache__"
    assert compilation.kernel_folders() == [numba, user, package]
    monkeypatch.setattr(config, "CACHE_DIR", "")
    assert compilation.kernel_folders() == [user, package]
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert compilation.kernel_folders() == [user]


def test_kernel_folders_without_a_home_are_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(cache_folder, "cache_folder", Mock(side_effect=RuntimeError))
    assert compilation.kernel_folders() == [PACKAGE / "__pycache__"]


@pytest.mark.parametrize(
    ("system", "variable", "expected"),
    [
        ("linux", "", "home/.cache/ort_gridsample"),
        ("darwin", "", "home/Library/Caches/ort_gridsample"),
        ("darwin", "XDG_CACHE_HOME", "cache/ort_gridsample"),
        ("win32", "LOCALAPPDATA", "cache/ort_gridsample"),
        ("linux", "LOCALAPPDATA", "home/.cache/ort_gridsample"),
    ],
)
def test_cache_folder_is_in_the_systems_folder_for_caches(
    system: str, variable: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert cache_folder.cache_folder() == tmp_path / expected


@pytest.mark.parametrize(
    ("system", "variable"), [("linux", "XDG_CACHE_HOME"), ("win32", "LOCALAPPDATA")]
)
def test_cache_folder_of_a_relative_variable_is_that_without_the_variable(
    system: str, variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "cache")
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder.cache_folder() == tmp_path / ".cache/ort_gridsample"


def test_kernel_cache_in_a_read_only_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New kernels go to the next folder, such as that of a container image's user."""
    filled = tmp_path / "filled"
    home = tmp_path / "home"
    monkeypatch.setattr(config, "CACHE_DIR", str(filled))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    assert not load_or_compile()
    make_read_only(monkeypatch, filled)
    assert load_or_compile()
    assert not load_or_compile(two_more)
    assert len([*filled.rglob("*.nbc")]) == len([*home.rglob("*.nbc")]) == 1


@pytest.mark.parametrize(("setting", "value"), [("BOUNDSCHECK", 1), ("OPT", 0)])
def test_kernel_key_depends_on_numba_setting(
    setting: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs with other settings share the user's cache folder."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert not load_or_compile()
    monkeypatch.setattr(config, setting, value)
    assert not compilation.CompiledFunction(one_more).needs_no_lock


def create_files(folder: Path, ages: dict[str, float]) -> None:
    for name, days in ages.items():
        file = folder / name
        file.write_bytes(bytes(10))
        seconds = time.time() - days * 86400
        os.utime(file, (seconds, seconds))


def test_remove_least_used_keeps_the_newest_within_the_limit(tmp_path: Path) -> None:
    create_files(tmp_path, {"a.nbc": 1, "b.nbc": 3, "c.nbc": 2, "other": 9})
    cache_folder.remove_least_used.__wrapped__(tmp_path, "*.nbc", 25)
    assert {file.name for file in tmp_path.iterdir()} == {"a.nbc", "c.nbc", "other"}


def test_remove_least_used_removes_temporary_files_of_killed_processes(tmp_path: Path) -> None:
    create_files(tmp_path, {"a.nbc.tmp.1": 2, "a.nbc.tmp.2": 0})
    cache_folder.remove_least_used.__wrapped__(tmp_path, "*.nbc", 100)
    assert [file.name for file in tmp_path.iterdir()] == ["a.nbc.tmp.2"]


def test_remove_least_used_without_a_folder_does_nothing(tmp_path: Path) -> None:
    cache_folder.remove_least_used.__wrapped__(tmp_path / "none", "*.nbc", 100)


def test_kernel_cache_marks_loaded_kernel_as_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    load_or_compile()
    (file,) = tmp_path.rglob("*.nbc")
    os.utime(file, (0, 0))
    load_or_compile()
    assert time.time() - file.stat().st_mtime < 3600


#: Load or compile a kernel in another copy of the package; print whether it was ready before and
#: after that, and whether it has a cache.
LOAD_KERNEL = """
import os, sys
folder = os.environ["PACKAGE_FOLDER"]
sys.path.insert(0, folder)
from ort_gridsample.kernels import compilation, kernel_factories
assert compilation.__file__.startswith(folder), compilation.__file__
function = compilation.compiled_function((kernel_factories.copy_for, "uint8"))
print(function.needs_no_lock)
function.address()
print(function.needs_no_lock, function._cache is not None)
"""


def copy_package(folder: Path) -> Path:
    """Copy the package into ``folder``; return the entry of ``sys.path`` for the copy."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def zip_package(folder: Path) -> Path:
    """Write the package to an archive in ``folder``; return the entry of ``sys.path`` for it."""
    copy_package(folder / "unpacked")
    archive = shutil.make_archive(str(folder / "package"), "zip", folder / "unpacked")
    shutil.rmtree(folder / "unpacked")
    return Path(archive)


@pytest.mark.slow
@pytest.mark.parametrize("copy", [copy_package, zip_package], ids=["folder", "zip"])
@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME"])
def test_kernels_of_a_package_copy_in_another_folder_are_loaded(
    copy: Callable[[Path], Path], variable: str, tmp_path: Path
) -> None:
    outputs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        environment = {
            **os.environ,
            "NUMBA_CACHE_DIR": "",
            "PACKAGE_FOLDER": str(copy(tmp_path / name)),
            variable: str(tmp_path / "cache"),
        }
        outputs.append(run_script(LOAD_KERNEL, environment))
    assert outputs == [["False", "True True"], ["True", "True True"]]
    assert len([*(tmp_path / "cache").rglob("*.nbc")]) == 1


def test_compiled_functions_have_unique_names() -> None:
    """The linker would use the first of two functions with one name and types for both."""
    modules = [module for name, module in sys.modules.items() if name.startswith("ort_gridsample.")]
    functions = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, FunctionType) and value.__module__.startswith("ort_gridsample.")
    }
    names = [(function.__module__, function.__qualname__) for function in functions]
    assert len(names) > 100
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_kernels_of_read_only_package_are_loaded_by_other_processes(
    tmp_path: Path,
) -> None:
    package = shutil.copytree(
        PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__")
    )
    # A file in place of the folder: not even root can write to the folder.
    (package / "__pycache__").write_text("")
    script = """
import os
sys.path.insert(0, os.environ["PACKAGE_FOLDER"])
from ort_gridsample.kernels import compilation, kernel_factories
function = compilation.compiled_function((kernel_factories.copy_for, "uint8"))
print(function.needs_no_lock)
function.address()
print(function._cache.cache_path)
"""
    home = str(tmp_path / "home")
    variables = {
        "PACKAGE_FOLDER": str(tmp_path),
        "XDG_CACHE_HOME": home,
        "HOME": home,
        "NUMBA_CACHE_DIR": "",
    }
    (was_ready, _), (is_ready, path) = (
        run_script(script, {**os.environ, **variables}) for _ in range(2)
    )
    assert (was_ready, is_ready) == ("False", "True")
    assert home in path


def test_compilation_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    missing = [(workers.process_items,)]
    loaded = []
    monkeypatch.setattr(jit_core, "missing_on_disk", lambda kernels: missing)
    monkeypatch.setattr(
        jit_core, "_sampling_functions", lambda *arguments: loaded.append(arguments)
    )
    for _ in range(2):
        jit_core.prepare(np.dtype("uint8"), np.dtype("float32"), "nearest")
        missing = []
    text = (
        "compiling kernels for nearest for X of uint8; this takes a few seconds, and later "
        "processes load them from disk (NUMBA_CACHE_DIR)"
    )
    assert caplog.record_tuples == [("ort_gridsample", logging.WARNING, text)]
    assert loaded == [("uint8", "float32", "nearest", "zeros", False)] * 2


@with_slow("X_type", ["float32", "float16", "uint8", "complex64"], ["float32"])
def test_run_after_prepare_compiles_nothing(X_type: str) -> None:
    """Nor does it load a kernel: LLVM ends a process that has no memory for that."""
    (output,) = run_script(f"""
import numpy as np
from ort_gridsample import grid_sample
from ort_gridsample.kernels import compilation, jit_core, kernel_factories

def n_kernels():
    return compilation.compiled_function.cache_info().currsize

jit_core.prepare(np.dtype("{X_type}"), np.dtype("float32"), "linear")
before = n_kernels()
function_specs = kernel_factories.kernel_functions("{X_type}", "float32", "linear")
specs = [*jit_core._HELPER_FUNCTIONS.values(), *function_specs.values()]
assert all(compilation.compiled_function(spec)._address for spec in specs if spec is not None)
for n in (1, 8):
    for channels in (1, 2, 8, 9, 40):
        for side in (2, 60):
            X = np.ones((n, channels, 9, 9), "{X_type}")
            grid = np.ones((n, side, side, 2), np.float32)
            grid_sample(X, grid, "linear", num_threads=2)
print(before, n_kernels() - before)
""")
    assert re.fullmatch("[1-9][0-9]* 0", output)


def test_kernel_cache_is_read_by_one_thread_at_a_time() -> None:
    """Like Numba's compiler, its registries are not safe for several threads."""
    function = compilation.CompiledFunction(workers.proceed)
    results = []
    thread = threading.Thread(target=lambda: results.append(function.needs_no_lock))
    with global_compiler_lock:
        thread.start()
        thread.join(0.3)
        assert not results
    thread.join()
    assert len(results) == 1


def test_another_process_finds_all_kernels_of_all_modes_on_disk() -> None:
    """A kernel's key contains the variables of its closure. A function would change it."""
    for mode in kernel_factories.TAPS:
        jit_core.prepare(np.dtype(np.float32), np.dtype(np.float32), mode)
    missing = run_script("""
from ort_gridsample.kernels import compilation, kernel_factories
for mode in kernel_factories.TAPS:
    specs = kernel_factories.kernel_functions("float32", "float32", mode).values()
    for factory, *_ in compilation.missing_on_disk([*specs]):
        print(mode, factory.__name__)
""")
    assert missing == []


OTHER_EXECUTABLES = ("/usr/bin/uwsgi", "C:\\Blender\\blender.exe", "", None, "/usr/bin/pythonista")
PYTHON_EXECUTABLES = (
    "python3.13t",
    "C:\\venv\\Scripts\\pythonw.exe",
    "/Library/Python",
    "C:\\python_d.exe",
    sys.executable,
)


@pytest.mark.parametrize(
    ("executable", "is_python"),
    [*product(OTHER_EXECUTABLES, [False]), *product(PYTHON_EXECUTABLES, [True])],
)
def test_compilation_starts_helper_process_of_python_executable_only(
    executable: str | None, is_python: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a program that embeds Python, ``sys.executable`` is that program."""
    commands: list[list[str]] = []
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(compilation, "available_cpus", lambda: 2)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command))
    with compilation._helper_process([(workers.process_items,), (workers.proceed,)]):
        assert [command[0] for command in commands] == ([executable] if is_python else [])
    monkeypatch.setattr(sys, "hexversion", 0x020700F0)
    for _, _, code in commands:  # a helper of another version ends at once
        with pytest.raises(SystemExit):
            exec(code, {})
