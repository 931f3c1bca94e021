"""The cache of compiled kernels on disk."""

import ctypes
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import FunctionType, ModuleType
from unittest.mock import Mock, call

import numpy as np
import pytest

import ort_gridsample as ogs
from conftest import with_slow
from support.processes import run_script

pytest.importorskip("numba", reason="the kernels are Numba's")
from numba import config
from numba.core.compiler_lock import global_compiler_lock

from ort_gridsample.custom_ops.compiled_ops import affine, program_grids, sampling
from ort_gridsample.kernels import cache_folder, compilation, jit_core, workers
from ort_gridsample.reference import memory

PACKAGE = Path(ogs.__file__).parent


def one_more(number: int) -> int:
    return number + 1


def load_or_compile(sources: list[Path]) -> bool:
    """Load a function from the cache or compile it; return whether it was ready."""
    function = compilation.CompiledFunction(one_more, sources)
    was_ready = function.is_ready
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(function.address())(41) == 42
    assert function.is_ready
    return was_ready


def test_kernel_cache_after_change_of_any_source_compiles_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel of the previous sources stays in the cache."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    kernels = sorted(Path(workers.__file__).parent.glob("*.py"))
    copies = [Path(shutil.copy(path, tmp_path)) for path in kernels]
    assert [load_or_compile(copies) for _ in range(2)] == [False, True]
    function = compilation.CompiledFunction(one_more, copies)
    seen = {compilation.fingerprint(copies)}
    for copy in copies:
        before = copy.read_bytes()
        copy.write_bytes(before + b"# changed\n")
        assert not compilation.CompiledFunction(one_more, copies).is_ready
        seen.add(compilation.fingerprint(copies))
        copy.write_bytes(before)
    assert len(seen) == 1 + len(copies)
    assert function.is_ready
    assert load_or_compile(copies)


@pytest.mark.parametrize("length", [100, 0])
def test_kernel_cache_with_damaged_file_compiles_again(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "ort_gridsample")
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert not load_or_compile([Path(__file__)])
    (file,) = tmp_path.rglob("*.nb*")
    file.write_bytes(file.read_bytes()[:length])
    assert load_or_compile([Path(__file__)])
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert file.stat().st_size > 100


def unwritable_folder(folder: Path) -> Path:
    """A path that nobody can make a folder of, not even root: it leads through a file."""
    file = folder / "file"
    file.touch()
    return file / "cache"


@pytest.fixture
def no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no folder be writable."""
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
    assert [load_or_compile([Path(__file__)]) for _ in range(2)] == [True, True]
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
    function = compilation.CompiledFunction(one_more, [Path(__file__)])
    assert function.address()
    assert compilation.CompiledFunction(one_more, [Path(__file__)]).address()
    (warning,) = kernel_warnings(caplog)
    assert str(error) in warning
    assert not list(tmp_path.rglob("*.nb*"))


def test_kernel_cache_without_sources_warns_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compilation, "_has_warned", False)
    assert compilation.CompiledFunction(one_more, [tmp_path / "missing.py"]).address()
    (warning,) = kernel_warnings(caplog)
    assert "a source file of ort_gridsample is missing" in warning
    assert str(tmp_path / "missing.py") in warning


def test_kernel_cache_kept_in_a_folder_does_not_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compilation, "_has_warned", False)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    load_or_compile([Path(__file__)])
    assert kernel_warnings(caplog) == []


def test_kernel_folders_prefer_numbas_and_then_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "numba"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    numba = tmp_path / "numba" / "ort_gridsample"
    user = tmp_path / "user" / "ort_gridsample" / "kernels"
    beside = PACKAGE / "__pycache__"
    assert compilation.kernel_folders() == [numba, user, beside]
    monkeypatch.setattr(config, "CACHE_DIR", "")
    assert compilation.kernel_folders() == [user, beside]
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
        ("darwin", "XDG_CACHE_HOME", "elsewhere/ort_gridsample"),
        ("win32", "LOCALAPPDATA", "elsewhere/ort_gridsample"),
    ],
)
def test_cache_folder_is_in_the_systems_folder_for_caches(
    system: str, variable: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "elsewhere")
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    assert cache_folder.cache_folder() == Path(expected)


def test_kernel_cache_in_a_read_only_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New kernels go to the next folder, such as that of a container image's user."""
    filled = tmp_path / "filled"
    home = tmp_path / "home"
    monkeypatch.setattr(config, "CACHE_DIR", str(filled))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    assert not load_or_compile([Path(__file__)])
    is_writable = cache_folder._is_writable
    monkeypatch.setattr(
        cache_folder,
        "_is_writable",
        lambda path: not path.is_relative_to(filled) and is_writable(path),
    )
    assert load_or_compile([Path(__file__)])
    assert not load_or_compile([Path(compilation.__file__)])
    assert len([*filled.rglob("*.nbc")]) == len([*home.rglob("*.nbc")]) == 1


