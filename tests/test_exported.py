"""Models that PyTorch exported from published architectures (see exported/export.py), patched against native."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import faults
import ort_gridsample as ogs

FOLDER = Path(__file__).parent / "exported"
MODELS = sorted(FOLDER.glob("*.onnx"))
# What onnxruntime's own kernels cannot run; PyTorch's stored answer stands in for theirs.
REFUSED = {
    "grounding_dino": "float32 image, float64 grid",
    "kornia_warp_perspective_float64": "float64 has no kernel at opset 16",
}
OPS = ("GridSample", "AffineGrid")
OPTIONS = {"disabled_optimizers": ["MatmulTransposeFusion"]} if faults.FUSED_WITHOUT_KERNEL else {}

Arrays = dict[str, np.ndarray]


def nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes(attribute.g)


def count(model: onnx.ModelProto) -> Counter[tuple[str, str]]:
    """How many GridSample and AffineGrid nodes of each domain the model holds, at any depth and in functions."""
    every = (node for graph in (model.graph, *model.functions) for node in nodes(graph))
    return Counter((node.domain, node.op_type) for node in every if node.op_type in OPS)


def stored(path: Path, prefix: str) -> Arrays:
    with np.load(path.with_suffix(".npz")) as data:
        return {name.removeprefix(prefix): data[name] for name in data.files if name.startswith(prefix)}


def run(session: ort.InferenceSession, path: Path) -> Arrays:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, stored(path, "in.")), strict=True))


def assert_close(actual: Arrays, expected: Arrays, tolerance: float) -> None:
    """Every output, to `tolerance` of its own largest magnitude."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype
        scale = float(np.abs(value[np.isfinite(value)]).max())  # logits of padding are -inf, and must be so in both
        assert scale > 0
        np.testing.assert_allclose(actual[name], value, rtol=0, atol=tolerance * scale, err_msg=name)


@pytest.fixture(scope="module", params=MODELS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(scope="module")
def reference(path: Path) -> Arrays:
    """The answer of onnxruntime's own kernels to the file as it is, or PyTorch's where they refuse it."""
    return stored(path, "out.") if path.stem in REFUSED else run(ort.InferenceSession(path), path)


def test_every_kind_of_model_is_here() -> None:
    models = [onnx.load(path) for path in MODELS]
    opsets = {entry.version for model in models for entry in model.opset_import if entry.domain == ""}
    assert opsets >= {16, 18, 20, 22}
    assert sum((count(model) for model in models), Counter()).keys() == {("", "GridSample"), ("", "AffineGrid")}
    outer = {node.op_type for model in models for node in model.graph.node}
    assert outer >= {"If", "Loop", "Scan"}
    assert any(count(onnx.ModelProto(functions=model.functions)) for model in models)


@pytest.mark.parametrize("name", [path.stem for path in MODELS if path.stem not in REFUSED])
def test_native_agrees_with_pytorch(name: str) -> None:
    # Two libraries sum convolutions and attention in different orders: 1e-5 covers the deepest model.
    path = FOLDER / f"{name}.onnx"
    assert_close(run(ort.InferenceSession(path), path), stored(path, "out."), 1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_native_refuses(name: str) -> None:
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.NotImplemented):
        ort.InferenceSession(FOLDER / f"{name}.onnx")


def test_session_agrees(path: Path, reference: Arrays) -> None:
    assert_close(run(ogs.InferenceSession(path, **OPTIONS), path), reference, 1e-5)


def test_patched_file_agrees(path: Path, reference: Arrays, tmp_path: Path) -> None:
    unrolled = Counter(("ort_gridsample", record.operator) for record in ogs.inspect_model(path) if record.unrolled)
    patched = ogs.patch_model(path)
    nodes = Counter({("ort_gridsample", op): n for (_, op), n in count(onnx.load(path)).items()})
    assert count(patched) == nodes + unrolled
    onnx.checker.check_model(patched)
    onnx.save(patched, tmp_path / "patched.onnx")
    session = ort.InferenceSession(tmp_path / "patched.onnx", ogs.register(), **OPTIONS)
    assert_close(run(session, path), reference, 1e-5)
