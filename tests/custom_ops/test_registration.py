"""Registration of the ops: the trampoline library, and libraries of other packages."""

import ctypes
import importlib.util
import os
import shutil
import stat
import subprocess
from pathlib import Path
from unittest.mock import Mock

import onnx
import onnxruntime
import pytest
from onnx import helper

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops import linking, registry, trampoline
from ort_gridsample.graph.files import imported_domains
from ort_gridsample.kernels import target
from ort_gridsample.session import registration
from support.models import parsed
from support.paths import needs_python_ops
from support.processes import run_json_program, run_program, run_with_opener

UNAVAILABLE = registry.unavailable_reason()
needs_compiled_ops = pytest.mark.skipif(bool(UNAVAILABLE), reason=f"no compiled ops: {UNAVAILABLE}")
HAS_ELF = target.system == "linux" and target.processor in ("x86_64", "aarch64")
needs_elf = pytest.mark.skipif(not HAS_ELF, reason="no ELF file is written for this system")
HAS_LINKER = bool(shutil.which("cc") or importlib.util.find_spec("ziglang"))
needs_linker = pytest.mark.skipif(not HAS_LINKER, reason="there is no linker")

#: The type of RegisterCustomOps, with integers for its pointers.
FUNCTION_TYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@FUNCTION_TYPE
def callback(options: int, base: int) -> int:
    return 1000 * options + base


ADDRESS = ctypes.cast(callback, ctypes.c_void_p).value or 0


def call_trampoline(library: ctypes.CDLL) -> int:
    """Call a library's RegisterCustomOps; the result is 7005 if it leads to :func:`callback`."""
    function = library.RegisterCustomOps
    function.restype = ctypes.c_int64
    function.argtypes = [ctypes.c_int64] * 2
    return function(7, 5)


# --- The trampoline ---


@needs_elf
def test_written_library_calls_the_address_from_memory() -> None:
    library, path = trampoline._load_from_memory(
        trampoline.elf_library({trampoline.ENTRY_POINT: ADDRESS}, target.processor)
    )
    assert call_trampoline(library) == 7005
    assert path.startswith("/proc/self/fd/")


@needs_elf
def test_written_library_calls_the_address_from_a_deleted_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    library, path = trampoline._load_from_file(
        trampoline.elf_library({trampoline.ENTRY_POINT: ADDRESS}, target.processor)
    )
    assert call_trampoline(library) == 7005
    assert list(tmp_path.iterdir()) == []
    assert ctypes.CDLL(path)._handle == library._handle


@needs_elf
@pytest.mark.parametrize(
    "failure", [OSError("Operation not permitted"), AttributeError("memfd_create")]
)
def test_load_without_memory_files_uses_a_file(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> int:
        raise failure

    monkeypatch.setattr(os, "memfd_create", refuse)
    library, path = trampoline.load({trampoline.ENTRY_POINT: ADDRESS})
    assert call_trampoline(library) == 7005
    assert not path.startswith("/proc")


@needs_elf
def test_load_without_executable_files_raises_both_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: str) -> ctypes.CDLL:
        raise OSError(f"{path[:5]} is not executable")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(
        trampoline.NoTrampolineError, match=r"/proc is not executable; /.* is not executable"
    ):
        trampoline.load({trampoline.ENTRY_POINT: ADDRESS})
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("machine", trampoline._JUMPS)
@pytest.mark.skipif(not shutil.which("readelf"), reason="this reads an ELF file with readelf")
def test_written_library_is_a_valid_elf_file(machine: str, tmp_path: Path) -> None:
    path = tmp_path / "page.so"
    path.write_bytes(trampoline.elf_library({trampoline.ENTRY_POINT: 0x1122334455667788}, machine))
    shown = ""
    for option in ("-hldW", "-DsW"):
        command = ["readelf", option, path]
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert result.stderr == ""
        shown += result.stdout
    assert {"x86_64": "X86-64", "aarch64": "AArch64"}[machine] in shown
    assert "RegisterCustomOps" in shown
    assert "GNU_STACK" in shown
    assert "RWE" not in shown


@pytest.fixture
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Link the library, as on systems without ELF; return the folder in which it is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(trampoline, "_JUMPS", {})
    return tmp_path / "ort_gridsample"


@needs_linker
def test_linked_library_is_linked_once_and_calls_the_address(
    linked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, path = trampoline.load({trampoline.ENTRY_POINT: ADDRESS})
    assert call_trampoline(library) == 7005
    assert [str(file) for file in linked.iterdir()] == [path]
    monkeypatch.setattr(linking, "run", None)  # nothing is linked again
    assert trampoline.load({trampoline.ENTRY_POINT: ADDRESS})[1] == path


@needs_linker
@pytest.mark.parametrize("damage", ["wrong bit", "truncated", "empty"])
def test_damaged_linked_library_is_linked_again(linked: Path, damage: str) -> None:
    content = trampoline.linked_library(linked).read_bytes()
    wrong_bit = bytes([*content[:64], content[64] ^ 4, *content[65:]])
    damaged = {"wrong bit": wrong_bit, "truncated": content[:100], "empty": b""}[damage]
    (file,) = linked.iterdir()
    file.write_bytes(damaged)
    library, path = trampoline.load({trampoline.ENTRY_POINT: ADDRESS})
    assert call_trampoline(library) == 7005
    assert [str(file) for file in linked.iterdir()] == [path]
    assert Path(path).read_bytes() != damaged


def test_load_without_linker_raises_what_to_install(
    linked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ziglang" else find_spec(name)
    )
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        trampoline.NoTrampolineError,
        match=r"needs a linker for it: install cc, or the package ziglang.*: pip install ziglang",
    ):
        trampoline.load({trampoline.ENTRY_POINT: ADDRESS})
    assert list(linked.iterdir()) == []