@pytest.mark.parametrize(("setting", "value"), [("BOUNDSCHECK", 1), ("OPT", 0)])
def test_kernel_key_depends_on_numba_setting(
    setting: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs with other settings share the user's cache folder."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert not load_or_compile([Path(__file__)])
    monkeypatch.setattr(config, setting, value)
    assert not compilation.CompiledFunction(one_more, [Path(__file__)]).is_ready


def create_files(folder: Path, ages: dict[str, float]) -> None:
    for name, days in ages.items():
        file = folder / name
        file.write_bytes(bytes(10))
        then = time.time() - days * 86400
        os.utime(file, (then, then))


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
    load_or_compile([Path(__file__)])
    (file,) = tmp_path.rglob("*.nbc")
    os.utime(file, (0, 0))
    load_or_compile([Path(__file__)])
    assert time.time() - file.stat().st_mtime < 3600


KERNEL_FUNCTIONS = [workers.process_items, affine.compute, sampling.compute, program_grids.measure]


@pytest.mark.parametrize(
    "function", KERNEL_FUNCTIONS, ids=lambda function: function.__module__.rpartition(".")[2]
)
def test_kernel_sources_contain_every_compiled_module(function: Callable[..., int]) -> None:
    """Follow the names that the function's module imports from the package."""
    files = set[Path]()
    pending = {function.__module__}
    visited = set[str]()
    while pending:
        name = pending.pop()
        visited.add(name)
        module = sys.modules[name]
        files.add(Path(module.__file__))
        for value in vars(module).values():
            attribute = "__name__" if isinstance(value, ModuleType) else "__module__"
            origin = getattr(value, attribute, None) or ""
            if origin.startswith(ogs.__name__) and origin not in visited:
                pending.add(origin)
    assert files <= set(compilation.kernel_sources())


NUMBERS = [
    ("programs.py", b"MAX_STEPS = 16", b"MAX_STEPS = 17"),
    ("programs.py", b'("Add", "Sub", ', b'("Sub", "Add", '),
    ("taps.py", b"MAX_TAPS = 1 << 16", b"MAX_TAPS = 1 << 15"),
    ("helper_threads.py", b"SPIN_LIMIT = 1000", b"SPIN_LIMIT = 100"),
    ("compilation.py", b'"error_model": "numpy"', b'"error_model": "python"'),
]


@pytest.mark.parametrize(("file", "old", "new"), NUMBERS)
def test_kernel_key_depends_on_module_constants(
    file: str, old: bytes, new: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_bytes
    text = next(read(path) for path in PACKAGE.rglob(file))
    assert old in text
    before = compilation.package_fingerprint.__wrapped__()
    monkeypatch.setattr(
        Path, "read_bytes", lambda p: text.replace(old, new) if p.name == file else read(p)
    )
    assert compilation.package_fingerprint.__wrapped__() != before


@pytest.mark.parametrize("spec", [(workers.process_items,), (affine.fill_for, "float32")])
def test_compiled_function_has_the_fingerprint_of_the_package_in_its_key(
    spec: compilation.KernelSpec,
) -> None:
    function = compilation.compiled_function.__wrapped__(spec)
    assert function._cache._fingerprint == compilation.package_fingerprint()


def test_kernel_sources_of_a_program_without_sources_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spec.pyc").touch()
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path))):
        compilation.kernel_sources.__wrapped__()


