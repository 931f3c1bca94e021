"""Models that PyTorch exported from published architectures, and the scripts that export them."""

import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ort_gridsample as ogs
from support import faults
from support.exported_models import (
    EXPORTED_FOLDER,
    EXPORTED_MODELS,
    MAX_QUICK_BYTES,
    WITHOUT_NATIVE_KERNELS,
    Arrays,
    run_stored_inputs,
    stored_arrays,
)
from support.graphs import all_nodes
from support.models import PRIMITIVES
from support.parameters import with_slow
from support.paths import provider_options
from support.ways import way_param

OPTIONS = {"disabled_optimizers": ["MatmulTransposeFusion"]} if faults.FUSED_WITHOUT_KERNEL else {}
RUNNABLE_MODELS = [path for path in EXPORTED_MODELS if path.stem not in WITHOUT_NATIVE_KERNELS]
Operators = Counter[tuple[str, str]]


def sampling_operators(model: onnx.ModelProto) -> Operators:
    """Count the GridSample and AffineGrid nodes by domain and operator."""
    return Counter(
        (node.domain, node.op_type)
        for node in all_nodes(model)
        if node.op_type in ogs.spec.OPERATORS
    )


def assert_close(outputs: Arrays, expected_outputs: Arrays, tolerance: float = 1e-5) -> None:
    """Check each output, relative to its largest magnitude: libraries sum in different orders."""
    assert outputs.keys() == expected_outputs.keys()
    for name, expected in expected_outputs.items():
        assert outputs[name].dtype == expected.dtype
        is_finite = np.isfinite(expected)  # logits of padding are -inf
        scale = float(np.abs(expected[is_finite]).max())
        assert scale > 0
        np.testing.assert_allclose(
            outputs[name], expected, rtol=0, atol=tolerance * scale, err_msg=name
        )


def test_exported_models_have_every_opset_operator_and_body() -> None:
    models = [onnx.load(path) for path in EXPORTED_MODELS]
    opsets = {
        entry.version for model in models for entry in model.opset_import if entry.domain == ""
    }
    operators = {operator for model in models for operator in sampling_operators(model)}
    op_types = {node.op_type for model in models for node in model.graph.node}
    functions = [function for model in models for function in model.functions]
    assert opsets >= {16, 18, 20, 22}
    assert operators == {("", "GridSample"), ("", "AffineGrid")}
    assert op_types >= {"If", "Loop", "Scan"}
    assert sampling_operators(onnx.ModelProto(functions=functions))


@pytest.mark.parametrize("name", WITHOUT_NATIVE_KERNELS)
def test_onnxruntime_has_no_kernels_for_a_model(name: str) -> None:
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.NotImplemented):
        ort.InferenceSession(EXPORTED_FOLDER / f"{name}.onnx")


@pytest.mark.parametrize("path", RUNNABLE_MODELS, ids=lambda path: path.stem)
def test_onnxruntime_has_the_outputs_of_pytorch(path: Path) -> None:
    faults.skip_unread(onnx.load(path))
    outputs = run_stored_inputs(ort.InferenceSession(path), path)
    assert_close(outputs, stored_arrays(path, "out."))


# The other models compile kernels for float64 grids, which no other test of the default run needs.
every_exported_model = with_slow(
    "path", EXPORTED_MODELS, RUNNABLE_MODELS, ids=lambda path: path.stem
)


def expected_outputs_of(path: Path) -> Arrays:
    """Return the outputs of onnxruntime, or of PyTorch if onnxruntime has no kernels."""
    if path.stem in WITHOUT_NATIVE_KERNELS:
        return stored_arrays(path, "out.")
    return run_stored_inputs(ort.InferenceSession(path), path)


def open_exported(path: Path) -> ort.InferenceSession:
    return ogs.InferenceSession(path, **OPTIONS)


def open_patched(path: Path) -> ort.InferenceSession:
    with tempfile.TemporaryDirectory() as folder:
        patched_path = Path(folder) / "patched.onnx"
        onnx.save(ogs.patch_model(path), patched_path)
        return ort.InferenceSession(patched_path, ogs.register(), **OPTIONS)


def open_lowered(path: Path, functions: bool) -> ort.InferenceSession:
    """Lower a model; check its operators."""
    model = onnx.load(path)
    lowered = ogs.patch_model(model, target="primitives", functions=functions)
    onnx.checker.check_model(lowered)
    added = operators_of(lowered) - operators_of(model)
    domains = {"", "ort_gridsample.primitives"} if functions else {""}
    assert {domain for domain, _ in added} <= domains
    assert {op_type for domain, op_type in added if domain == ""} <= PRIMITIVES
    assert not sampling_operators(lowered)
    return ort.InferenceSession(lowered.SerializeToString(), **OPTIONS)


def operators_of(model: onnx.ModelProto) -> set[tuple[str, str]]:
    return {(node.domain, node.op_type) for node in all_nodes(model)}


