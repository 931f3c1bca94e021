"""Importing the package: what it brings along, what it leaves alone, and what works without onnxruntime-extensions."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

import ort_gridsample as ogs
from processes import python

#: A package that says that it was imported.
FAKE = "import pathlib\npathlib.Path({record!r}).write_text('imported')\n"
#: What importing onnxruntime-extensions, or this package, must not bring along.
HEAVY = ("torch", "transformers", "numba", "matplotlib", "onnxscript", "openvino", "tqdm")

RUN = """
from models import grid_sample_model
from cases import Attributes
session = ogs.InferenceSession(grid_sample_model("float32", "float32", 2, [Attributes()]))
print(session.run(None, {"X": np.ones((1, 2, 4, 4), np.float32), "grid": np.zeros((1, 3, 3, 2), np.float32)})[0].shape)
"""


def heavy_packages(folder: Path) -> dict[str, Path]:
    """Packages in ``folder`` that leave a file each when they are imported."""
    records = {name: folder / f"{name} was imported" for name in HEAVY}
    for name, record in records.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(FAKE.format(record=str(record)))
    return records


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    """PyTorch takes a second; onnxruntime-extensions imports it, and transformers, where they are installed."""
    records = heavy_packages(tmp_path)
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport ort_gridsample as ogs\nogs.register()\n"
    assert python(script + "print([n for n in sys.modules if n.split('.')[0] in " + repr(HEAVY) + "])") == ["[]"]
    assert not any(record.exists() for record in records.values())


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("first", [True, False], ids=["torch first", "torch after"])
def test_pytorch_may_be_imported_before_or_after(first: bool) -> None:
    imports = ["import torch", "import ort_gridsample as ogs\nassert 'torch' not in sys.modules or torch"]
    script = "import sys\n" + "\n".join(imports if first else imports[::-1])
    assert python(script + "\nimport numpy as np" + RUN) == ["(1, 2, 3, 3)"]


def test_onnxruntime_extensions_may_be_imported_before_or_after() -> None:
    """It is the package that it always is, whoever came first, and its ops and ours are in one library."""
    theirs = "import onnxruntime_extensions as ext\nprint(ext.onnx_op is ext.Opdef.declare, ext.OrtPyFunction.__name__)"
    ours = "import numpy as np, ort_gridsample as ogs" + RUN
    both = ["True OrtPyFunction", "(1, 2, 3, 3)"]
    hidden = "import sys; sys.modules['torch'] = None\n"
    assert python(f"{hidden}{theirs}\n{ours}") == both
    assert python(f"{hidden}{ours}\n{theirs}") == both[::-1]


def test_the_environment_is_left_alone() -> None:
    """onnxruntime-extensions sets a variable that makes protobuf slow in every process started later."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PROTOCOL_BUFFERS")}
    script = "import os; before = dict(os.environ); import ort_gridsample; print(before == dict(os.environ))"
    assert python(script, env=clean) == ["True"]


def test_only_public_names_are_shown() -> None:
    assert sorted(name for name in dir(ogs) if not name.startswith("__")) == sorted(set(ogs.__all__) - {"__version__"})
    assert all(hasattr(ogs, name) for name in ogs.__all__)


def test_version_is_the_installed_one() -> None:
    assert ogs.__version__ == importlib.metadata.version("ort-gridsample")


WITHOUT = """
import sys
sys.modules["onnxruntime_extensions"] = None
import numpy as np, onnx, onnxruntime, ort_gridsample as ogs
from cases import Attributes
from models import grid_sample_model, make_model
model = grid_sample_model("float32", "float32", 2, [Attributes()])
X, grid = np.ones((1, 2, 4, 4), np.float32), np.zeros((1, 3, 3, 2), np.float32)
"""


def test_without_onnxruntime_extensions_all_but_the_ops_work() -> None:
    lines = python(
        WITHOUT
        + """
from ort_gridsample.model.patch import targets
print(ogs.grid_sample(X, grid).shape, len(ogs.inspect_model(model)))
for target in targets():
    for nodes in "all", "unsupported":
        ogs.patch_model(model, target=target, nodes=nodes)
lowered = ogs.patch_model(model, target="primitives")
(placement,) = ogs.InferenceSession(model).replaced
print(placement.runs_on)
print(ogs.InferenceSession(lowered).run(None, {"X": X, "grid": grid})[0].shape)
"""
    )
    assert lines == ["(1, 2, 3, 3) 1", "onnxruntime", "(1, 2, 3, 3)"]


@pytest.mark.parametrize("asked", ["ogs.register()", "ogs.InferenceSession(model, nodes='all')"])
def test_without_onnxruntime_extensions_the_ops_say_what_is_missing(asked: str) -> None:
    (said,) = python(f"{WITHOUT}\ntry:\n    {asked}\nexcept ImportError as error:\n    print(error.name, '|', error)")
    assert said.startswith("onnxruntime_extensions | ort_gridsample's ops need onnxruntime-extensions")
    assert "pip install onnxruntime-extensions" in said
    assert "primitives" in said


def test_without_onnxruntime_extensions_the_command_line_does_its_share(tmp_path: Path) -> None:
    script = f"""
import os
onnx.save(model, {str(tmp_path / "model.onnx")!r})
from ort_gridsample.cli import main
print(main(["inspect", {str(tmp_path / "model.onnx")!r}]))
for target in "ort_gridsample", "primitives":
    print(main(["patch", {str(tmp_path / "model.onnx")!r}, {str(tmp_path / "patched.onnx")!r}, "--target", target]))
sys.stderr = sys.stdout
main(["patch", {str(tmp_path / "model.onnx")!r}, {str(tmp_path / "patched.onnx")!r}])
for name in "model.onnx", "patched.onnx":
    print(main(["run", os.path.join({str(tmp_path)!r}, name), "--random"]))
"""
    lines = python(WITHOUT + script)
    assert [line for line in lines if line.isdigit()] == ["0", "0", "0", "0", "2"]
    assert "pip install onnxruntime-extensions" in lines[-2]
