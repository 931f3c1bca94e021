"""A library of compiled ops: built, registered where there is nothing of ours, taken by sessions, and refused.

It has what the models here need. ``ORT_GRIDSAMPLE_TESTED_LIBRARY`` names one of all ops, which other tests try, too.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from copy import deepcopy
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from ort_gridsample import versions
from ort_gridsample.custom_ops.compiled_ops import library_file, linking
from ort_gridsample.dialects.table import FUSED
from ort_gridsample.library import builder, wheel
from ort_gridsample.reference.threads import available_cpus
from ort_gridsample.rewriting.patch import patch_in_place
from ort_gridsample.rewriting.targets.compiled_op import FusedOp
from support.attention_models import op_model, operands
from support.cases import Attributes
from support.compare import refusal
from support.fused_models import feed, transformer
from support.models import affine_grid_model, grid_sample_model, loose
from support.paths import HAS_PROVIDER
from support.pixel_graphs import Graph
from support.processes import WITHOUT_TORCH, python

COMPILES = bool(importlib.util.find_spec("numba")) and versions.is_at_least(
    metadata.version("numba"), builder.NUMBA
)
LINKS = COMPILES and bool(importlib.util.find_spec("ziglang") or shutil.which("cc"))
pytestmark = [
    pytest.mark.skipif(
        not LINKS, reason=f"a library needs Numba {builder.NUMBA}, and cc or ziglang"
    ),
    pytest.mark.timeout(1800),
]
ROOT = Path(__file__).parents[2]

Feeds = dict[str, np.ndarray]
_rng = np.random.default_rng(30)
THETA = _rng.normal(size=(2, 2, 3)).astype("f")


def sample_models() -> dict[str, tuple[onnx.ModelProto, Feeds]]:
    """Models, patched, and what they are fed; grids of two axes are so large that several threads sample."""
    found: dict[str, tuple[onnx.ModelProto, Feeds]] = {}
    for mode, rank in (("linear", 2), ("nearest", 2), ("linear", 1), ("linear", 3)):
        model = loose(grid_sample_model("float32", "float32", rank, [Attributes(mode, "border")]))
        X = _rng.normal(size=(1, 2, 4, 5, 6)[: rank + 2]).astype("f")
        fed = {
            "X": X,
            "grid": _rng.uniform(-1.2, 1.2, (1, *[300 if rank == 2 else 7] * rank, rank)).astype(
                "f"
            ),
        }
        found[f"{mode} {rank}"] = ogs.patch_model(model, target="compiled"), fed
    affine = ogs.patch_model(loose(affine_grid_model("float32", 2, True)), target="compiled")
    found["AffineGrid"] = affine, {"theta": THETA, "size": np.array([2, 3, 4, 5])}
    fused = transformer(attributes=Attributes())
    patch_in_place(fused, target=FusedOp())
    found["fused AffineGrid"] = fused, feed()
    graph = Graph()
    pixels = graph.sampled(
        graph.apply(graph.fed("coords", 1, 3, 4, 2), ("Mul", 0.1), ("Sub", 0.5)), (1, 1, 5, 6)
    )
    patch_in_place(pixels, target=FusedOp())
    found["fused program"] = (
        pixels,
        {name: np.asarray(value) for name, value in graph.feeds.items()},
    )
    assert [sum(op.op_type == FUSED for op in model.graph.node) for model, _ in found.values()] == [
        0
    ] * 5 + [1, 1]
    levels = np.array([[2, 3, 4], [1, 2, 2]])
    value, at, by = operands(levels)
    fed = {"value": value, "levels": levels, "at": at, "by": by}
    found["DeformableAttention"] = op_model("float32", "float32", False), fed
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of what :func:`sample_models` need, for this processor; built once for all processes that test."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    path = folder / "libort_gridsample.so"
    try:
        (folder / "building").mkdir()
    except FileExistsError:
        while not path.exists():
            time.sleep(0.5)
    else:
        ogs.build_library(path, "native", models=[model for model, _ in sample_models().values()])
    return path


def test_it_runs_where_there_is_nothing_of_ours(built: Path, tmp_path: Path) -> None:
    """One by one, then by sixteen threads on one session; and as the session of this package answers."""
    expected = {}
    for number, (model, fed) in enumerate(sample_models().values()):
        onnx.save(model, tmp_path / f"{number}.onnx")
        np.savez(tmp_path / f"{number}.npz", **fed)
        expected[number] = onnxruntime.InferenceSession(
            model.SerializeToString(), ogs.register()
        ).run(None, fed)[0]
    script = f"""