def open_on_provider(path: Path) -> ort.InferenceSession:
    """Open the unmodified file; check that all of its sampling nodes run on the provider."""
    session = ort.InferenceSession(path, provider_options())
    providers = {
        subgraph.ep_name
        for subgraph in session.get_provider_graph_assignment_info()
        for node in subgraph.get_nodes()
        if node.op_type in ogs.spec.OPERATORS
    }
    assert providers == {ogs.register_provider()}
    return session


#: The name of a way -> how it opens a file, and the largest error.
DELIVERIES: dict[str, tuple[Callable[[Path], ort.InferenceSession], float]] = {
    "session": (open_exported, 1e-5),
    "patched file": (open_patched, 1e-5),
    "provider": (open_on_provider, 3e-5),
    "primitives": (partial(open_lowered, functions=False), 2e-5),
    "functions": (partial(open_lowered, functions=True), 2e-5),
}


def cells() -> Iterator[Any]:
    """Yield each model with each way. Every other model is lowered to functions, to save time."""
    for (index, path), way in product(enumerate(EXPORTED_MODELS), DELIVERIES):
        if way == ("functions" if index % 2 else "primitives"):
            continue
        is_slow = path not in RUNNABLE_MODELS
        if way not in ("session", "patched file"):
            is_slow = path.stat().st_size > MAX_QUICK_BYTES
        yield way_param(path, way=way, marks=[pytest.mark.slow] if is_slow else [], id=path.stem)


@pytest.mark.parametrize(("path", "way"), [*cells()])
def test_exported_model_has_the_outputs_of_onnxruntime_in_every_way(path: Path, way: str) -> None:
    faults.skip_unread(onnx.load(path))
    open_file, tolerance = DELIVERIES[way]
    assert_close(run_stored_inputs(open_file(path), path), expected_outputs_of(path), tolerance)


@every_exported_model
def test_patch_replaces_all_sampling_nodes_of_an_exported_model(path: Path) -> None:
    faults.skip_unread(onnx.load(path))
    patched = ogs.patch_model(path)
    onnx.checker.check_model(patched)
    expected: Operators = Counter()
    for (_, op_type), count in sampling_operators(onnx.load(path)).items():
        expected["ort_gridsample", op_type] += count
    for record in ogs.inspect_model(path):
        if record.decomposed and record.fused == ():
            expected["ort_gridsample", record.operator] += 1
    assert sampling_operators(patched) == expected


REQUIREMENTS = dict(
    re.findall(
        r"^([\w-]+)==(\S+)$", (EXPORTED_FOLDER / "requirements.txt").read_text(), re.MULTILINE
    )
)


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip a test unless the packages of the requirements are installed."""
    versions = {
        distribution.name: distribution.version.partition("+")[0]
        for distribution in metadata.distributions()
    }
    missing = [
        f"{package}=={REQUIREMENTS[package]}"
        for package in packages
        if versions.get(package) != REQUIREMENTS[package]
    ]
    return pytest.mark.skipif(bool(missing), reason=f"the script needs {', '.join(missing)}")


def wiring(model: onnx.ModelProto) -> list[tuple[object, ...]]:
    """Return nodes with their inputs, outputs and attributes.

    Floats and tensors are left out, because processors round them differently.
    """
    return [
        (
            node.domain,
            node.op_type,
            node.name,
            list(node.input),
            list(node.output),
            *((a.name, a.type, a.i, a.s, *a.ints) for a in node.attribute),
        )
        for node in all_nodes(model)
    ]


def imports_of(model: onnx.ModelProto) -> dict[str, int]:
    return {entry.domain: entry.version for entry in model.opset_import}


def run_script(name: str, into: Path) -> None:
    command = [sys.executable, str(EXPORTED_FOLDER / name), "--into", str(into)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs(*REQUIREMENTS)
def test_export_script_makes_the_stored_models(tmp_path: Path) -> None:
    run_script("export.py", tmp_path)
    paths = sorted(tmp_path.glob("*.onnx"))
    assert [path.name for path in paths] == [path.name for path in EXPORTED_MODELS]
    for path, stored_path in zip(paths, EXPORTED_MODELS, strict=True):
        model = onnx.load(path)
        stored_model = onnx.load(stored_path)
        assert imports_of(model) == imports_of(stored_model), path.stem
        assert wiring(model) == wiring(stored_model), path.stem
        assert_close(stored_arrays(path, ""), stored_arrays(stored_path, ""))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["decomposed", "attention", "fusion"])
@needs("torch", "onnxscript")
def test_export_script_makes_the_stored_archive(name: str, tmp_path: Path) -> None:
    run_script(f"{name}.py", tmp_path / "made.zip")
    with (
        zipfile.ZipFile(tmp_path / "made.zip") as archive,
        zipfile.ZipFile(EXPORTED_FOLDER / f"{name}.zip") as stored_archive,
    ):
        assert archive.namelist() == stored_archive.namelist()
        for form in archive.namelist():
            model = onnx.load_from_string(archive.read(form))
            stored_model = onnx.load_from_string(stored_archive.read(form))
            assert wiring(model) == wiring(stored_model), form