def test_compiled_function_without_sources_is_not_kept_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a frozen program without sources: every process compiles it again."""
    monkeypatch.setattr(compilation, "package_fingerprint", Mock(side_effect=FileNotFoundError))
    assert compilation.compiled_function.__wrapped__((workers.process_items,))._cache is None


COPY = """
import os, sys
sys.path.insert(0, os.environ["PACKAGE_IN"])
from ort_gridsample.kernels import compilation, workers
assert compilation.__file__.startswith(os.environ["PACKAGE_IN"]), compilation.__file__
function = compilation.compiled_function((workers.copy_for, "uint8"))
print(function.is_ready)
function.address()
print(function.is_ready, function._cache is not None)
"""


def copy_package(folder: Path) -> Path:
    """Copy the package into ``folder``; return what makes Python import it."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def zip_package(folder: Path) -> Path:
    """As :func:`copy_package`, in an archive."""
    copy_package(folder / "unpacked")
    archive = shutil.make_archive(str(folder / "package"), "zip", folder / "unpacked")
    shutil.rmtree(folder / "unpacked")
    return Path(archive)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [(copy_package, copy_package), (zip_package, zip_package)],
    ids=["folder", "zip"],
)
@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME"])
def test_kernels_of_a_package_copy_in_another_folder_are_loaded(
    first: Callable[[Path], Path], second: Callable[[Path], Path], variable: str, tmp_path: Path
) -> None:
    printed = []
    for name, place in (("first", first), ("second", second)):
        (tmp_path / name).mkdir()
        environment = {
            **os.environ,
            "NUMBA_CACHE_DIR": "",
            "PACKAGE_IN": str(place(tmp_path / name)),
        }
        printed.append(run_script(COPY, {**environment, variable: str(tmp_path / "cache")}))
    assert printed == [["False", "True True"], ["True", "True True"]]
    assert len([*(tmp_path / "cache").rglob("*.nbc")]) == 1


def test_compiled_functions_have_unique_names() -> None:
    """The linker would use the first of two functions with one name and types for both."""
    modules = [module for name, module in sys.modules.items() if name.startswith("ort_gridsample.")]
    functions = {
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, FunctionType)
    }
    ours = [
        (each.__module__, each.__qualname__)
        for each in functions
        if each.__module__.startswith("ort_gridsample.")
    ]
    assert len(ours) > 100
    assert len(set(ours)) == len(ours)


@pytest.mark.slow
def test_kernels_of_read_only_package_are_loaded_by_other_processes(
    tmp_path: Path,
) -> None:
    package = shutil.copytree(
        PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__")
    )
    # A file where the folder would be: nobody, not even root, can write to it.
    (package / "__pycache__").write_text("")
    script = """
import os
sys.path.insert(0, os.environ["PACKAGE_IN"])
from ort_gridsample.kernels import compilation, workers
function = compilation.compiled_function((workers.copy_for, "uint8"))
print(function.is_ready)
function.address()
print(function._cache.cache_path)
"""
    home = str(tmp_path / "home")
    said = {
        "PACKAGE_IN": str(tmp_path),
        "XDG_CACHE_HOME": home,
        "HOME": home,
        "NUMBA_CACHE_DIR": "",
    }
    (first, _), (second, path) = (run_script(script, {**os.environ, **said}) for _ in range(2))
    assert (first, second, home in path) == ("False", "True", True)


def test_compilation_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    missing = [(workers.process_items,)]
    made = []
    monkeypatch.setattr(jit_core, "uncompiled", lambda parts: missing)
    monkeypatch.setattr(jit_core, "_variant", lambda *words: made.append(words))
    for _ in range(2):
        jit_core.prepare(np.dtype("uint8"), np.dtype("float32"), "nearest")
        missing = []
    text = (
        "compiling nearest for X of uint8, a few seconds, once: "
        "Numba keeps it on disk (NUMBA_CACHE_DIR)"
    )
    assert caplog.record_tuples == [("ort_gridsample", logging.WARNING, text)]
    assert made == [("uint8", "float32", "nearest", "zeros", False)] * 2


