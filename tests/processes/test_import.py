"""Importing the package: what it brings along, what it leaves alone, and what works without onnxruntime-extensions."""

import importlib.metadata
import importlib.util
import os
from pathlib import Path

import pytest

import ort_gridsample as ogs
from ort_gridsample import versions
from ort_gridsample.custom_ops.compiled_ops.registry import unavailable_reason
from ort_gridsample.custom_ops.python_ops import extensions
from support.paths import needs_python_ops
from support.processes import WITHOUT_TORCH, python

#: What importing onnxruntime-extensions, or this package, must not bring along.
HEAVY = ("torch", "transformers", "numba", "matplotlib", "onnxscript", "openvino", "tqdm")
BEGIN = """
import numpy as np, onnx, ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
model = grid_sample_model("float32", "float32", 2, [Attributes()])
feeds = {"X": np.ones((1, 2, 4, 4), np.float32), "grid": np.zeros((1, 3, 3, 2), np.float32)}
"""
OURS = f"{BEGIN}ogs.set_ops('python')\nprint(ogs.InferenceSession(model, nodes='all').run(None, feeds)[0].shape)"
ANSWER = "(1, 2, 3, 3)"


def test_nothing_heavy_is_imported_and_the_environment_is_left_alone(tmp_path: Path) -> None:
    """onnxruntime-extensions imports PyTorch where it is installed, and sets a variable that makes protobuf slow."""
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text("print(__name__, 'is imported')")
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith("PROTOCOL_BUFFERS")
    }
    script = f"""
import os, sys
sys.path.insert(0, {str(tmp_path)!r})
before = dict(os.environ)
import ort_gridsample as ogs
ogs.register()
print([n for n in sys.modules if n.split(".")[0] in {HEAVY}], before == dict(os.environ))
"""
    assert python(script, env=clean) == ["[] True"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("first", [True, False], ids=["torch first", "torch after"])
def test_pytorch_may_be_imported_before_or_after(first: bool) -> None:
    imports = [
        "import torch",
        "import sys, ort_gridsample\nassert 'torch' not in sys.modules or torch",
    ]
    assert python("\n".join([*(imports if first else imports[::-1]), OURS])) == [ANSWER]


@needs_python_ops
def test_onnxruntime_extensions_may_be_imported_before_or_after() -> None:
    """It is the package that it always is, whoever came first, and its ops and ours are in one library."""
    theirs = "import onnxruntime_extensions as ext\nprint(ext.onnx_op is ext.Opdef.declare, ext.OrtPyFunction.__name__)"
    both = ["True OrtPyFunction", ANSWER]
    on_python = {**os.environ, "ORT_GRIDSAMPLE_OPS": "python", "ORT_GRIDSAMPLE_CORE": "numpy"}
    assert python(f"{WITHOUT_TORCH}{theirs}\n{OURS}", on_python) == both
    assert python(f"{WITHOUT_TORCH}{OURS}\n{theirs}", on_python) == both[::-1]


@needs_python_ops
def test_another_thread_may_import_onnxruntime_extensions_meanwhile() -> None:
    """It gets the package that it always is, and both the same module of it."""
    script = f"""{WITHOUT_TORCH}
import os, sys, threading
def theirs():
    import onnxruntime_extensions
    from onnxruntime_extensions import OrtPyFunction
    print(onnxruntime_extensions.get_library_path is sys.modules["onnxruntime_extensions._ocos"].get_library_path)
thread = threading.Thread(target=theirs)
def meanwhile(event, args):
    file = getattr(args[0], "co_filename", "") if event == "exec" else ""
    if file.endswith(os.path.join("onnxruntime_extensions", "_version.py")) and thread.ident is None:
        thread.start()
        thread.join(0.5)
sys.addaudithook(meanwhile)
{OURS}
thread.join()
import onnxruntime_extensions
"""
    assert sorted(python(script)) == [ANSWER, "True"]


def test_only_public_names_are_shown_and_the_version_is_the_installed_one() -> None:
    assert sorted(name for name in dir(ogs) if not name.startswith("__")) == sorted(
        set(ogs.__all__) - {"__version__"}
    )
    assert all(hasattr(ogs, name) for name in ogs.__all__)
    assert ogs.__version__ == importlib.metadata.version("ort-gridsample")


@needs_python_ops
def test_an_older_onnxruntime_extensions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(versions.OLDEST, "onnxruntime-extensions", "99.1")
    with pytest.raises(
        ImportError,
        match=r"Python ops need .* needs onnxruntime-extensions 99\.1 or newer, and .* is installed",
    ):
        extensions.load()


WITHOUT_EXTENSIONS = "import sys\nsys.modules['onnxruntime_extensions'] = None\n"
WITHOUT_NUMBA = "import sys\nsys.modules['numba'] = None\n"
#: A node of strings, in a model and its feeds.
STRINGS = """
texts = grid_sample_model("str", "float32", 2, [Attributes("nearest")])
fed_texts = {"X": np.full((1, 2, 4, 4), "a", object), "grid": feeds["grid"]}
"""
needs_compiled_ops = pytest.mark.skipif(
    bool(unavailable_reason()), reason=f"no compiled ops: {unavailable_reason()}"
)


@needs_compiled_ops
def test_onnxruntime_extensions_are_imported_for_python_ops_only() -> None:
    script = f"""{BEGIN}
def is_imported():
    return any(name.startswith("onnxruntime_extensions") for name in sys.modules)
import onnxruntime
print(ogs.InferenceSession(model, nodes="all").run(None, feeds)[0].shape, is_imported())
compiled = ogs.patch_model(model, target="compiled").SerializeToString()
print(onnxruntime.InferenceSession(compiled, ogs.register()).run(None, feeds)[0].shape, is_imported())
"""
    assert python(script) == [f"{ANSWER} False"] * 2


#: The type of X, the mode and the number of spatial axes; each needs kernels of its own.
SAMPLED = [("float32", "linear", 2), ("float16", "linear", 2), ("uint8", "nearest", 1)]
SLOWLY_SAMPLED = [
    ("bfloat16", "linear", 2),
    ("float64", "cubic", 3),
    ("int64", "linear", 2),
    ("bool", "nearest", 2),
]


@needs_compiled_ops
@pytest.mark.parametrize("target", ["ort_gridsample", "compiled"])
@pytest.mark.parametrize(
    "sampled", [SAMPLED, pytest.param(SLOWLY_SAMPLED, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_without_onnxruntime_extensions_patched_files_run_on_compiled_ops(
    target: str, sampled: list[tuple[str, str, int]]
) -> None:
    """Compiled ops stand in for Python ops; the guard of a Python op and its Casts stay around them."""
    script = f"""{WITHOUT_EXTENSIONS}{BEGIN}
import faults, onnxruntime
from support.models import affine_grid_model
from support.paths import dtype_of, quiet_options, run
def opened(model, file=True):
    if not file:
        return ogs.InferenceSession(model, nodes="all")
    patched = ogs.patch_model(model, target={target!r})
    return onnxruntime.InferenceSession(patched.SerializeToString(), ogs.register(quiet_options()))
rng = np.random.default_rng(0)
for X_type, mode, axes in {sampled!r}:
    if X_type == "bfloat16" and faults.OPSET < 22:
        continue  # this onnxruntime does not read the first opset that has the type
    model = grid_sample_model(X_type, "float32", axes, [Attributes(mode)])
    X = (10 * rng.random((2, 3, *(5, 6, 7)[:axes]))).astype(dtype_of(X_type))
    grid = rng.uniform(-1.2, 1.2, (2, *(3, 4, 5)[:axes], axes)).astype("float32")
    (found,), (expected,) = (run(opened(model, file), X.dtype, X, grid) for file in (True, False))
    close = np.allclose(found.astype("float64"), expected.astype("float64"), atol=1e-6)
    if found.dtype != expected.dtype or not close:
        print(X_type, mode, axes)
theta = rng.random((2, 2, 3)).astype("float32")
affine = run(opened(affine_grid_model("float32", 2, True)), theta.dtype, theta, np.array([2, 1, 4, 5]))[0]
print(np.abs(affine - ogs.affine_grid(theta, (2, 1, 4, 5), True)).max() < 1e-6)
session = opened(grid_sample_model("uint8", "float32", 1, [Attributes("nearest")]))
print(told(session.run, None, {{"X": np.ones((2, 3, 5), "uint8"), "grid": np.zeros((1, 3, 1), "float32")}}))
print(session.get_outputs()[0].shape, "onnxruntime_extensions._ocos" in sys.modules)
"""
    close, refused, shape = python(script)
    assert close == "True"
    assert "GridSample node 'sample0': grid is of shape (1, 3, 1), expected N = 2 first" in refused
    assert shape == "['N', 'C', 'D0_out'] False"


@needs_compiled_ops
def test_without_onnxruntime_extensions_strings_are_refused_with_a_sentence() -> None:
    script = f"""{WITHOUT_EXTENSIONS}{BEGIN}{STRINGS}
import onnxruntime
patched = ogs.patch_model(texts).SerializeToString()
print(ogs.grid_sample(*fed_texts.values(), mode="nearest").shape)
print(told(ogs.InferenceSession, texts))
print(told(lambda: onnxruntime.InferenceSession(patched, ogs.register())))
lowered = ogs.patch_model(texts, target="primitives").SerializeToString()
print(onnxruntime.InferenceSession(lowered).run(None, fed_texts)[0].shape)
"""
    function, session, file, lowered = python(script)
    assert function == lowered == ANSWER
    assert session.startswith(
        "ImportError: GridSample node 'sample0': X is of type str, and string tensors run on Python"
    )
    assert "string tensors run on Python ops only, which need onnxruntime-extensions" in file


@needs_compiled_ops
def test_without_onnxruntime_extensions_attention_runs_in_patched_files() -> None:
    script = f"""{WITHOUT_EXTENSIONS}
import numpy as np, onnx, onnxruntime, test_attention, ort_gridsample as ogs
from ort_gridsample.functions.attention import attend
model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17, "ort_gridsample": 1]>
    g (float[] value, int64[] levels, float[] at, float[] by) => (float[] Y) {{
    unguarded, status = ort_gridsample.DeformableAttention <align_corners = 1, node = "a", num_threads = 0>
        (value, levels, at, by)
    Y = GatherND (unguarded, status) }}''')
levels = LEVELS["planes"]
value, at, by = operands(levels)
session = onnxruntime.InferenceSession(model.SerializeToString(), ogs.register())
feeds = {{"value": value, "levels": levels, "at": at, "by": by}}
expected = attend(value, levels, at, by, True, where="here", num_threads=1)
print(np.abs(session.run(None, feeds)[0] - expected).max() < 1e-5)
print(told(session.run, None, feeds | {{"by": by[:, :, :1]}}))
"""
    close, refused = python(script)
    assert close == "True"
    assert "DeformableAttention node 'a': attention_weights is of shape" in refused


def test_without_ops_all_else_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With neither onnxruntime-extensions nor Numba."""
    script = f"""{WITHOUT_EXTENSIONS}{WITHOUT_NUMBA}
import contextlib, io
{BEGIN}
from ort_gridsample.cli import main
from ort_gridsample.dialects.registry import target_names
print(ogs.grid_sample(*feeds.values()).shape, len(ogs.inspect_model(model)))
for target in target_names():
    for nodes in "all", "unsupported":
        ogs.patch_model(model, target=target, nodes=nodes)
(placement,) = ogs.InferenceSession(model).replaced
lowered = ogs.patch_model(model, target="primitives")
print(placement.runs_on, ogs.InferenceSession(lowered).run(None, feeds)[0].shape)
for ask in ogs.register, lambda: ogs.InferenceSession(model, nodes="all"):
    try:
        ask()
    except ImportError as error:
        print(error.name, "|", error)
def cli(*words):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        status = main(words)
    print(status, said.getvalue().strip())
onnx.save(model, "model.onnx")
cli("inspect", "model.onnx")
cli("patch", "model.onnx", "lowered.onnx", "--target", "primitives")
cli("patch", "model.onnx", "patched.onnx")
for name in "model", "lowered", "patched":
    cli("run", name + ".onnx", "--random")
"""
    monkeypatch.chdir(tmp_path)
    sampled, ran, registered, opened, *commands, refused = python(script)
    assert (sampled, ran) == (f"{ANSWER} 1", f"onnxruntime {ANSWER}")
    assert registered.startswith(
        "onnxruntime_extensions | ort_gridsample has no ops to register: compiled ops cannot be"
    )
    assert opened.startswith(
        "onnxruntime_extensions | Python ops need onnxruntime-extensions (it is not installed)"
    )
    assert all("'primitives'" in said for said in (registered, opened))
    assert commands == ["0 "] * 5
    assert refused.startswith("2 ort-gridsample: ")
    assert "onnxruntime-extensions" in refused
