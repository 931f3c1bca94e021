"""Registering the ops: the library that leads to this process, options, and libraries of others on the same options."""

import ctypes
import importlib.util
import os
import shutil
import stat
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops import linking, registry, trampoline
from ort_gridsample.dialects.table import COMPILED_DOMAIN, DOMAIN
from ort_gridsample.graph.files import imported_domains
from ort_gridsample.kernels import target
from support.cases import Attributes
from support.models import grid_sample_model, parsed
from support.paths import quiet_options
from support.processes import run

UNAVAILABLE = registry.unavailable_reason()
compiled = pytest.mark.skipif(bool(UNAVAILABLE), reason=f"no compiled ops: {UNAVAILABLE}")
WRITTEN = target.system == "linux" and target.machine in ("x86_64", "aarch64")
elf = pytest.mark.skipif(not WRITTEN, reason="no ELF file is written for this system")

#: RegisterCustomOps, as a function of Python's.
KIND = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@KIND
def callback(options: int, base: int) -> int:
    return 1000 * options + base


ADDRESS = ctypes.cast(callback, ctypes.c_void_p).value or 0


def called(library: ctypes.CDLL) -> int:
    function = library.RegisterCustomOps
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64] * 2
    return function(7, 5)


# --- The trampoline ---


@elf
def test_written_library_calls_the_address_from_memory() -> None:
    library, path = trampoline._load_from_memory(
        trampoline.elf_library({trampoline.ENTRY_POINT: ADDRESS}, target.machine)
    )
    assert called(library) == 7005
    assert path.startswith("/proc/self/fd/")


@elf
def test_written_library_calls_the_address_from_a_file_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    library, path = trampoline._load_from_file(
        trampoline.elf_library({trampoline.ENTRY_POINT: ADDRESS}, target.machine)
    )
    assert called(library) == 7005
    assert list(tmp_path.iterdir()) == []
    assert ctypes.CDLL(path)._handle == library._handle  # the loader knows it by its path


