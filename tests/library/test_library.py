"""Test libraries of compiled ops: built, used with and without this package, and refused.

The library has the kernels of the models here. ``ORT_GRIDSAMPLE_TESTED_LIBRARY`` names one of all
ops, which other tests use as well. ``ORT_GRIDSAMPLE_TESTED_RELEASE`` names the folder of a release,
whose libraries for other machines are then tested.
"""

import ast
import email
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops import linking
from ort_gridsample.dialects.table import FUSED
from ort_gridsample.kernels import library_file, library_kernels, library_trailer, target
from ort_gridsample.library import builder, wheel
from ort_gridsample.system.cpus import available_cpus
from support.attention_models import op_model, operands
from support.built_library import HAS_ZIG, built_library, needs_linker
from support.cases import Attributes
from support.choices import ANY_MODE, NO_MODE, NO_PADDING
from support.compare import refusal
from support.fused_models import saved_by_session, transformer, transformer_feeds
from support.library_calls import inputs_of_calls, is_in_library, outputs_of
from support.models import affine_grid_model, grid_sample_model, loose
from support.paths import HAS_PROVIDER, HAS_PYTHON_OPS, needs_python_ops
from support.pixel_graphs import GraphBuilder
from support.processes import run_json_program, run_program, run_script

pytestmark = [needs_linker, pytest.mark.timeout(1800)]
needs_zig = pytest.mark.skipif(not HAS_ZIG, reason="ziglang links for other machines")
#: The folder with onnxruntime_cxx_api.h. onnxruntime's archives have it, its wheels do not.
INCLUDE_VARIABLE = "ORT_GRIDSAMPLE_ONNXRUNTIME_INCLUDE"
#: The jar of onnxruntime's package for Java.
JAR_VARIABLE = "ORT_GRIDSAMPLE_ONNXRUNTIME_JAR"
#: The folder of a release.
RELEASE_VARIABLE = "ORT_GRIDSAMPLE_TESTED_RELEASE"
needs_cc = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("cc"),
    reason="the program is built by cc, for Linux",
)
needs_headers = pytest.mark.skipif(
    INCLUDE_VARIABLE not in os.environ or sys.platform != "linux" or not shutil.which("c++"),
    reason=f"{INCLUDE_VARIABLE} names no folder of headers, or there is no c++ for Linux",
)
needs_jar = pytest.mark.skipif(
    JAR_VARIABLE not in os.environ or not shutil.which("javac"),
    reason=f"{JAR_VARIABLE} names no jar, or there is no javac",
)
ROOT = Path(__file__).parents[2]
#: The functions that a library exports.
EXPORTS = ("RegisterCustomOps", "CreateEpFactories", "ReleaseEpFactory", library_kernels.EXPORT)

Feeds = dict[str, np.ndarray]


class Sample(NamedTuple):
    """A patched model and its feeds."""

    model: onnx.ModelProto
    feeds: Feeds


_rng = np.random.default_rng(30)
THETA = _rng.normal(size=(2, 2, 3)).astype(np.float32)


def sample_models() -> dict[str, Sample]:
    """Return models of every op. Grids of two axes are so large that several threads sample."""
    samples = {
        f"{mode} {rank}": grid_sample_of(mode, rank)
        for mode, rank in (("linear", 2), ("nearest", 2), ("linear", 1), ("linear", 3))
    }
    affine = ogs.patch_model(loose(affine_grid_model("float32", 2, True)), target="compiled")
    size = np.array([2, 3, 4, 5])
    samples["AffineGrid"] = Sample(affine, {"theta": THETA, "size": size})
    fused_affine = fused_by_session(transformer(attributes=Attributes()))
    samples["fused AffineGrid"] = Sample(fused_affine, transformer_feeds())
    samples["fused program"] = fused_program()
    assert [name for name, sample in samples.items() if has_fused_op(sample.model)] == [
        "fused AffineGrid",
        "fused program",
    ]
    levels = np.array([[2, 3, 4], [1, 2, 2]])
    value, locations, weights = operands(levels)
    feeds = {"value": value, "levels": levels, "at": locations, "by": weights}
    samples["DeformableAttention"] = Sample(op_model("float32", "float32", False), feeds)
    model, feeds = unmodified_sample("uint8")
    samples["uint8"] = Sample(ogs.patch_model(model, target="compiled"), feeds)
    return samples


def grid_sample_of(mode: str, rank: int) -> Sample:
    model = loose(grid_sample_model("float32", "float32", rank, [Attributes(mode, "border")]))
    X = _rng.normal(size=(1, 2, 4, 5, 6)[: rank + 2]).astype(np.float32)
    length = 300 if rank == 2 else 7
    grid = _rng.uniform(-1.2, 1.2, (1, *[length] * rank, rank)).astype(np.float32)
    return Sample(ogs.patch_model(model, target="compiled"), {"X": X, "grid": grid})


def unmodified_sample(x_type: str) -> Sample:
    """Return an unpatched model, and feeds of 4x5 pixels."""
    model = loose(grid_sample_model(x_type, "float32", 2, [Attributes("linear", "border")]))
    X = _rng.uniform(0, 256, (1, 2, 4, 5)).astype(x_type)
    grid = _rng.uniform(-1.2, 1.2, (1, 6, 7, 2)).astype("f")
    return Sample(model, {"X": X, "grid": grid})


def fused_program() -> Sample:
    """Return a model of a GridSample that is fused with the arithmetic of its grid."""
    graph = GraphBuilder()
    grid = graph.apply(graph.add_input("coords", 1, 3, 4, 2), ("Mul", 0.1), ("Sub", 0.5))
    model = fused_by_session(graph.model(grid, (1, 1, 5, 6)))
    return Sample(model, {name: np.asarray(value) for name, value in graph.feeds.items()})