for name in ("numba", "onnx", "onnxruntime_extensions", "ort_gridsample"):
    sys.modules[name] = None
import numpy as np, onnxruntime, pathlib
from concurrent.futures import ThreadPoolExecutor
options = onnxruntime.SessionOptions()
options.register_custom_ops_library({str(built)!r})
folder = pathlib.Path({str(tmp_path)!r})
for path in sorted(folder.glob("*.onnx")):
    session, fed = onnxruntime.InferenceSession(path, options), dict(np.load(path.with_suffix(".npz")))
    (Y,) = session.run(None, fed)
    np.save(path.with_suffix(".npy"), Y)
    with ThreadPoolExecutor(16) as pool:
        print(all(pool.map(lambda _: np.array_equal(session.run(None, fed)[0], Y), range(320))))
"""
    assert python(script) == ["True"] * len(expected)
    for number, Y in expected.items():
        np.testing.assert_allclose(np.load(tmp_path / f"{number}.npy"), Y, rtol=0, atol=2e-6)


def errors(model: onnx.ModelProto, path: Path, fed: Feeds | None = None) -> str:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(path))
    with pytest.raises(Exception, match="node") as told:
        onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, fed or {})
    return str(told.value)


def test_its_sentences_are_the_functions(built: Path) -> None:
    samples = sample_models()
    model, _ = samples["linear 2"]
    grids = {
        (1, 2): [(1, 3)],
        (1, 2, 0, 6): [(1, 3, 4, 2)],
        (1, 2, 5, 6): [(1, 3, 4, 3), (2, 3, 4, 2)],
    }
    for X, grid in ((X, grid) for X, each in grids.items() for grid in each):
        fed = {"X": np.zeros(X, "f"), "grid": np.zeros(grid, "f")}
        expected = refusal(
            ogs.grid_sample, *fed.values(), padding_mode="border", where="GridSample node 'sample0'"
        )
        assert str(expected) in errors(model, built, fed)
    model, _ = samples["AffineGrid"]
    fed = {"theta": THETA, "size": np.array([1, 3, 4, 5])}
    expected = refusal(ogs.affine_grid, *fed.values(), where="AffineGrid node '(grid)'")
    assert str(expected) in errors(model, built, fed)
    model, fed = samples["fused program"]
    said = errors(loose(model), built, fed | {"coords": np.zeros((1, 3, 4, 3), "f")})
    assert (
        "grid is made of 'coords' of shape (1, 3, 4, 3), expected shape (N, D1_out, D2_out, 2)"
        in said
    )


def changed(model: onnx.ModelProto, name: str, value: object) -> onnx.ModelProto:
    copy = deepcopy(model)
    (node,) = (node for node in copy.graph.node if node.domain)
    said = (
        next((each for each in node.attribute if each.name == name), None) or node.attribute.add()
    )
    said.CopyFrom(onnx.helper.make_attribute(name, value))
    return copy


def test_a_node_that_it_cannot_run_says_why(built: Path) -> None:
    model, _ = sample_models()["linear 2"]
    listed = "expected 'nearest', 'linear', 'cubic', 'bilinear' or 'bicubic'"
    for value in ("bogus", "it's", "\"'\\", "tab\t\x01 line\n", "größer"):
        assert f"GridSample node 'sample0': mode is {value!r}, {listed}" in errors(
            changed(model, "mode", value), built
        )
    assert "padding_mode is 'circular', expected 'zeros'" in errors(
        changed(model, "padding_mode", "circular"), built
    )
    long = changed(
        changed(model, "mode", "x"), "node", "a" * 1500
    )  # onnxruntime 1.20 cuts what is longer than 2048
    assert f"GridSample node {'a' * 1500!r}: mode" in errors(long, built)
    assert "interface is 2, expected 1: the model is of another" in errors(
        changed(model, "interface", 2), built
    )
    lacks = "library is made without mode 'cubic' for X of float32 and grid of float32, expected one that was made for"
    assert lacks in errors(changed(model, "mode", "cubic"), built)


def in_package(script: str, path: Path | str, first: str = "") -> list[str]:
    begin = f"{first}\nimport sys, numpy as np, onnxruntime, ort_gridsample as ogs\n"
    begin += "from support.cases import Attributes\nfrom support.models import grid_sample_model\n"
    begin += "X, grid = np.ones((1, 2, 4, 4), np.float32), np.zeros((1, 3, 3, 2), np.float32)\n"
    begin += "model = grid_sample_model('float32', 'float32', 2, [Attributes()])\n"
    return python(begin + script, env={**os.environ, library_file.VARIABLE: str(path)})


@pytest.mark.parametrize("extensions", [True, False])
def test_sessions_take_it_before_they_compile(extensions: bool, built: Path) -> None:
    """Beside onnxruntime-extensions, which run what is no compiled op, and where there are none."""
    script = """
