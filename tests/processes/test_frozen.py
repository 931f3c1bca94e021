"""Frozen programs: PyInstaller's hook, and the errors for modules that such a program lacks."""

import importlib.util
import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import ort_gridsample as ogs
from ort_gridsample import versions
from ort_gridsample._pyinstaller import get_hook_dirs
from ort_gridsample.custom_ops.compiled_ops import registry
from ort_gridsample.custom_ops.compiled_ops.catalog import OPS
from ort_gridsample.custom_ops.python_ops import extensions
from ort_gridsample.functions import cores
from ort_gridsample.kernels import library_file
from support.paths import HAS_PYTHON_OPS
from support.processes import TESTS

REPOSITORY = Path(ogs.__file__).parents[1]
HAS_NUMBA = importlib.util.find_spec("numba") is not None
OPS_HERE = [*(["compiled"] if HAS_NUMBA else []), *(["python"] if HAS_PYTHON_OPS else [])]
#: One analysis for a program in a folder and one in a file.
SPEC = """
analysis = Analysis([PROGRAM], pathex=[REPOSITORY], hookspath=HOOKS)
pyz = PYZ(analysis.pure)
one_file = EXE(pyz, analysis.scripts, analysis.binaries, analysis.datas, name="one_file")
starter = EXE(pyz, analysis.scripts, exclude_binaries=True, name="program")
COLLECT(starter, analysis.binaries, analysis.datas, name="folder")
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_program_frozen_by_pyinstaller_runs_every_op_and_keeps_its_kernels(tmp_path: Path) -> None:
    pytest.importorskip("PyInstaller")
    names = {
        "PROGRAM": str(TESTS / "programs" / "frozen_session.py"),
        "REPOSITORY": str(REPOSITORY),
        "HOOKS": get_hook_dirs(),
    }
    (tmp_path / "program.spec").write_text(
        "".join(f"{name} = {value!r}\n" for name, value in names.items()) + SPEC
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "program.spec"]
    build = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert build.returncode == 0, build.stderr[-3000:]

    expected = [f"{ops} op 13.0".replace("python", "Python") for ops in OPS_HERE]
    cache = tmp_path / "cache"
    environment = {**os.environ, "NUMBA_CACHE_DIR": "", "XDG_CACHE_HOME": str(cache)}
    environment.pop("PYTHONPATH", None)
    counts = []
    for program in ("folder/program", "one_file", "one_file"):
        run = subprocess.run(
            [tmp_path / "dist" / program, *OPS_HERE],
            env=environment,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=300,
        )
        lines = [line for line in run.stdout.splitlines() if not line.startswith("compiling")]
        assert (run.returncode, lines) == (0, expected), run.stdout + run.stderr
        counts.append(len([*cache.rglob("*.nbc")]))
    assert counts == [counts[0]] * 3
    assert (counts[0] > 0) == HAS_NUMBA


def test_pyinstaller_finds_the_hook_by_an_entry_point() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["entry-points"]["pyinstaller40"]["hook-dirs"].partition(":")
    (folder,) = getattr(import_module(module), function)()
    assert (Path(folder) / "hook-ort_gridsample.py").is_file()


FROZEN = (
    "this frozen program lacks the module {}: build it with PyInstaller and the hook of "
    "ort_gridsample, or include "
)


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)


@pytest.mark.usefixtures("frozen")
def test_frozen_program_without_numba_raises_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    monkeypatch.setattr(library_file, "configured_library", lambda: None)
    assert registry.static_reason.__wrapped__().startswith(FROZEN.format("numba"))
    monkeypatch.setattr(cores, "_is_numba_installed", lambda: False)
    with pytest.raises(ImportError, match="this frozen program lacks the module numba"):
        ogs.set_core("jit")


@pytest.mark.usefixtures("frozen")
def test_frozen_program_without_extensions_raises_import_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extensions, "is_installed", lambda: False)
    with pytest.raises(ImportError) as caught:
        extensions.load()
    needed = "Python ops need onnxruntime-extensions: "
    assert str(caught.value).startswith(needed + FROZEN.format("onnxruntime_extensions"))
    assert caught.value.name == "onnxruntime_extensions"


@pytest.mark.usefixtures("frozen")
def test_frozen_program_without_a_module_of_the_package_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = "ort_gridsample.custom_ops.compiled_ops.sampling"
    monkeypatch.setitem(sys.modules, module, None)
    op = next(op for op in OPS if op.implementation.startswith("sampling."))
    with pytest.raises(ModuleNotFoundError) as caught:
        op.load()
    assert str(caught.value).startswith(FROZEN.format(module))
    assert caught.value.name == module


def test_missing_module_message_of_unfrozen_program_is_the_command() -> None:
    assert versions.missing_module_message("numba", "pip install numba") == "pip install numba"
