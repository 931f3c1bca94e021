"""Models that PyTorch exported from published architectures, patched against native, and the scripts that export."""

import re
import subprocess
import sys
import zipfile
from collections import Counter
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ort_gridsample as ogs
from conftest import with_slow
from support import faults
from support.exported_models import FOLDER, MODELS, REFUSED, Arrays, run, stored
from support.graphs import nodes

OPTIONS = {"disabled_optimizers": ["MatmulTransposeFusion"]} if faults.FUSED_WITHOUT_KERNEL else {}


def count(model: onnx.ModelProto) -> Counter[tuple[str, str]]:
    """How many GridSample and AffineGrid nodes of each domain the model holds, at any depth and in functions."""
    return Counter(
        (node.domain, node.op_type) for node in nodes(model) if node.op_type in ogs.spec.OPERATORS
    )


def assert_close(actual: Arrays, expected: Arrays) -> None:
    """Every output, to 1e-5 of its own largest magnitude: two libraries sum in different orders."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype
        scale = float(
            np.abs(value[np.isfinite(value)]).max()
        )  # logits of padding are -inf, and must be so in both
        assert scale > 0
        np.testing.assert_allclose(actual[name], value, rtol=0, atol=1e-5 * scale, err_msg=name)


def test_every_kind_of_model_is_here() -> None:
    models = [onnx.load(path) for path in MODELS]
    opsets = {
        entry.version for model in models for entry in model.opset_import if entry.domain == ""
    }
    assert opsets >= {16, 18, 20, 22}
    assert sum((count(model) for model in models), Counter()).keys() == {
        ("", "GridSample"),
        ("", "AffineGrid"),
    }
    assert {node.op_type for model in models for node in model.graph.node} >= {"If", "Loop", "Scan"}
    assert any(count(onnx.ModelProto(functions=model.functions)) for model in models)


@pytest.mark.parametrize("name", REFUSED)
def test_native_refuses(name: str) -> None:
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.NotImplemented):
        ort.InferenceSession(FOLDER / f"{name}.onnx")


# Those that onnxruntime refuses compile kernels for float64 grids, which no other test of the default run needs.
@with_slow(
    "path",
    MODELS,
    [path for path in MODELS if path.stem not in REFUSED],
    ids=lambda path: path.stem,
)
def test_session_and_patched_file_agree(path: Path, tmp_path: Path) -> None:
    """With onnxruntime's own kernels, and these with PyTorch."""
    faults.skip_unread(onnx.load(path))
    reference = answers = stored(path, "out.")
    if path.stem not in REFUSED:
        reference = run(ort.InferenceSession(path), path)
        assert_close(reference, answers)
    assert_close(run(ogs.InferenceSession(path, **OPTIONS), path), reference)
    patched = ogs.patch_model(path)
    own = Counter({("ort_gridsample", op): n for (_, op), n in count(onnx.load(path)).items()})
    unrolled = (each for each in ogs.inspect_model(path) if each.unrolled and each.fused == ())
    own.update(("ort_gridsample", record.operator) for record in unrolled)
    assert count(patched) == own
    onnx.checker.check_model(patched)
    onnx.save(patched, tmp_path / "patched.onnx")
    assert_close(
        run(ort.InferenceSession(tmp_path / "patched.onnx", ogs.register(), **OPTIONS), path),
        reference,
    )


NEEDED = dict(
    re.findall(r"^([\w-]+)==(\S+)$", (FOLDER / "requirements.txt").read_text(), re.MULTILINE)
)


def needs(*needed: str) -> pytest.MarkDecorator:
    there = {each.name: each.version.partition("+")[0] for each in metadata.distributions()}
    missing = [f"{each}=={NEEDED[each]}" for each in needed if there.get(each) != NEEDED[each]]
    return pytest.mark.skipif(bool(missing), reason=f"the script needs {', '.join(missing)}")


def wiring(model: onnx.ModelProto) -> list[tuple[object, ...]]:
    """What each node is and how it is wired, at any depth; not the numbers, which processors round differently."""
    return [
        (
            node.domain,
            node.op_type,
            node.name,
            *([*names] for names in (node.input, node.output)),
            *said,
        )
        for node in nodes(model)
        for said in [
            [(each.name, each.type, each.i, each.s, *each.ints) for each in node.attribute]
        ]
    ]


def run_script(name: str, into: Path) -> None:
    command = [sys.executable, str(FOLDER / name), "--into", str(into)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs(*NEEDED)
def test_the_script_makes_what_is_stored(tmp_path: Path) -> None:
    run_script("export.py", tmp_path)
    assert [path.name for path in sorted(tmp_path.glob("*.onnx"))] == [path.name for path in MODELS]
    for path in MODELS:
        a, b = onnx.load(tmp_path / path.name), onnx.load(path)
        assert {e.domain: e.version for e in a.opset_import} == {
            e.domain: e.version for e in b.opset_import
        }, path.stem
        assert wiring(a) == wiring(b), path.stem
        assert_close(stored(tmp_path / path.name, ""), stored(path, ""))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["unrolled", "attention"])
@needs("torch", "onnxscript")
def test_the_script_makes_the_stored_archive(name: str, tmp_path: Path) -> None:
    run_script(f"{name}.py", tmp_path / "again.zip")
    with (
        zipfile.ZipFile(tmp_path / "again.zip") as again,
        zipfile.ZipFile(FOLDER / f"{name}.zip") as stored,
    ):
        assert again.namelist() == stored.namelist()
        for form in stored.namelist():
            made, there = (onnx.load_from_string(archive.read(form)) for archive in (again, stored))
            assert wiring(made) == wiring(there), form