session = ogs.InferenceSession(model)
print(session.run(None, {"X": X, "grid": grid})[0].shape, session.replaced[0].runs_on, session.replaced[0].library)
patched = ogs.patch_model(model, target="compiled").SerializeToString()
for _ in range(2):
    session = onnxruntime.InferenceSession(patched, ogs.register())
    print(session.run(None, {"X": X, "grid": grid})[0].shape, session.get_outputs()[0].shape)
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(__import__("os").environ["ORT_GRIDSAMPLE_LIBRARY"])
print(onnxruntime.InferenceSession(patched, options).run(None, {"X": X, "grid": grid})[0].shape)
print("numba" in sys.modules)
text = grid_sample_model("str", "float32", 2, [Attributes("nearest")])
print(told(lambda: ogs.InferenceSession(text).run(None, {"X": X.astype(str).astype(object), "grid": grid})[0].shape))
"""
    first = "" if extensions else "import sys\nsys.modules['onnxruntime_extensions'] = None\n"
    ran, *files, plain, numba, text = in_package(script, built, first)
    assert ran == f"(1, 2, 3, 3) compiled op {built}, {library_file.validate(built)}"
    assert files == ["(1, 2, 3, 3) ['N', 'C', 'D0_out', 'D1_out']"] * 2
    assert (plain, numba) == ("(1, 2, 3, 3)", "False")
    lacks = "ImportError: GridSample node 'sample0': X is of type str, and string tensors run on Python ops only"
    assert text == "(1, 2, 3, 3)" if extensions else text.startswith(lacks)


@pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_extensions") is None,
    reason="onnxruntime-extensions is not installed",
)
def test_library_and_onnxruntime_extensions_run_in_one_session(built: Path) -> None:
    """Registered before and after it, by hand and by this package."""
    script = """
import os, onnxruntime_extensions as ext
from support.models import parsed
path = os.environ["ORT_GRIDSAMPLE_LIBRARY"]
both = parsed('''g (string[N] a, float[1,2,4,4] X, float[1,3,3,2] grid) => (string[N] b, float[1,2,3,3] Y) {
    b = ai.onnx.contrib.StringUpper (a)
    Y = GridSample (X, grid) }''')
feeds = {"a": np.array(["ab"], object), "X": X, "grid": grid}
patched = ogs.patch_model(both, target="compiled").SerializeToString()
for libraries in (path, ext.get_library_path()), (ext.get_library_path(), path):
    options = onnxruntime.SessionOptions()
    for each in libraries:
        options.register_custom_ops_library(each)
    for given in options, ogs.register(options):
        b, Y = onnxruntime.InferenceSession(patched, given).run(None, feeds)
        print(b.tolist(), np.array_equal(Y, ogs.grid_sample(X, grid)), "numba" in sys.modules)