@with_slow("X_type", ["float32", "float16", "uint8", "complex64"], ["float32"])
def test_run_after_prepare_compiles_nothing(X_type: str) -> None:
    """Not even to load: LLVM ends a process that has no memory left for that."""
    (added,) = run_script(f"""
import numpy as np
from ort_gridsample import grid_sample
from ort_gridsample.kernels import compilation, jit_core, workers

def known():
    return compilation.compiled_function.cache_info().currsize

jit_core.prepare(np.dtype("{X_type}"), np.dtype("float32"), "linear")
before = known()
kernels = workers.kernel_functions("{X_type}", "float32", "linear")
parts = [*jit_core._HELPER_FUNCTIONS.values(), *kernels.values()]
assert all(compilation.compiled_function(part)._address for part in parts if part is not None)
for n in (1, 8):
    for channels in (1, 2, 8, 9, 40):
        for side in (2, 60):
            X = np.ones((n, channels, 9, 9), "{X_type}")
            grid = np.ones((n, side, side, 2), np.float32)
            grid_sample(X, grid, "linear", num_threads=2)
print(before, known() - before)
""")
    assert re.fullmatch("[1-9][0-9]* 0", added)


def test_compilation_without_free_memory_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More to compile than to load: LLVM ends a process that has none."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    for needed in (1 << 26, 1 << 24):
        probe = Mock(side_effect=[MemoryError, None])
        monkeypatch.setattr(memory, "probe", probe)
        with pytest.raises(MemoryError):
            load_or_compile([])
        load_or_compile([])
        assert probe.call_args_list == [call(needed)] * 2


def test_kernels_saved_by_two_processes_at_once_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [compilation._Files(str(tmp_path), "f", "stamp") for _ in range(2)]
    saved = []
    monkeypatch.setattr(
        compilation._Files, "_save_data", lambda self, name, data: saved.append((name, data))
    )
    for each, key in zip(files, ("first", "second"), strict=True):
        each.save(key, key)
    monkeypatch.undo()
    for each in saved:
        files[0]._save_data(*each)
    found = {key: (files[1].load(key), files[1].has(key)) for key in ("first", "second", "third")}
    assert found == {"first": ("first", True), "second": ("second", True), "third": (None, False)}
    assert compilation._Files(str(tmp_path), "f", "another stamp").load("first") is None


def test_kernel_cache_is_read_by_one_thread_at_a_time() -> None:
    """Numba's registries are no more for two at once than its compiler."""
    asked = compilation.CompiledFunction(workers.proceed)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(asked.is_ready))
    with global_compiler_lock:
        thread.start()
        thread.join(0.3)
        assert not answers
    thread.join()
    assert len(answers) == 1


def test_slowest_compilation_starts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another process begins with what takes least."""
    monkeypatch.setattr(
        compilation,
        "compiled_function",
        lambda part: compilation.CompiledFunction(one_more, [PACKAGE / "none"]),
    )
    monkeypatch.setattr(compilation.CompiledFunction, "is_ready", False)
    parts = workers.kernel_functions("float32", "float16", "linear").values()
    names = [make.__name__ for make, *_ in compilation.uncompiled([*parts, None])]
    assert names == [
        "axis_taps_for",
        "combine_for",
        "proceed",
        "sum_packed_for",
        "sum_for",
        "pack_for",
        "coordinates_for",
        "process_items",
    ]


OTHERS = ("/usr/bin/uwsgi", "C:\\Blender\\blender.exe", "", None, "/usr/bin/pythonista")
PYTHONS = (
    "python3.13t",
    "C:\\venv\\Scripts\\pythonw.exe",
    "/Library/Python",
    "C:\\python_d.exe",
    sys.executable,
)


@pytest.mark.parametrize(
    ("executable", "helps"), [*product(OTHERS, [False]), *product(PYTHONS, [True])]
)
def test_compilation_starts_helper_process_of_python_executable_only(
    executable: str | None, helps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a host program it is that which Python calls its executable."""
    commands: list[list[str]] = []
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(compilation, "available_cpus", lambda: 2)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command))
    with compilation._helper_process([(workers.process_items,), (workers.proceed,)]):
        assert [command[0] for command in commands] == ([executable] if helps else [])
    monkeypatch.setattr(sys, "hexversion", 0x020700F0)
    for _, _, code in commands:  # of another version it ends at once
        with pytest.raises(SystemExit):
            exec(code, {})