def fused_by_session(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the fused ops that a session writes."""
    with tempfile.TemporaryDirectory() as folder:
        return saved_by_session(model, Path(folder) / "saved.onnx")


def has_fused_op(model: onnx.ModelProto) -> bool:
    return any(node.op_type == FUSED for node in model.graph.node)


@pytest.fixture
def built() -> Path:
    return built_library()


def test_library_without_this_package_has_its_outputs(built: Path, tmp_path: Path) -> None:
    """Also in sixteen threads on one session."""
    expected = {}
    for number, (model, feeds) in enumerate(sample_models().values()):
        onnx.save(model, tmp_path / f"{number}.onnx")
        np.savez(tmp_path / f"{number}.npz", **feeds)
        session = onnxruntime.InferenceSession(model.SerializeToString(), ogs.register())
        expected[number] = session.run(None, feeds)[0]
    lines = run_program("library_alone.py", str(built), str(tmp_path))
    assert lines == ["True"] * len(expected)
    for number, Y in expected.items():
        np.testing.assert_allclose(np.load(tmp_path / f"{number}.npy"), Y, rtol=0, atol=2e-6)


def error_with_library(model: onnx.ModelProto, path: Path, feeds: Feeds | None = None) -> str:
    """Return the message that a plain session with the library raises, when made or when run."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(path))
    with pytest.raises(Exception, match="node") as raised:
        onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds or {})
    return str(raised.value)


@pytest.mark.parametrize(
    ("X_shape", "grid_shape"),
    [
        ((1, 2), (1, 3)),
        ((1, 2, 0, 6), (1, 3, 4, 2)),
        ((1, 2, 5, 6), (1, 3, 4, 3)),
        ((1, 2, 5, 6), (2, 3, 4, 2)),
    ],
)
def test_library_of_wrong_shapes_has_the_error_of_the_function(
    X_shape: tuple[int, ...], grid_shape: tuple[int, ...], built: Path
) -> None:
    feeds = {"X": np.zeros(X_shape, np.float32), "grid": np.zeros(grid_shape, np.float32)}
    where = "GridSample node 'sample0'"
    expected = refusal(ogs.grid_sample, *feeds.values(), padding_mode="border", where=where)
    model = sample_models()["linear 2"].model
    assert str(expected) in error_with_library(model, built, feeds)


def test_library_of_a_wrong_size_has_the_error_of_the_function(built: Path) -> None:
    feeds = {"theta": THETA, "size": np.array([1, 3, 4, 5])}
    expected = refusal(ogs.affine_grid, *feeds.values(), where="AffineGrid node with output 'grid'")
    model = sample_models()["AffineGrid"].model
    assert str(expected) in error_with_library(model, built, feeds)


def test_library_of_wrong_coordinates_names_their_shape(built: Path) -> None:
    model, feeds = sample_models()["fused program"]
    feeds = feeds | {"coords": np.zeros((1, 3, 4, 3), np.float32)}
    error = "grid is made of 'coords' of shape (1, 3, 4, 3), expected shape (N, D1_out, D2_out, 2)"
    assert error in error_with_library(loose(model), built, feeds)


def with_attribute(model: onnx.ModelProto, name: str, value: object) -> onnx.ModelProto:
    """Return a copy of ``model`` with another value of an attribute of its compiled op."""
    copy = deepcopy(model)
    (node,) = (node for node in copy.graph.node if node.domain)
    matches = [attribute for attribute in node.attribute if attribute.name == name]
    attribute = matches[0] if matches else node.attribute.add()
    attribute.CopyFrom(onnx.helper.make_attribute(name, value))
    return copy


@pytest.mark.parametrize("mode", [NO_MODE, "it's", "\"'\\", "tab\t\x01 line\n", "größer"])
def test_library_of_an_unknown_mode_shows_its_repr(mode: str, built: Path) -> None:
    model = with_attribute(sample_models()["linear 2"].model, "mode", mode)
    error = f"GridSample node 'sample0': mode is {mode!r}, expected {ANY_MODE}"
    assert error in error_with_library(model, built)


@pytest.mark.parametrize(
    ("attribute", "value", "error"),
    [
        ("padding_mode", NO_PADDING, f"padding_mode is {NO_PADDING!r}, expected 'zeros'"),
        ("interface", 2, "interface is 2, expected 1: another release"),
        (
            "mode",
            "cubic",
            "library is built without mode 'cubic' for X of float32 and grid of float32, "
            "expected a library for this model",
        ),
    ],
    ids=["unknown padding", "newer interface", "mode without a kernel"],
)
def test_library_refuses_a_node_that_it_cannot_run(
    attribute: str, value: object, error: str, built: Path
) -> None:
    model = with_attribute(sample_models()["linear 2"].model, attribute, value)
    assert error in error_with_library(model, built)


def test_library_error_names_a_node_of_a_long_label(built: Path) -> None:
    label = "a" * 1500  # onnxruntime 1.20 cuts messages after 2048 bytes
    model = with_attribute(sample_models()["linear 2"].model, "mode", "x")
    model = with_attribute(model, "node", label)
    assert f"GridSample node {label!r}: mode" in error_with_library(model, built)


def library_environment(path: Path) -> dict[str, str]:
    return {library_file.VARIABLE: str(path)}


def test_functions_without_numba_have_the_outputs_of_the_compiled_core(
    built: Path, tmp_path: Path
) -> None:
    """Bit for bit, if the library has the kernel; other calls have the outputs of NumPy."""
    inputs = inputs_of_calls()
    np.savez(tmp_path / "inputs.npz", **inputs)
    paths = [str(tmp_path / name) for name in ("inputs.npz", "outputs.npz")]
    cores, is_numba_imported = run_json_program(
        "library_functions.py", *paths, env=library_environment(built)
    )
    assert cores == ["jit", "jit", "numpy"]
    assert not is_numba_imported
    expected = {}
    for core in ("jit", "numpy"):
        ogs.set_core(core)  # type: ignore[arg-type]
        expected[core] = outputs_of(inputs)
    ogs.set_core(None)
    with np.load(paths[1]) as outputs:
        for name, array in expected["jit"].items():
            right = array if is_in_library(name) else expected["numpy"][name]
            np.testing.assert_array_equal(outputs[f"{name} default"], right)
            np.testing.assert_array_equal(outputs[f"{name} jit"], right)
            np.testing.assert_array_equal(outputs[f"{name} numpy"], expected["numpy"][name])
    assert any(
        (expected["jit"][name] != expected["numpy"][name]).any() for name in expected["jit"]
    ), "the cores could not be told apart"