"""
    first = f"{WITHOUT_TORCH}import sys; sys.modules['numba'] = None"
    assert in_package(script, built, first) == ["['AB'] True True"] * 4


REFUSED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "half of it": (lambda content: content[: len(content) // 2], "end is not a library's"),
    "a bit of it": (
        lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
        "content is damaged",
    ),
    "another": (lambda content: b"\x7fELF", "end is not a library's"),
    "another machine's": (
        lambda content: content.replace(b" for x86_64-", b" for s390x-"),
        "machine is s390x-linux",
    ),
    "older": (
        lambda content: content.replace(b"ops 2 of", b"ops 1 of"),
        "interface is 1, of release",
    ),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_is_no_library_is_refused(which: str, built: Path, tmp_path: Path) -> None:
    change, reason = REFUSED[which]
    (tmp_path / "it.so").write_bytes(change(built.read_bytes()))
    script = """
for make in (lambda: ogs.InferenceSession(model), ogs.register):
    print(told(make))
print(ogs.grid_sample(X, grid).shape)
"""
    session, registered, works = in_package(script, tmp_path / "it.so")
    said = f"GridSampleError: library {str(tmp_path / 'it.so')!r}: {reason}"
    assert [session.startswith(said), registered.startswith(said), works] == [
        True,
        True,
        "(1, 2, 3, 3)",
    ]
    assert "file is not to be read: No such file" in str(
        refusal(library_file.validate, tmp_path / "none.so")
    )


@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("readelf"), reason="this reads an ELF file"
)
def test_it_links_nothing_but_c_and_exports_one_function(built: Path) -> None:
    words = ["readelf", "-dlW", "--dyn-syms", str(built)]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert {name.partition(".")[0] for name in re.findall(r"NEEDED.*\[(.*)\]", shown)} <= {
        "libc",
        "libm",
    }
    assert re.findall(r"GLOBAL +DEFAULT +\d+ (\w+)", shown) == ["RegisterCustomOps"]
    assert "TEXTREL" not in shown
    assert re.search(r"GNU_STACK.* RW ", shown)


def test_what_cannot_be_built_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(**arguments: object) -> str:
        with pytest.raises((ogs.GridSampleError, ImportError)) as error:
            ogs.build_library(tmp_path / "it.so", **arguments)  # type: ignore[arg-type]
        return str(error.value)

    assert told(target="sparc-solaris").startswith(
        "library: target is 'sparc-solaris', expected 'x86_64-linux'"
    )
    assert told(cpu="generic", target="x86_64-linux").startswith(
        "library: cpu is 'generic', expected 'x86-64-v2'"
    )
    assert (
        told(cpu="native", target="aarch64-macos") == "library: cpu is 'native', expected 'generic'"
    )
    assert told(models=[b"nonsense"]).endswith("expected an ONNX model")
    with monkeypatch.context() as older:
        older.setattr(metadata, "version", lambda name: "0.61.2")
        assert (
            told()
            == f"a library needs numba {builder.NUMBA} or newer, and 0.61.2 is installed: pip install -U numba"
        )
    with pytest.raises(RuntimeError, match=r"^linking failed: no room$"):
        linking.run([sys.executable, "-c", "raise SystemExit('no room')"], "linking")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ziglang" else find_spec(name)
    )
    assert "linker is not there, expected the package ziglang" in told(target="aarch64-macos")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "linker is not there, expected cc, or the package ziglang" in told()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert told() == "a library is compiled by Numba: pip install 'ort-gridsample[jit]'"
    assert list(tmp_path.iterdir()) == []


def test_a_library_has_what_its_models_need_and_no_more() -> None:
    models = [
        grid_sample_model("float16", "float32", 2, [Attributes("nearest")]),
        affine_grid_model("float64", 2, True),
    ]
    found = {
        "X": ["float16"],
        "grid": ["float32"],
        "mode": ["nearest"],
        "theta": ["float64"],
        "size": ["int64"],
    }
    assert builder._wanted(models) == found


def program(
    folder: Path, cc: list[str], runtime: Path | None = None, name: str = "run_model"
) -> Path:
    """The program of the example in C, built in ``folder`` beside the shared library of onnxruntime."""
    runtime = runtime or next(
        (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    )
    there = folder / ("onnxruntime.dll" if runtime.suffix == ".dll" else "libonnxruntime.so.1")
    shutil.copy(runtime, there)
    flags = [] if runtime.suffix == ".dll" else ["-Wl,-rpath,$ORIGIN"]
    command = [
        *cc,
        "-O1",
        str(ROOT / "examples/c/run_model.c"),
        str(there),
        *flags,
        "-o",
        str(folder / name),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return folder / name


def assert_program_answers(command: list[str], path: Path, folder: Path) -> None:
    """The program at the end of ``command`` answers every model with the library at ``path``, and tells its errors."""

    def run(model: onnx.ModelProto, fed: Feeds) -> subprocess.CompletedProcess[str]:
        onnx.save(model, folder / "model.onnx")
        for name, value in fed.items():
            np.save(folder / f"{name}.npy", value)
        words = [
            *command,
            path.name,
            "model.onnx",
            "Y.npy",
            *[f"{each.name}.npy" for each in model.graph.input],
        ]
        return subprocess.run(words, cwd=folder, capture_output=True, text=True)

    shutil.copy(path, folder / path.name)
    for model, fed in sample_models().values():
        done = run(model, fed)
        assert done.returncode == 0, done.stderr
        (Y,) = onnxruntime.InferenceSession(model.SerializeToString(), ogs.register()).run(
            None, fed
        )
        np.testing.assert_allclose(np.load(folder / "Y.npy"), Y, rtol=0, atol=1e-5)
    model, fed = sample_models()["linear 2"]
    done = run(model, fed | {"grid": fed["grid"][..., :1]})
    said = "GridSample node 'sample0': grid is of shape (1, 300, 300, 1), expected shape (N, D1_out, D2_out, 2)"
    assert (done.returncode, said in done.stderr) == (1, True)


def assert_program_runs_unmodified(command: list[str], path: Path, folder: Path) -> None:
    """Assert that the program at the end of ``command`` runs a model on a library's provider."""
    shutil.copy(path, folder / path.name)
    model = grid_sample_model("float32", "float32", 2, [Attributes("linear", "border")])
    onnx.save(loose(model), folder / "model.onnx")
    feed = {"X": _rng.normal(size=(1, 2, 4, 5)), "grid": _rng.uniform(-1.2, 1.2, (1, 6, 7, 2))}
    feed = {name: value.astype("f") for name, value in feed.items()}
    for name, value in feed.items():
        np.save(folder / f"{name}.npy", value)
    np.save(folder / "wrong.npy", feed["grid"][..., :1])
    words = [*command, "--provider", f"./{path.name}", "model.onnx", "Y.npy", "X.npy"]
    done = subprocess.run([*words, "grid.npy"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = ogs.grid_sample(*feed.values(), "linear", "border")
    np.testing.assert_allclose(np.load(folder / "Y.npy"), expected, rtol=0, atol=1e-5)
    failed = subprocess.run([*words, "wrong.npy"], cwd=folder, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "grid is of shape (1, 6, 7, 1), expected shape (N, D1_out, D2_out, 2)" in failed.stderr


@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("cc"),
    reason="the program is built by cc, for Linux",
)
def test_a_program_in_c_runs_models_with_it(built: Path, tmp_path: Path) -> None:
    """As the commands of its page build and run it, with a compiler that has nothing to warn of."""
    (commands,) = re.findall(
        r"```bash\n(.*?)```", (ROOT / "examples/README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    model, fed = sample_models()["linear 2"]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shutil.copy(built, tmp_path / "libort_gridsample.so")
    onnx.save(model, tmp_path / "patched.onnx")
    for name, value in fed.items():
        np.save(tmp_path / f"{name}.npy", value)
    path, strict = (
        os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "cc -Wall -Wextra -Werror ",
    )
    words = ["bash", "-ec", re.sub("^cc ", strict, commands, flags=re.MULTILINE)]
    subprocess.run(words, cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)
    expected = ogs.grid_sample(fed["X"], fed["grid"], padding_mode="border")
    np.testing.assert_allclose(np.load(tmp_path / "Y.npy"), expected, rtol=0, atol=1e-6)
    assert_program_answers(["./run_model"], built.resolve(), tmp_path)


@pytest.mark.skipif(
    not shutil.which("qemu-x86_64-static") or not shutil.which("cc"),
    reason="this needs an emulator",
)
def test_a_processor_that_has_none_of_its_variants_is_told(built: Path, tmp_path: Path) -> None:
    if "x86-64-v2" in library_file.validate(built):
        pytest.skip("this processor is of the least level itself")
    made = program(tmp_path, ["cc"])
    model, _ = sample_models()["linear 2"]
    onnx.save(model, tmp_path / "model.onnx")
    words = ["qemu-x86_64-static", "-cpu", "Nehalem", str(made), str(built), "model.onnx", "Y.npy"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "this processor is none of 'x86-64-v" in done.stderr) == (1, True)


#: What an ARM machine says of its processor, which onnxruntime reads.
CPUINFO = """processor\t: 0
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""
WINE = shutil.which("wine") or shutil.which("wine64", path="/usr/lib/wine")


def under_qemu(folder: Path) -> list[str]:
    shutil.copytree("/usr/aarch64-linux-gnu", folder / "root", symlinks=True)
    (folder / "root/proc").mkdir()
    (folder / "root/proc/cpuinfo").write_text(CPUINFO)
    return ["qemu-aarch64-static", "-L", "root"]


def under_wine(folder: Path) -> list[str]:
    return ["env", "WINEDEBUG=-all", f"WINEPREFIX={folder / 'prefix'}", str(WINE)]


#: Target -> the wheel's platform, the library in it, Zig's name, the program's, and what runs it.
MACHINES = {
    "aarch64-linux": (
        *(
            "manylinux_2_28_aarch64",
            "libonnxruntime.so.*",
            "aarch64-linux-gnu.2.28",
            "run_model",
            under_qemu,
        ),
        shutil.which("qemu-aarch64-static") and Path("/usr/aarch64-linux-gnu").exists(),
    ),
    "x86_64-windows": (
        "win_amd64",
        "onnxruntime.dll",
        "x86_64-windows-gnu",
        "run_model.exe",
        under_wine,
        WINE,
    ),
}


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.skipif(
    not importlib.util.find_spec("ziglang"), reason="ziglang links for other machines"
)
@pytest.mark.parametrize("target", MACHINES)
def test_another_machine_s_library_answers_there(target: str, tmp_path: Path) -> None:
    """Under an emulator, with onnxruntime's own wheel for it."""
    platform, pattern, linked, name, runner, is_there = MACHINES[target]
    if not is_there:
        pytest.skip("nothing here runs its programs")
    wheel = [
        *("pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--platform", platform)
    ]
    wheel += [f"onnxruntime=={onnxruntime.__version__}", "-d", str(tmp_path)]
    subprocess.run([sys.executable, "-m", *wheel], check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        (member,) = (each for each in archive.namelist() if Path(each).match(f"capi/{pattern}"))
        runtime = Path(archive.extract(member, tmp_path / "wheel"))
    path = tmp_path / f"built{linking.SUFFIXES[builder.TARGETS[target].system]}"
    ogs.build_library(
        path,
        builder.TARGETS[target].cpus[:1],
        target,
        [model for model, _ in sample_models().values()],
    )
    there = tmp_path / "there"
    there.mkdir()
    program(there, [sys.executable, "-m", "ziglang", "cc", "-target", linked], runtime, name)
    command = [*runner(there), f"./{name}"]
    assert_program_answers(command, path, there)
    if HAS_PROVIDER:
        assert_program_runs_unmodified(command, path, there)


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("ziglang"), reason="ziglang links for other machines"
)
def test_a_library_for_macos_exports_its_function(tmp_path: Path) -> None:
    """Nothing here runs it."""
    model, _ = sample_models()["linear 2"]
    said = ogs.build_library(tmp_path / "it.dylib", target="aarch64-macos", models=[model])
    assert said.endswith("for aarch64-darwin generic")
    assert b"\0_RegisterCustomOps\0" in (tmp_path / "it.dylib").read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("objdump"), reason="this reads x86-64 code"
)
def test_it_is_reproducible_and_the_least_processor_s_has_no_newer_instructions(
    tmp_path: Path,
) -> None:
    model, _ = sample_models()["linear 2"]
    for name in ("one", "two"):
        ogs.build_library(tmp_path / name, "x86-64-v2", "x86_64-linux", [model])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    shown = ["objdump", "-d", "--no-show-raw-insn", str(tmp_path / "one")]
    code = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    found = {
        line.split("\t")[1].split()[0]
        for line in code.splitlines()
        if line.count("\t") and line.split("\t")[1]
    }
    assert found >= {"cpuid", "mulps"}
    assert not {each for each in found if each.startswith("v")} - {"verr", "verw"}
    assert not re.search(r"%[yz]mm", code)


def test_it_counts_processors_and_knows_this_one() -> None:
    import llvmlite.binding
    from numba import njit

    from ort_gridsample.library import entry

    llvmlite.binding.initialize_native_asmparser()
    found = njit(lambda: (entry.cpus(), entry.level()))()
    assert found == (
        available_cpus(),
        builder.CPUS[builder._cpus(builder._machine(None), (builder.NATIVE,))[0]].level,
    )


# --- The execution provider ---

needs_provider = pytest.mark.skipif(
    not HAS_PROVIDER, reason="this onnxruntime has no execution providers with kernels"
)

#: A process with neither Numba nor this package registers the provider of a library, and prints
#: what its sessions run on.
_PROVIDER_PROGRAM = """
for name in ("numba", "onnx", "ort_gridsample"):
    sys.modules[name] = None
import numpy as np, onnxruntime, pathlib
folder, path = map(pathlib.Path, {arguments!r})
onnxruntime.register_execution_provider_library("library", str(path))
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "GridSampleExecutionProvider"]
options.add_provider_for_devices(devices, {{}})
sessions = []
for model in sorted(folder.glob("*.onnx")):
    session = onnxruntime.InferenceSession(model, options)
    np.save(model.with_suffix(".npy"), session.run(None, dict(np.load(model.with_suffix(".npz"))))[0])
    print(*sorted({{part.ep_name for part in session.get_provider_graph_assignment_info()}}))
onnxruntime.unregister_execution_provider_library("library")
print(session.run(None, dict(np.load(model.with_suffix(".npz"))))[0].shape)
"""


@needs_provider
def test_provider_of_a_library_runs_unmodified_models(built: Path, tmp_path: Path) -> None:
    """A library has float32 linear and nearest; cubic is left to onnxruntime, a patched model runs."""
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
    script = _PROVIDER_PROGRAM.format(arguments=[str(tmp_path), str(built)])
    own = "GridSampleExecutionProvider"
    cpu = "CPUExecutionProvider"
    cubic, linear, nearest, fused, shape = python(script)
    assert (linear, nearest, cubic, fused) == (own, own, cpu, cpu)
    assert shape.startswith("(")
    for mode in modes:
        expected = ogs.grid_sample(*feed.values(), mode)
        np.testing.assert_allclose(np.load(tmp_path / f"{mode}.npy"), expected, atol=1e-5)


@needs_provider
@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("cc"),
    reason="the program is built by cc, for Linux",
)
def test_a_program_in_c_runs_an_unmodified_model(built: Path, tmp_path: Path) -> None:
    program(tmp_path, ["cc"])
    assert_program_runs_unmodified(["./run_model"], built, tmp_path)


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
    assert python(script) == ["1"]
