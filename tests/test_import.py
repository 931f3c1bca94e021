"""Importing the package: what it brings along, what it leaves alone, and what works without onnxruntime-extensions."""

import importlib.metadata
import importlib.util
import os
from pathlib import Path

import pytest

import ort_gridsample as ogs
from ort_gridsample import versions
from ort_gridsample.runtime import extensions
from processes import WITHOUT_TORCH, python

#: What importing onnxruntime-extensions, or this package, must not bring along.
HEAVY = ("torch", "transformers", "numba", "matplotlib", "onnxscript", "openvino", "tqdm")
BEGIN = """
import numpy as np, onnx, ort_gridsample as ogs
from cases import Attributes
from models import grid_sample_model
model = grid_sample_model("float32", "float32", 2, [Attributes()])
feeds = {"X": np.ones((1, 2, 4, 4), np.float32), "grid": np.zeros((1, 3, 3, 2), np.float32)}
"""
OURS = f"{BEGIN}print(ogs.InferenceSession(model, nodes='all').run(None, feeds)[0].shape)"
ANSWER = "(1, 2, 3, 3)"


def test_nothing_heavy_is_imported_and_the_environment_is_left_alone(tmp_path: Path) -> None:
    """onnxruntime-extensions imports PyTorch where it is installed, and sets a variable that makes protobuf slow."""
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text("print(__name__, 'is imported')")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PROTOCOL_BUFFERS")}
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
    imports = ["import torch", "import sys, ort_gridsample\nassert 'torch' not in sys.modules or torch"]
    assert python("\n".join([*(imports if first else imports[::-1]), OURS])) == [ANSWER]


def test_onnxruntime_extensions_may_be_imported_before_or_after() -> None:
    """It is the package that it always is, whoever came first, and its ops and ours are in one library."""
    theirs = "import onnxruntime_extensions as ext\nprint(ext.onnx_op is ext.Opdef.declare, ext.OrtPyFunction.__name__)"
    both = ["True OrtPyFunction", ANSWER]
    on_python = {**os.environ, "ORT_GRIDSAMPLE_OPS": "python", "ORT_GRIDSAMPLE_CORE": "numpy"}
    assert python(f"{WITHOUT_TORCH}{theirs}\n{OURS}", on_python) == both
    assert python(f"{WITHOUT_TORCH}{OURS}\n{theirs}", on_python) == both[::-1]


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
    assert sorted(name for name in dir(ogs) if not name.startswith("__")) == sorted(set(ogs.__all__) - {"__version__"})
    assert all(hasattr(ogs, name) for name in ogs.__all__)
    assert ogs.__version__ == importlib.metadata.version("ort-gridsample")


def test_an_older_onnxruntime_extensions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(versions.OLDEST, "onnxruntime-extensions", "99.1")
    with pytest.raises(
        ImportError, match=r"ops need .* needs onnxruntime-extensions 99\.1 or newer, and .* is installed"
    ):
        extensions.load()


def test_without_onnxruntime_extensions_all_but_the_ops_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"""
import contextlib, io, sys
sys.modules["onnxruntime_extensions"] = None
{BEGIN}
from ort_gridsample.cli import main
from ort_gridsample.model.patch import targets
ogs.set_core("numpy")
print(ogs.grid_sample(*feeds.values()).shape, len(ogs.inspect_model(model)))
for target in targets():
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
    for said in (registered, opened):
        assert said.startswith("onnxruntime_extensions | ort_gridsample's ops need onnxruntime-extensions")
        assert "primitives" in said
    assert commands == ["0 "] * 5
    assert refused.startswith("2 ort-gridsample: ")
    assert all("pip install onnxruntime-extensions" in said for said in (registered, opened, refused))