@pytest.mark.slow
def test_functions_without_numba_match_the_oracle(built: Path) -> None:
    program = """
import sys
import tempfile
sys.modules["numba"] = None
import pytest
modules = ["tests/functions/test_function.py", "tests/contract/test_operators.py"]
chosen = "(oracle and function and not any_place) or halves"
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *modules, "-k", chosen]))
"""
    environment = {**os.environ, **library_environment(built), "ORT_GRIDSAMPLE_CORE": "jit"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_functions_do_not_use_a_library_of_another_release(
    built: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library_kernels, "layout_number", lambda: 0)
    monkeypatch.setattr(library_kernels.library_file, "configured_library", lambda: built)
    assert library_kernels.library_kernels.__wrapped__() is None
    assert "another release built it" in caplog.text


def test_functions_do_not_use_a_library_without_their_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library_kernels.library_file, "configured_library", lambda: tmp_path / "x")
    assert library_kernels.library_kernels.__wrapped__() is None
    assert "the functions do not use the library" in caplog.text


@pytest.mark.parametrize("extensions", ["with extensions", "without extensions"])
def test_sessions_use_the_library_and_compile_nothing(extensions: str, built: Path) -> None:
    results = run_json_program("library_sessions.py", extensions, env=library_environment(built))
    shape = [1, 2, 3, 3]
    strings = results.pop("strings")
    assert results == {
        "shape": shape,
        "runs_on": "compiled op",
        "library": f"{built}, {library_file.validate(built)}",
        "plain shapes": [shape] * 3,
        "inferred shape": ["N", "C", "D0_out", "D1_out"],
        "is_numba_imported": False,
    }
    if extensions == "with extensions" and HAS_PYTHON_OPS:
        assert strings == shape
    else:
        error = "ImportError: GridSample node 'sample0': X is of type str, and string tensors run"
        assert strings.startswith(f"{error} on Python ops only")


@pytest.mark.parametrize(
    ("type", "mode"), [("float32", "cubic"), ("float64", "cubic"), ("bfloat16", "cubic")]
)
def test_session_of_a_model_that_the_library_lacks_a_kernel_for_raises_grid_sample_error(
    type: str, mode: str, built: Path
) -> None:
    errors = run_json_program(
        "library_without_kernel.py", type, mode, env=library_environment(built)
    )
    where = "GridSample node 'sample0'"
    found = f"built without mode {mode!r} for X of {type} and grid of float32"
    expected = "a library for this model, or for all models"
    text = f"{where}: library is {found}, expected {expected}"
    name, message, *_ = errors.pop("plain session")
    assert name != "GridSampleError"
    assert text in message
    assert {"session", "file", "path"} <= errors.keys()
    for error in errors.values():
        assert error == ["GridSampleError", text, where, "library", found, expected]


def run_with_relative_library(expression: str, path: Path) -> list[str]:
    """Print ``expression`` in a process that is in the library's folder and names it."""
    return run_script(f"""
import os
os.chdir({str(path.parent)!r})
os.environ[{library_file.VARIABLE!r}] = {path.name!r}
import ort_gridsample as ogs
print({expression})
""")


def test_library_of_a_relative_path_is_registered(built: Path) -> None:
    assert run_with_relative_library("bool(ogs.register())", built) == ["True"]


@needs_python_ops
def test_library_and_onnxruntime_extensions_run_in_one_session(built: Path) -> None:
    """In either order, registered by hand and by this package."""
    lines = run_program("library_with_extensions.py", env=library_environment(built))
    assert lines == ["True"] * 4


def flip_a_bit(content: bytes) -> bytes:
    return content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]