@elf
@pytest.mark.parametrize(
    "failure", [OSError("Operation not permitted"), AttributeError("memfd_create")]
)
def test_where_memory_cannot_be_loaded_a_file_is(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> int:
        raise failure

    monkeypatch.setattr(os, "memfd_create", refuse)
    library, path = trampoline.load({trampoline.ENTRY_POINT: ADDRESS})
    assert called(library) == 7005
    assert not path.startswith("/proc")


@elf
def test_where_nothing_can_be_loaded_the_error_has_both_reasons(
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
        done = subprocess.run(["readelf", option, path], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        shown += done.stdout
    assert {"x86_64": "X86-64", "aarch64": "AArch64"}[machine] in shown
    assert "RegisterCustomOps" in shown
    assert "GNU_STACK" in shown
    assert "RWE" not in shown


@pytest.fixture
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Link as on systems that no ELF file is written for; the folder in which the library is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(trampoline, "_JUMPS", {})
    return tmp_path / "ort_gridsample"


@pytest.mark.skipif(
    not shutil.which("cc") and not importlib.util.find_spec("ziglang"), reason="there is no linker"
)
def test_linked_library_is_made_once_and_calls_the_address(
    linked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, path = trampoline.load({trampoline.ENTRY_POINT: ADDRESS})
    assert called(library) == 7005
    assert [str(each) for each in linked.iterdir()] == [path]
    monkeypatch.setattr(linking, "run", None)  # nothing is linked again
    assert trampoline.load({trampoline.ENTRY_POINT: ADDRESS})[1] == path


def test_without_a_linker_the_error_says_what_to_install(
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


@compiled
@pytest.mark.skipif(
    not shutil.which("cc") and not importlib.util.find_spec("ziglang"), reason="there is no linker"
)
def test_sessions_run_through_a_linked_library(tmp_path: Path) -> None:
    script = """
print(attempt(make(open_compiled), X, grid), attempt(make(open_compiled_file), X, grid))
"""
    first = f"""
from pathlib import Path
from ort_gridsample.custom_ops.compiled_ops import trampoline
trampoline._JUMPS = {{}}
trampoline.cache_folder = lambda: Path({str(tmp_path)!r})
"""
    assert run(script, "open_compiled", first=first) == ["(1, 2, 64, 64) (1, 2, 64, 64)"]
    (made,) = tmp_path.glob("trampoline-*")
    assert made.stat().st_mode & stat.S_IRUSR


@compiled
@elf
def test_a_descriptor_that_somebody_closed_does_no_harm() -> None:
    """Daemons close all descriptors that they find; the loader still knows the library."""
    script = """
import os
session = make(open_compiled)
os.closerange(3, 256)
print(attempt(session, X, grid), attempt(make(open_compiled), X, grid))
"""
    assert run(script, "open_compiled") == ["(1, 2, 64, 64) (1, 2, 64, 64)"]


# --- Domains that a model imports ---


def imports(**opsets: int) -> onnx.ModelProto:
    model = parsed("g (float[N] X) => (float[N] Y) { Y = Relu (X) }")
    model.opset_import.extend(
        helper.make_opsetid(name, version) for name, version in opsets.items()
    )
    return model


def test_imported_domains_are_those_of_the_model_and_its_functions(tmp_path: Path) -> None:
    model = imports(one=1)
    function = helper.make_function("two", "F", ["X"], ["Y"], [], [helper.make_opsetid("three", 4)])
    model.functions.append(function)
    model.metadata_props.add(key="ort_gridsample", value="not a domain")
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    for each in (model.SerializeToString(), tmp_path / "model.onnx", str(tmp_path / "model.onnx")):
        assert imported_domains(each) == {"", "one", "three"}


@pytest.mark.parametrize("data", [b"\x08", b"ORTM not protobuf", b"\x0f\x01", b"\xff" * 12])
def test_imported_domains_of_what_is_no_model_are_unknown(data: bytes) -> None:
    assert imported_domains(data) is None


def test_imported_domains_never_fail_on_damaged_models() -> None:
    data = imports(one=1).SerializeToString()
    for length in range(len(data)):
        imported_domains(data[:length])
        imported_domains(data[:length] + bytes([data[length] ^ 0xFF]) + data[length + 1 :])


# --- Others on the same options ---

OTHERS = """
import onnxruntime_extensions as ext
from ort_gridsample.dialects.table import COMPILED_DOMAIN, DOMAIN
two = parsed('''g (string[N] a, float[1,2,64,64] X, float[1,64,64,2] grid) => (string[N] b, float[1,2,64,64] Y) {
    b = ai.onnx.contrib.StringUpper (a)
    Y = GridSample (X, grid) }''')
def answers(session):
    b, Y = session.run(None, {"a": np.array(["ab"], object), "X": X, "grid": grid})
    return b.tolist(), bool(np.array_equal(Y, ogs.grid_sample(X, grid)))
def options(first):
    given = onnxruntime.SessionOptions()
    registers = [lambda: given.register_custom_ops_library(ext.get_library_path()), lambda: REGISTER(given)]
    for register in registers if first else registers[::-1]:
        register()
    return given
"""
extensions = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_extensions") is None,
    reason="onnxruntime-extensions is not installed",
)
without_torch = "import sys\nsys.modules['torch'] = None\n"


@extensions
@pytest.mark.parametrize("target", ["compiled", "ort_gridsample"])
@pytest.mark.parametrize("import_first", ["ort_gridsample", "onnxruntime_extensions"])
def test_ops_of_onnxruntime_extensions_and_ours_run_in_one_session(
    target: str, import_first: str
) -> None:
    if target == "compiled" and UNAVAILABLE:
        pytest.skip(UNAVAILABLE)
    script = f"""{OTHERS.replace("REGISTER", "ogs.register")}
patched = ogs.patch_model(two, target={target!r}).SerializeToString()
for first in True, False:
    given = options(first)
    for _ in range(2):
        print(*answers(onnxruntime.InferenceSession(patched, given)))
    print(*answers(ogs.InferenceSession(two, options(first), nodes="all")))
    print(*answers(ogs.InferenceSession(patched, options(first))))
"""
    first = f"{without_torch}import {import_first}\n"
    assert run(script, "None", first=first) == ["['AB'] True"] * 8


@extensions
def test_ops_of_onnxruntime_extensions_run_in_a_session_that_nobody_registered_them_with() -> None:
    script = f"""{OTHERS}
print(*answers(ogs.InferenceSession(two, nodes="all")))
"""
    assert run(script, "None", first=without_torch) == ["['AB'] True"]


@extensions
def test_python_ops_defined_too_late_are_an_error_that_says_so() -> None:
    """The user registered onnxruntime-extensions before this package could define its ops, and there is no Numba."""
    script = f"""{OTHERS.replace("REGISTER", "ogs.register")}
patched = ogs.patch_model(two).SerializeToString()
given = onnxruntime.SessionOptions()
given.register_custom_ops_library(ext.get_library_path())
print(told(onnxruntime.InferenceSession, patched, ogs.register(given)))
"""
    first = f"{without_torch}sys.modules['numba'] = None\nimport ort_gridsample\n"
    (said,) = run(script, "None", first=first)
    assert said.startswith(
        "ImportError: onnxruntime-extensions was registered on these options before ort_gridsample"
    )


@extensions
def test_python_ops_run_where_their_library_is_registered_after_ours_without_numba() -> None:
    """Nobody imported onnxruntime-extensions before ``register``."""
    script = """
from importlib import import_module
patched = ogs.patch_model(grid_sample_model("float32", "float32", 2, [Attributes()])).SerializeToString()
given = ogs.register(onnxruntime.SessionOptions())
given.register_custom_ops_library(import_module("onnxruntime_extensions").get_library_path())
print(attempt(onnxruntime.InferenceSession(patched, given), X, grid))
"""
    first = f"{without_torch}sys.modules['numba'] = None\nimport ort_gridsample\n"
    assert run(script, "None", first=first) == ["(1, 2, 64, 64)"]


# --- Models of earlier releases ---


def old_compiled(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model patched to compiled ops, as a release before 0.2 wrote it."""
    for node in model.graph.node:
        if node.domain == COMPILED_DOMAIN:
            node.domain = "ai.onnx.contrib"
            node.op_type = "ort_gridsample_" + node.op_type.removeprefix("Compiled")
    for entry in model.opset_import:
        if entry.domain == COMPILED_DOMAIN:
            entry.domain = "ai.onnx.contrib"
    return model


X = np.random.default_rng(0).random((1, 2, 5, 6), np.float32)
GRID = np.random.default_rng(1).uniform(-1.2, 1.2, (1, 3, 4, 2)).astype(np.float32)


@pytest.mark.parametrize("attributes", [Attributes(), Attributes("cubic", "reflection", True)])
def test_compiled_ops_of_earlier_releases_are_read(attributes: Attributes, ops: str) -> None:
    model = grid_sample_model("float32", "float32", 2, [attributes])
    old = old_compiled(ogs.patch_model(model, target="compiled"))
    (record,) = ogs.inspect_model(old)
    assert (record.operator, record.mode, record.error) == ("GridSample", attributes.mode, None)
    expected = ogs.grid_sample(
        X, GRID, attributes.mode, attributes.padding_mode, attributes.align_corners
    )
    session = ogs.InferenceSession(old, quiet_options())
    assert session.replaced[0].runs_on == ("compiled op" if ops == "compiled" else "Python op")
    found = [session.run(None, {"X": X, "grid": GRID})[0]]
    for to in ("ort_gridsample", *(["compiled"] if ops == "compiled" else [])):
        patched = ogs.patch_model(old, target=to)  # type: ignore[arg-type]
        domain = COMPILED_DOMAIN if to == "compiled" else DOMAIN
        assert [each.domain for each in patched.opset_import if each.domain] == [domain]
        plain = onnxruntime.InferenceSession(
            patched.SerializeToString(), ogs.register(quiet_options())
        )
        found.append(plain.run(None, {"X": X, "grid": GRID})[0])
    for Y in found:
        np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-6)


@compiled
def test_fused_models_that_earlier_releases_saved_are_read(tmp_path: Path) -> None:
    model = parsed("""g (float[1,2,5,6] X, float[1,2,3] theta) => (float[1,2,3,4] Y)
        <int64[4] size = {1, 2, 3, 4}> { grid = AffineGrid (theta, size) Y = GridSample (X, grid) }""")
    options = quiet_options()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    feeds = {"X": X, "theta": np.array([[[0.8, -0.6, 0.1], [0.6, 0.8, 0]]], np.float32)}
    expected = ogs.InferenceSession(model, options).run(None, feeds)[0]
    saved = onnx.load(tmp_path / "saved.onnx")
    assert "FusedGridSample" in {node.op_type for node in saved.graph.node}
    old = old_compiled(saved)
    assert [each.operator for each in ogs.inspect_model(old)] == ["AffineGrid", "GridSample"]
    np.testing.assert_array_equal(ogs.InferenceSession(old).run(None, feeds)[0], expected)
    lowered = ogs.patch_model(old, target="primitives")
    assert {each.domain for each in lowered.opset_import} & {
        "ai.onnx.contrib",
        COMPILED_DOMAIN,
    } == set()


@compiled
def test_attention_that_earlier_releases_saved_is_read() -> None:
    from support.attention_models import LEVELS, op_model, operands

    levels = LEVELS["planes"]
    value, at, by = operands(levels)
    model = op_model("float32", "float32", align=False)
    model.graph.node[0].attribute[-1].s = " ".join(map(str, levels[:, 0])).encode()
    feeds = {"value": value, "levels": levels, "at": at, "by": by}
    plain = onnxruntime.InferenceSession(model.SerializeToString(), ogs.register(quiet_options()))
    expected = plain.run(None, feeds)[0]
    found = ogs.InferenceSession(old_compiled(model)).run(None, feeds)[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