@needs_compiled_ops
@needs_linker
def test_sessions_run_through_a_linked_library(tmp_path: Path) -> None:
    assert run_program("linked_trampoline.py", str(tmp_path)) == ["1 2 64 64"] * 2
    (library,) = tmp_path.glob("trampoline-*")
    assert library.stat().st_mode & stat.S_IRUSR


@needs_compiled_ops
@needs_elf
def test_trampoline_works_after_its_descriptor_is_closed() -> None:
    """Daemons close all descriptors of their process."""
    script = """
import os
session = make(open_compiled)
os.closerange(3, 256)
print(attempt(session, X, grid), attempt(make(open_compiled), X, grid))
"""
    assert run_with_opener(script, "open_compiled") == ["(1, 2, 64, 64) (1, 2, 64, 64)"]


# --- Domains that a model imports ---


def model_with_opsets(**opsets: int) -> onnx.ModelProto:
    model = parsed("g (float[N] X) => (float[N] Y) { Y = Relu (X) }")
    model.opset_import.extend(
        helper.make_opsetid(name, version) for name, version in opsets.items()
    )
    return model


def test_imported_domains_are_those_of_the_model_and_its_functions(tmp_path: Path) -> None:
    model = model_with_opsets(one=1)
    function = helper.make_function("two", "F", ["X"], ["Y"], [], [helper.make_opsetid("three", 4)])
    model.functions.append(function)
    model.metadata_props.add(key="ort_gridsample", value="not a domain")
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    path = tmp_path / "model.onnx"
    for source in (model.SerializeToString(), path, str(path)):
        assert imported_domains(source) == {"", "one", "three"}


@pytest.mark.parametrize("data", [b"\x08", b"ORTM not protobuf", b"\x0f\x01", b"\xff" * 12])
def test_imported_domains_of_invalid_model_are_unknown(data: bytes) -> None:
    assert imported_domains(data) is None


def test_imported_domains_of_a_truncated_file_are_unknown(tmp_path: Path) -> None:
    fixed_length_field = b"\xc1\x0c" + bytes(8)
    data = model_with_opsets(one=1).SerializeToString() + fixed_length_field
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    assert imported_domains(path) == {"", "one"}
    path.write_bytes(data[:-1])
    assert imported_domains(path) is None


def test_imported_domains_of_damaged_model_raise_nothing() -> None:
    data = model_with_opsets(one=1).SerializeToString()
    for length in range(len(data)):
        imported_domains(data[:length])
        imported_domains(data[:length] + bytes([data[length] ^ 0xFF]) + data[length + 1 :])


# --- Other libraries on the same options ---


@needs_python_ops
@pytest.mark.parametrize("target", ["compiled", "ort_gridsample"])
@pytest.mark.parametrize("first_import", ["ort_gridsample", "onnxruntime_extensions"])
def test_ops_of_onnxruntime_extensions_and_ours_run_in_one_session(
    target: str, first_import: str
) -> None:
    if target == "compiled" and UNAVAILABLE:
        pytest.skip(UNAVAILABLE)
    results = run_json_program(
        "ops_of_extensions.py", first_import, target, missing_modules=["torch"]
    )
    assert results == [[["AB"], True]] * 8


@needs_python_ops
def test_ops_of_onnxruntime_extensions_run_without_registration_in_session() -> None:
    results = run_json_program(
        "ops_of_extensions.py", "ort_gridsample", "session", missing_modules=["torch"]
    )
    assert results == [[["AB"], True]]


@needs_python_ops
@pytest.mark.parametrize("has_options", [False, True])
def test_session_asks_for_no_library_on_its_own_options(
    has_options: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only options that a user has may have libraries. onnxruntime can tell by a session only."""
    has_operator = Mock(wraps=registration.has_operator)
    monkeypatch.setattr(registration, "has_operator", has_operator)
    options = onnxruntime.SessionOptions() if has_options else None
    graph = "g (string[1,1,4,4] X, float[1,2,2,2] G) => (string[1,1,2,2] Y)"
    model = parsed(f'{graph} {{ Y = GridSample <mode = "nearest"> (X, G) }}')
    session = ogs.InferenceSession(model, options, nodes="all")
    assert [placement.runs_on for placement in session.placements] == ["Python op"]
    assert has_operator.call_count == 0
    ogs.register(onnxruntime.SessionOptions())
    assert has_operator.call_count == 1


@needs_python_ops
def test_python_ops_registered_after_onnxruntime_extensions_without_numba_raise() -> None:
    """The options lack ops that are defined after the registration of onnxruntime-extensions."""
    (error,) = run_program(
        "register_extensions_first.py", "before", missing_modules=["torch", "numba"]
    )
    assert error.startswith(
        "ImportError: onnxruntime-extensions was registered on these options before ort_gridsample"
    )


@needs_python_ops
def test_python_ops_registered_before_onnxruntime_extensions_without_numba_run() -> None:
    """onnxruntime-extensions is imported after the registration."""
    (shape,) = run_program(
        "register_extensions_first.py", "after", missing_modules=["torch", "numba"]
    )
    assert shape == "(1, 2, 64, 64)"