#: Changes of the library's bytes -> the beginning of the reason in the error.
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "half of the file": (
        lambda content: content[: len(content) // 2],
        "file is not an ort_gridsample library, or truncated",
    ),
    "a flipped bit": (flip_a_bit, "content is damaged"),
    "another file": (
        lambda content: b"\x7fELF",
        "file is not an ort_gridsample library, or truncated",
    ),
    "another machine": (
        lambda content: content.replace(b" for x86_64-", b" for s390x-"),
        "machine is s390x-linux",
    ),
    "another format": (
        lambda content: content.replace(b"ops 1 of", b"ops 2 of"),
        "format is 2, of release",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_invalid_library_is_refused_and_the_functions_work(
    damage: str, built: Path, tmp_path: Path
) -> None:
    change, reason = DAMAGES[damage]
    path = tmp_path / "it.so"
    path.write_bytes(change(built.read_bytes()))
    session, registered, shape = run_json_program(
        "library_refused.py", env=library_environment(path)
    )
    error = f"GridSampleError: library {str(path)!r}: {reason}"
    assert session.startswith(error)
    assert registered.startswith(error)
    assert shape == [1, 2, 3, 3]


def test_missing_library_is_refused(tmp_path: Path) -> None:
    error = refusal(library_file.validate, tmp_path / "none.so")
    assert error.argument == "file"
    assert "No such file" in str(error)


@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("readelf"), reason="reads an ELF file by readelf"
)
def test_library_links_only_c_and_exports_its_entry_points(built: Path) -> None:
    command = ["readelf", "-dlW", "--dyn-syms", str(built)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = {name.partition(".")[0] for name in re.findall(r"NEEDED.*\[(.*)\]", text)}
    assert needed <= {"libc", "libm"}
    exported = re.findall(r"GLOBAL +DEFAULT +\d+ (\w+)", text)
    entry_points = {"CreateEpFactories", "RegisterCustomOps", "ReleaseEpFactory"}
    assert set(exported) == entry_points | {library_kernels.EXPORT}
    assert "TEXTREL" not in text
    assert re.search(r"GNU_STACK.* RW ", text)


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., object]]:
    """``build_library`` to a path in an empty folder, which must stay empty."""
    yield partial(ogs.build_library, tmp_path / "it.so")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "argument", "found", "expected"),
    [
        ({"target": "sparc-solaris"}, "target", "'sparc-solaris'", "'x86_64-linux'"),
        ({"cpu": "generic", "target": "x86_64-linux"}, "cpu", "'generic'", "'x86-64-v2'"),
        ({"cpu": "native", "target": "aarch64-macos"}, "cpu", "'native'", "'generic'"),
    ],
    ids=["target", "cpu", "native cpu of another machine"],
)
def test_build_library_of_an_unknown_name_is_refused(
    arguments: dict[str, str],
    argument: str,
    found: str,
    expected: str,
    build: Callable[..., object],
) -> None:
    error = refusal(build, **arguments)
    assert (error.where, error.argument, error.found) == ("library", argument, found)
    assert error.expected.startswith(expected)


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "model"])
def test_library_for_a_single_model_has_what_the_model_needs(kind: str, tmp_path: Path) -> None:
    model = grid_sample_model("uint8", "float32", 2, [Attributes("nearest")])
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    kinds = {
        "path": path,
        "text": str(path),
        "bytes": model.SerializeToString(),
        "model": model,
    }
    needed = builder._needed(kinds[kind])
    assert needed == {"X": ["uint8"], "grid": ["float32"], "mode": ["nearest"]}


def test_native_cpu_below_the_lowest_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_features", {"sse3"})
    machine = linking.MACHINES["x86_64-linux"]
    monkeypatch.setattr(target, "system", machine.system)
    monkeypatch.setattr(target, "processor", machine.processor)
    error = refusal(builder._cpus, machine, (builder.NATIVE,))
    assert error.argument == "cpu"
    assert error.found.startswith("'native'")


def test_build_library_of_no_model_is_refused(build: Callable[..., object]) -> None:
    error = refusal(build, models=[b"nonsense"])
    assert error.expected == "an ONNX model"


def test_build_library_with_an_old_numba_is_refused(
    build: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.61.2")
    needed = f"a library needs numba {builder.OLDEST_NUMBA} or newer, and 0.61.2 is installed"
    with pytest.raises(ImportError, match=re.escape(f"{needed}: pip install -U numba")):
        build()


def test_build_library_without_numba_is_refused(
    build: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = "a library is compiled by Numba: pip install 'ort-gridsample[jit]'"
    with pytest.raises(ImportError, match=re.escape(message)):
        build()


@pytest.mark.parametrize(
    ("target", "expected"),
    [("aarch64-macos", "the package ziglang"), (None, "cc, or the package ziglang")],
    ids=["another machine", "this machine"],
)
def test_build_library_without_a_linker_is_refused(
    target: str | None,
    expected: str,
    build: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find_spec = importlib.util.find_spec
    without_zig = lambda name: None if name == "ziglang" else find_spec(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without_zig)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    error = refusal(build, target=target)
    assert (error.argument, error.found) == ("linker", "not installed")
    assert error.expected.startswith(expected)


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process look like a frozen program."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)


@pytest.mark.usefixtures("frozen")
def test_build_library_in_a_frozen_program_is_refused(build: Callable[..., object]) -> None:
    error = refusal(build)
    assert (error.where, error.argument) == ("library", "this program")
    assert "an installed Python" in error.expected


@pytest.mark.usefixtures("frozen")
def test_linker_in_a_frozen_program_is_not_ziglang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    command = linking.linker(None, "compiled ops")
    assert command[0] == "/usr/bin/cc"


def test_failed_linker_raises_with_its_message() -> None:
    with pytest.raises(RuntimeError, match=r"^linking failed: no room$"):
        linking.run([sys.executable, "-c", "raise SystemExit('no room')"], "linking")


def test_library_has_the_kernels_of_its_models_only() -> None:
    models = [
        grid_sample_model("float16", "float32", 2, [Attributes("nearest")]),
        affine_grid_model("float64", 2, True),
    ]
    assert builder._needed(models) == {
        "X": ["float16"],
        "grid": ["float32"],
        "mode": ["nearest"],
        "theta": ["float64"],
        "size": ["int64"],
    }


def test_library_for_function_called_with_unknown_type_has_the_kernels_of_all_types() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 20, "local": 1, "other": 1]>
        g (float[1,1,4,4] X, float[1,3,4,2] G) => (float[1,1,3,4] Y, float[] Z) {
            Y = local.warp (X, G)
            U = other.Unknown (X)
            Z = local.warp (U, G) }
        <opset_import: ["": 20], domain: "local"> warp (A, B) => (C) { C = GridSample (A, B) }""")
    needed = builder._needed([model])
    assert needed is not None
    assert needed["grid"] == ["float32"]
    assert {"float16", "float32", "uint8"} < set(needed["X"])


def run_page_commands(heading: str, folder: Path) -> None:
    """Run the commands below a heading of the examples' page; a compiler's warning is an error."""
    page = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    section = page.partition(f"\n{heading}\n")[2]
    commands = section.partition("```bash\n")[2].partition("```")[0]
    commands = re.sub("^(cc|c[+]{2}) ", r"\1 -Wall -Wextra -Werror ", commands, flags=re.MULTILINE)
    (folder / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    subprocess.run(["bash", "-ec", commands], cwd=folder, env=environment, check=True)


def build_program(
    folder: Path,
    compiler: list[str],
    runtime: Path | None = None,
    name: str = "run_model",
    source: str = "c/run_model.c",
) -> Path:
    """Build an example in C or C++ in ``folder``, next to a copy of onnxruntime's shared library.

    Args:
        folder: where to build.
        compiler: the words of the compiler's command.
        runtime: the shared library of onnxruntime, by default the installed one.
        name: the file name of the program.
        source: the example's path in the folder of the examples.
    """
    if runtime is None:
        runtime = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    is_windows = runtime.suffix == ".dll"
    runtime_copy = folder / ("onnxruntime.dll" if is_windows else "libonnxruntime.so.1")
    shutil.copy(runtime, runtime_copy)
    flags = [] if is_windows else ["-Wl,-rpath,$ORIGIN"]
    program = folder / name
    files = [str(ROOT / "examples" / source), str(runtime_copy)]
    command = [*compiler, "-O1", *files, *flags, "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True)
    return program


def save_files(sample: Sample, folder: Path, name: str = "model.onnx") -> None:
    """Save a model, and its feeds as .npy files."""
    onnx.save(sample.model, folder / name)
    for name, value in sample.feeds.items():
        np.save(folder / f"{name}.npy", value)


def run_on_files(
    command: list[str], library: str, sample: Sample, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run an example in another language on files in ``folder``; the output is Y.npy."""
    save_files(sample, folder)
    inputs = [f"{value.name}.npy" for value in sample.model.graph.input]
    words = [*command, library, "model.onnx", "Y.npy", *inputs]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


def assert_program_runs_every_model(command: list[str], library: Path, folder: Path) -> None:
    """Assert that an example in another language has the right outputs and errors with a library.

    Args:
        command: the words that run the program in ``folder``.
        library: the path of the library.
        folder: where the program is.
    """
    shutil.copy(library, folder / library.name)
    samples = sample_models()
    for sample in samples.values():
        done = run_on_files(command, library.name, sample, folder)
        assert done.returncode == 0, done.stderr
        session = onnxruntime.InferenceSession(sample.model.SerializeToString(), ogs.register())
        (expected,) = session.run(None, sample.feeds)
        np.testing.assert_allclose(np.load(folder / "Y.npy"), expected, rtol=0, atol=1e-5)

    model, feeds = samples["linear 2"]
    wrong = Sample(model, feeds | {"grid": feeds["grid"][..., :1]})
    done = run_on_files(command, library.name, wrong, folder)
    assert done.returncode == 1
    error = "grid is of shape (1, 300, 300, 1), expected shape (N, D1_out, D2_out, 2)"
    assert f"GridSample node 'sample0': {error}" in done.stderr


def assert_program_runs_unmodified(
    command: list[str], library: Path, folder: Path, x_type: str
) -> None:
    """Assert that an example in another language runs a model on a library's provider.

    Args:
        command: the words that run the program in ``folder``.
        library: the path of the library.
        folder: where the program runs.
        x_type: the type of X.
    """
    shutil.copy(library, folder / library.name)
    model, feeds = unmodified_sample(x_type)
    command = [*command, "--provider"]
    done = run_on_files(command, library.name, Sample(model, feeds), folder)
    assert done.returncode == 0, done.stderr
    expected = ogs.grid_sample(feeds["X"], feeds["grid"], "linear", "border")
    np.testing.assert_allclose(np.load(folder / "Y.npy"), expected, rtol=1e-6, atol=1e-5)
    wrong = Sample(model, feeds | {"grid": feeds["grid"][..., :1]})
    done = run_on_files(command, library.name, wrong, folder)
    assert done.returncode == 1
    assert "grid is of shape (1, 6, 7, 1), expected shape (N, D1_out, D2_out, 2)" in done.stderr


@needs_cc
def test_example_in_c_runs_models_with_a_library(built: Path, tmp_path: Path) -> None:
    """The commands on the examples' page build and run it, without a warning of the compiler."""
    sample = sample_models()["linear 2"]
    shutil.copy(built, tmp_path / "libort_gridsample.so")
    save_files(sample, tmp_path, "patched.onnx")
    run_page_commands("### C", tmp_path)
    expected = ogs.grid_sample(sample.feeds["X"], sample.feeds["grid"], padding_mode="border")
    np.testing.assert_allclose(np.load(tmp_path / "Y.npy"), expected, rtol=0, atol=1e-6)
    assert_program_runs_every_model(["./run_model"], built.resolve(), tmp_path)


@needs_headers
def test_example_in_cpp_runs_models_with_a_library(built: Path, tmp_path: Path) -> None:
    build_cpp_program(tmp_path)
    assert_program_runs_every_model(["./run_model"], built, tmp_path)


@needs_jar
def test_example_in_java_runs_models_with_a_library(built: Path, tmp_path: Path) -> None:
    assert_program_runs_every_model(build_java_program(tmp_path), built, tmp_path)


def cpp_compiler(*command: str) -> list[str]:
    """Return the words of a C++ compiler's command with the folder of onnxruntime's headers."""
    words = ["-std=c++17", "-Wall", "-Wextra", "-Werror"]
    return [*command, *words, "-isystem", os.environ[INCLUDE_VARIABLE]]


def build_cpp_program(folder: Path) -> None:
    """Build the example in C++ in ``folder``."""
    build_program(folder, cpp_compiler("c++"), source="cpp/run_model.cpp")


def build_java_program(folder: Path) -> list[str]:
    """Compile the example in Java in ``folder``, and return the words that run it."""
    source = ROOT / "examples/java/RunModel.java"
    jar = str(Path(os.environ[JAR_VARIABLE]).resolve())
    command = ["javac", "-Xlint:all", "-Werror", "-cp", jar, "-d", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return ["java", "-cp", os.pathsep.join([jar, "."]), "RunModel"]


@pytest.mark.skipif(
    not shutil.which("qemu-x86_64-static") or not shutil.which("cc"),
    reason="needs an emulator of x86-64, and cc",
)
def test_library_on_an_older_processor_raises(built: Path, tmp_path: Path) -> None:
    if "x86-64-v2" in library_file.validate(built):
        pytest.skip("the library has a variant for the emulated processor")
    program = build_program(tmp_path, ["cc"])
    onnx.save(sample_models()["linear 2"].model, tmp_path / "model.onnx")
    emulator = ["qemu-x86_64-static", "-cpu", "Nehalem"]
    words = [*emulator, str(program), str(built), "model.onnx", "Y.npy"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "this processor is none of 'x86-64-v" in done.stderr


#: /proc/cpuinfo of an ARM machine, which onnxruntime reads.
CPUINFO = """processor\t: 0
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp \
asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""
WINE = shutil.which("wine") or shutil.which("wine64", path="/usr/lib/wine")


def under_qemu(folder: Path) -> list[str]:
    """Return the words that run an ARM program in ``folder``."""
    shutil.copytree("/usr/aarch64-linux-gnu", folder / "root", symlinks=True)
    (folder / "root/proc").mkdir()
    (folder / "root/proc/cpuinfo").write_text(CPUINFO)
    return ["qemu-aarch64-static", "-L", "root"]


def under_wine(folder: Path) -> list[str]:
    """Return the words that run a Windows program in ``folder``."""
    return ["env", "WINEDEBUG=-all", f"WINEPREFIX={folder / 'prefix'}", str(WINE)]


@dataclass(frozen=True)
class Machine:
    """Another machine, for which a library is built.

    Attributes:
        platform: the platform of onnxruntime's wheel.
        runtime: the pattern of onnxruntime's shared library in the wheel.
        zig_target: Zig's name of the machine.
        program: the file name of a program.
        emulator: returns the words that run a program in a folder.
        has_emulator: whether the emulator is installed.
    """

    platform: str
    runtime: str
    zig_target: str
    program: str
    emulator: Callable[[Path], list[str]]
    has_emulator: bool


MACHINES = {
    "aarch64-linux": Machine(
        platform="manylinux_2_28_aarch64",
        runtime="libonnxruntime.so.*",
        zig_target="aarch64-linux-gnu.2.28",
        program="run_model",
        emulator=under_qemu,
        has_emulator=bool(shutil.which("qemu-aarch64-static"))
        and Path("/usr/aarch64-linux-gnu").exists(),
    ),
    "x86_64-windows": Machine(
        platform="win_amd64",
        runtime="onnxruntime.dll",
        zig_target="x86_64-windows-gnu",
        program="run_model.exe",
        emulator=under_wine,
        has_emulator=bool(WINE),
    ),
}


def download_runtime(machine: Machine, folder: Path) -> Path:
    """Download onnxruntime's wheel for a machine, and return its shared library."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    command += ["--only-binary", ":all:", "--platform", machine.platform]
    command += [f"onnxruntime=={onnxruntime.__version__}", "-d", str(folder)]
    subprocess.run(command, check=True)
    pattern = f"capi/{machine.runtime}"
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        (member,) = (name for name in archive.namelist() if Path(name).match(pattern))
        return Path(archive.extract(member, folder / "wheel"))


def library_for(target: str, folder: Path, models: list[onnx.ModelProto]) -> Path:
    """Return the library for a machine of the tested release, or a new one for ``models``."""
    if RELEASE_VARIABLE in os.environ:
        (path,) = Path(os.environ[RELEASE_VARIABLE]).glob(f"libort_gridsample-*-{target}.*")
        return path
    machine = linking.MACHINES[target]
    path = folder / f"built{library_trailer.SUFFIXES[machine.system]}"
    ogs.build_library(path, machine.cpus[:1], target, models)
    return path


@pytest.mark.slow
@pytest.mark.network
@needs_zig
@pytest.mark.parametrize("target", MACHINES)
def test_library_for_another_machine_runs_every_model_there(target: str, tmp_path: Path) -> None:
    """In an emulator, with onnxruntime's wheel for that machine.

    The program is the example in C and, if there are headers, also the one in C++.
    """
    machine = MACHINES[target]
    if not machine.has_emulator:
        pytest.skip("no emulator of this machine is installed")
    runtime = download_runtime(machine, tmp_path)
    library = library_for(target, tmp_path, [sample.model for sample in sample_models().values()])
    folder = tmp_path / "programs"
    folder.mkdir()
    zig = [sys.executable, "-m", "ziglang"]
    target_words = ["-target", machine.zig_target]
    build_program(folder, [*zig, "cc", *target_words], runtime, machine.program)
    command = [*machine.emulator(folder), f"./{machine.program}"]
    assert_program_runs_every_model(command, library, folder)
    if HAS_PROVIDER:
        for x_type in ("float32", "uint8"):
            assert_program_runs_unmodified(command, library, folder, x_type)
    if HAS_PROVIDER and INCLUDE_VARIABLE in os.environ:
        compiler = cpp_compiler(*zig, "c++", *target_words)
        build_program(folder, compiler, runtime, machine.program, "cpp/run_model.cpp")
        assert_program_runs_unmodified(command, library, folder, "uint8")


@pytest.mark.slow
@needs_zig
def test_library_for_macos_is_signed_and_exports_its_functions(tmp_path: Path) -> None:
    """There is no emulator to run it. Apple's processors refuse code without a signature."""
    path = library_for("aarch64-macos", tmp_path, [sample_models()["linear 2"].model])
    assert library_file.validate(path, any_machine=True).endswith("for aarch64-darwin generic")
    content = path.read_bytes()
    for name in EXPORTS:
        assert f"\0_{name}\0".encode() in content
    commands = dict(macho_commands(content))
    start, size = struct.unpack("<II", commands[0x1D][:8])  # LC_CODE_SIGNATURE
    assert content[start : start + 4] == b"\xfa\xde\x0c\xc0"
    assert content[start + size :].startswith(b"\nort_gridsample ops")
    (_, minimum) = struct.unpack("<II", commands[0x32][:8])  # LC_BUILD_VERSION
    assert minimum >> 16 == 11


def macho_commands(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the load commands of a Mach-O file of 64 bits, and their data."""
    (n_commands,) = struct.unpack_from("<I", content, 16)
    offset = 32
    for _ in range(n_commands):
        command, size = struct.unpack_from("<II", content, offset)
        yield command & 0x7FFFFFFF, content[offset + 8 : offset + size]
        offset += size


@pytest.fixture(scope="module")
def x86_64_v2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two builds of one library for the oldest x86-64, the second with one for Windows."""
    folder = tmp_path_factory.mktemp("x86_64_v2")
    one, two = folder / "one", folder / "two"
    models = [sample_models()["linear 2"].model]
    ogs.build_library(one, "x86-64-v2", "x86_64-linux", models)
    paths = {"x86_64-windows": folder / "it.dll"} if HAS_ZIG else {}
    builder.build_libraries({**paths, "x86_64-linux": two}, "x86-64-v2", models)
    return one, two


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="builds for Linux")
def test_library_has_the_same_bytes_alone_and_with_another(x86_64_v2: tuple[Path, Path]) -> None:
    one, two = x86_64_v2
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.slow
@needs_zig
def test_library_for_windows_has_the_same_bytes_at_another_time(
    x86_64_v2: tuple[Path, Path], tmp_path: Path
) -> None:
    models = [sample_models()["linear 2"].model]
    ogs.build_library(tmp_path / "it.dll", "x86-64-v2", "x86_64-windows", models)
    built_before = x86_64_v2[0].with_name("it.dll")
    assert (tmp_path / "it.dll").read_bytes() == built_before.read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("objdump"), reason="reads x86-64 code by objdump"
)
def test_library_for_an_old_processor_has_no_newer_instructions(
    x86_64_v2: tuple[Path, Path],
) -> None:
    command = ["objdump", "-d", "--no-show-raw-insn", str(x86_64_v2[0])]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    columns = [line.split("\t") for line in code.splitlines()]
    instructions = {words[1].split()[0] for words in columns if len(words) > 1 and words[1].strip()}
    assert instructions >= {"cpuid", "mulps"}
    assert {name for name in instructions if name.startswith("v")} <= {"verr", "verw"}
    assert not re.search(r"%[yz]mm", code)


def test_compiled_code_counts_processors_and_has_the_level_of_this_one() -> None:
    import llvmlite.binding
    from numba import njit

    from ort_gridsample.library import entry

    llvmlite.binding.initialize_native_asmparser()
    count, level = njit(lambda: (entry.count_processors(), entry.processor_level()))()
    (native, *_) = builder._cpus(linking.MACHINES[builder._target_name(None)], (builder.NATIVE,))
    assert count == available_cpus()
    assert level == builder.CPUS[native].level


@pytest.mark.parametrize("cpu", builder.CPUS)
def test_features_of_a_level_that_kernels_ask_for_are_named(cpu: str) -> None:
    kernels = Path(target.__file__).parent
    calls = [
        call
        for path in kernels.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("has", "target.has")
    ]
    asked = {ast.literal_eval(argument) for call in calls for argument in call.args}
    assert "avx512vl" in asked
    level = builder.CPUS[cpu]
    assert asked & {*level.host_features} <= {*level.features}


# --- The execution provider ---

needs_provider = pytest.mark.skipif(
    not HAS_PROVIDER, reason="this onnxruntime has no execution providers with kernels"
)


@needs_provider
def test_provider_of_a_library_runs_unmodified_models(built: Path, tmp_path: Path) -> None:
    """The library has linear and nearest of float32; onnxruntime runs cubic."""
    X = _rng.normal(size=(1, 2, 4, 5)).astype("f")
    feed = {"X": X, "grid": _rng.uniform(-1.2, 1.2, (1, 6, 7, 2)).astype("f")}
    modes = ("linear", "nearest", "cubic")
    for mode in modes:
        model = grid_sample_model("float32", "float32", 2, [Attributes(mode)])
        onnx.save(model, tmp_path / f"{mode}.onnx")
        np.savez(tmp_path / f"{mode}.npz", **feed)
    patched, patched_feed = sample_models()["fused program"]
    onnx.save(patched, tmp_path / "patched.onnx")
    np.savez(tmp_path / "patched.npz", **patched_feed)
    own = "GridSampleExecutionProvider"
    cpu = "CPUExecutionProvider"
    cubic, linear, nearest, fused, shape = run_program(
        "library_provider.py", str(tmp_path), str(built)
    )
    assert (linear, nearest, cubic, fused) == (own, own, cpu, cpu)
    assert shape.startswith("(")
    for mode in modes:
        expected = ogs.grid_sample(*feed.values(), mode)
        np.testing.assert_allclose(np.load(tmp_path / f"{mode}.npy"), expected, atol=1e-5)


@needs_provider
def test_provider_of_a_relative_library_is_registered(built: Path) -> None:
    name = "GridSampleExecutionProvider"
    assert run_with_relative_library("ogs.register_provider()", built) == [name]


@needs_provider
@needs_cc
@pytest.mark.parametrize("x_type", ["float32", "uint8"])
def test_example_in_c_runs_an_unmodified_model(x_type: str, built: Path, tmp_path: Path) -> None:
    build_program(tmp_path, ["cc"])
    assert_program_runs_unmodified(["./run_model"], built, tmp_path, x_type)


@needs_provider
@needs_cc
def test_example_in_c_finds_a_relative_library(built: Path, tmp_path: Path) -> None:
    """The program passes an absolute path: onnxruntime prepends the folder of its own library."""
    build_program(tmp_path, ["cc"])
    folder = tmp_path / "folder"
    folder.mkdir()
    assert_program_runs_unmodified(["../run_model"], built, folder, "uint8")


@needs_provider
@needs_headers
@pytest.mark.parametrize("x_type", ["float32", "uint8"])
def test_example_in_cpp_runs_an_unmodified_model(x_type: str, built: Path, tmp_path: Path) -> None:
    build_cpp_program(tmp_path)
    assert_program_runs_unmodified(["./run_model"], built, tmp_path, x_type)


@needs_provider
@needs_headers
def test_commands_for_cpp_run_an_unmodified_model(built: Path, tmp_path: Path) -> None:
    """The commands on the examples' page build the program without a warning of the compiler."""
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime/include").symlink_to(Path(os.environ[INCLUDE_VARIABLE]).resolve())
    assert_page_runs_unmodified("### C++", built, tmp_path)


@needs_jar
def test_commands_for_java_run_an_unmodified_model(built: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.jar").symlink_to(Path(os.environ[JAR_VARIABLE]).resolve())
    assert_page_runs_unmodified("### Java", built, tmp_path)


def assert_page_runs_unmodified(heading: str, library: Path, folder: Path) -> None:
    """Assert that the commands below a heading of the examples' page run an unmodified model."""
    shutil.copy(library, folder / "libort_gridsample.so")
    sample = unmodified_sample("uint8")
    save_files(sample, folder)
    run_page_commands(heading, folder)
    expected = ogs.grid_sample(sample.feeds["X"], sample.feeds["grid"], "linear", "border")
    np.testing.assert_array_equal(np.load(folder / "Y.npy"), expected)


@needs_jar
@pytest.mark.parametrize("x_type", ["float32", "uint8"])
def test_example_in_java_runs_an_unmodified_model(x_type: str, built: Path, tmp_path: Path) -> None:
    command = build_java_program(tmp_path)
    assert_program_runs_unmodified(command, built, tmp_path, x_type)


def test_wheel_of_the_provider_has_complete_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = library_trailer.append_trailer(b"code", "1.2.3", "x86_64-linux", [])
    addresses = email.message_from_string(
        "Project-URL: Issues, https://example.org/i\nProject-URL: Repository, https://example.org"
    )
    monkeypatch.setattr(metadata, "metadata", lambda name: addresses)
    with zipfile.ZipFile(wheel.pack(library, tmp_path)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        fields = email.message_from_bytes(archive.read(name))
        folder = name.rpartition("/")[0]
        assert archive.read(f"{folder}/licenses/{fields['License-File']}").startswith(b"MIT")
    assert (fields["Metadata-Version"], fields["License-Expression"]) == ("2.4", "MIT")
    assert fields.get_all("Project-URL") == addresses.get_all("Project-URL")
    assert "register_execution_provider_library" in fields.get_payload()


@needs_provider
def test_wheel_of_the_provider_has_a_library_and_its_path(built: Path, tmp_path: Path) -> None:
    path = wheel.pack(built.read_bytes(), tmp_path)
    assert path.name.startswith(
        f"onnxruntime_ep_gridsample-{ogs.__version__}-py3-none-manylinux_2_"
    )
    assert path.read_bytes() == wheel.pack(built.read_bytes(), tmp_path).read_bytes()
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*command, "--target", str(tmp_path / "installed"), str(path)], check=True)
    script = f"""
sys.path.insert(0, {str(tmp_path / "installed")!r})
import onnxruntime_ep_gridsample as ep
import onnxruntime
(name,) = ep.get_ep_names()
onnxruntime.register_execution_provider_library(name, ep.get_library_path())
print([device.ep_name for device in onnxruntime.get_ep_devices()].count(name))
"""
    assert run_script(script) == ["1"]


def test_wheel_of_a_library_does_not_depend_on_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = library_trailer.append_trailer(b"code", "1.2.3", "x86_64-linux", [])
    contents = []
    for system in ("linux", "win32"):
        monkeypatch.setattr(sys, "platform", system)
        contents.append(wheel.pack(library, tmp_path).read_bytes())
    assert contents[0] == contents[1]


def fresh_environment(folder: Path) -> Path:
    """Create an environment in ``folder`` that also has the packages here; return its Python."""
    venv.create(folder, with_pip=False)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    Path(site, "packages_here.pth").write_text(str(Path(onnxruntime.__file__).parents[1]))
    return python


@needs_provider
@pytest.mark.slow
def test_wheel_of_the_command_runs_an_unmodified_model_in_another_environment(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(grid_sample_model("uint8", "float32", 2, [Attributes("linear", "border")]), model)
    feeds = {
        "X": _rng.integers(0, 256, (1, 2, 4, 5), np.uint8),
        "grid": _rng.uniform(-1.2, 1.2, (1, 6, 7, 2)).astype(np.float32),
    }
    np.savez(tmp_path / "feeds.npz", **feeds)
    command = [sys.executable, "-m", "ort_gridsample.library.wheel", str(tmp_path / "out")]
    subprocess.run([*command, "--cpu", "native", "--model", str(model)], cwd=ROOT, check=True)
    (path,) = (tmp_path / "out").glob("*.whl")
    python = str(fresh_environment(tmp_path / "environment"))
    install = ["install", "--no-deps", "--no-index", "--quiet", str(path)]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    program = ROOT / "tests/programs/wheel_provider.py"
    words = [python, program, model, tmp_path / "feeds.npz", tmp_path / "Y.npy"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "GridSampleExecutionProvider\n"), done.stderr
    expected = ogs.grid_sample(feeds["X"], feeds["grid"], "linear", "border")
    np.testing.assert_array_equal(np.load(tmp_path / "Y.npy"), expected)


def test_library_for_an_empty_list_of_models_is_refused(tmp_path: Path) -> None:
    error = refusal(ogs.build_library, tmp_path / "it.so", models=[])
    assert (error.argument, error.found) == ("models", "empty")
