"""Models that onnxruntime cannot run, quantized with sessions of this package and patched last."""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import ort_gridsample as ogs
from ort_gridsample.session import quantization
from support import grid_forms
from support.attention_models import FORMS, form, form_feeds
from support.exported_models import EXPORTED_FOLDER, stored_arrays

PLAIN = onnxruntime.InferenceSession
#: Sampling nodes that onnxruntime has no kernel for: the number of spatial axes, and the text.
NODES = {
    "mmcv": (2, "mmcv.grid_sampler <interpolation_mode = 0, padding_mode = 0, align_corners = 0>"),
    "cubic volume": (3, 'GridSample <mode = "cubic">'),
}
STANDARD = 'GridSample <mode = "linear">'


def network(axes: int, sampling_node: str) -> onnx.ModelProto:
    """Return a model of a convolution, a grid that is scaled, and a sampling node."""
    X_lengths = ",".join(["8"] * axes)
    Y_lengths = ",".join(["4"] * axes)
    pads = ",".join(["1"] * (2 * axes))
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 20, "mmcv": 1]>
        g (float[1,3,{X_lengths}] X, float[1,{Y_lengths},{axes}] T)
        => (float[1,4,{Y_lengths}] Y) {{
            A = Conv <pads = [{pads}]> (X, W)
            G = Mul (T, S)
            Z = {sampling_node} (A, G)
            Y = Relu (Z) }}""")
    weights = np.random.default_rng(1).standard_normal((4, 3, *[3] * axes), np.float32)
    scales = np.full(axes, 0.9, np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "W"))
    model.graph.initializer.append(numpy_helper.from_array(scales, "S"))
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
    return model


def feeds_for(axes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {
        "X": rng.standard_normal((1, 3, *[8] * axes), np.float32),
        "T": rng.uniform(-1, 1, (1, *[4] * axes, axes)).astype(np.float32),
    }


def reader_of(feeds: dict[str, np.ndarray]) -> SimpleNamespace:
    """Return a reader of calibration data that has one input."""
    return SimpleNamespace(get_next=chain([feeds], repeat(None)).__next__)


def quantize(
    folder: Path, model: onnx.ModelProto, axes: int, form: str, preprocess: bool
) -> onnx.ModelProto:
    """Quantize all nodes but those that compute coordinates, by onnxruntime."""
    path = str(folder / "model.onnx")
    onnx.save(model, path)
    if preprocess:
        preprocessed_path = str(folder / "preprocessed.onnx")
        quant_pre_process(path, preprocessed_path, skip_symbolic_shape=True)
        path = preprocessed_path
    excluded = ogs.coordinate_nodes(path)
    assert excluded
    output_path = str(folder / "quantized.onnx")
    quantize_static(
        path,
        output_path,
        reader_of(feeds_for(axes)),
        quant_format=QuantFormat[form],
        nodes_to_exclude=excluded,
    )
    return onnx.load(output_path)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantization logs a lot at the root."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.WARNING)


@pytest.fixture(autouse=True)
def _class_is_restored() -> Iterator[None]:
    """Check that onnxruntime has its own class after the test."""
    yield
    assert onnxruntime.InferenceSession is PLAIN


@pytest.mark.parametrize("preprocess", [False, True], ids=["plain", "preprocessed"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("node", NODES)
def test_quantized_model_is_patched_last_to_any_target(
    node: str, form: str, preprocess: bool, tmp_path: Path
) -> None:
    axes, text = NODES[node]
    model = network(axes, text)
    feeds = feeds_for(axes)
    with ogs.quantization_sessions():
        quantized = quantize(tmp_path, model, axes, form, preprocess)
    op_types = {node.op_type for node in quantized.graph.node}
    assert {"QLinearConv", "DequantizeLinear"} & op_types
    (expected,) = ogs.InferenceSession(model).run(None, feeds)
    (output,) = ogs.InferenceSession(quantized).run(None, feeds)
    assert 0 < np.abs(output - expected).max() < 0.1 * np.abs(expected).max()
    lowered = ogs.patch_model(quantized, target="primitives")
    (output_of_lowered,) = PLAIN(lowered.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(output_of_lowered, output, atol=1e-4)


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_quantization_has_the_outputs_of_plain_onnxruntime(form: str, tmp_path: Path) -> None:
    """The same network with a node that onnxruntime runs is quantized by onnxruntime alone."""
    with ogs.quantization_sessions():
        quantized = quantize(tmp_path, network(2, NODES["mmcv"][1]), 2, form, False)
    plain = quantize(tmp_path, network(2, STANDARD), 2, form, False)
    (expected,) = PLAIN(plain.SerializeToString()).run(None, feeds_for(2))
    (output,) = ogs.InferenceSession(quantized).run(None, feeds_for(2))
    np.testing.assert_allclose(output, expected, atol=1e-5)


def attentions_in(session: ogs.InferenceSession) -> int:
    """Return the number of deformable attentions that are one op."""
    return sum(
        placement.record.operator == "DeformableAttention" for placement in session.placements
    )


@pytest.mark.parametrize("preprocess", [False, True], ids=["plain", "preprocessed"])
@pytest.mark.parametrize("format", ["QDQ", "QOperator"])
@pytest.mark.parametrize("name", [name for name in FORMS if "queries" not in name])
def test_attention_of_a_quantized_model_is_one_op(
    name: str, format: str, preprocess: bool, tmp_path: Path
) -> None:
    feeds = form_feeds(name)
    path = tmp_path / "model.onnx"
    onnx.save(form(name), path)
    if preprocess:
        with ogs.quantization_sessions():
            quant_pre_process(path, tmp_path / "prepared.onnx", skip_symbolic_shape=True)
        path = tmp_path / "prepared.onnx"
    counts = []
    for attention in (True, False):
        quantize_static(
            path,
            tmp_path / "quantized.onnx",
            reader_of(feeds),
            quant_format=QuantFormat[format],
            nodes_to_exclude=ogs.coordinate_nodes(path, attention=attention),
        )
        session = ogs.InferenceSession(tmp_path / "quantized.onnx")
        counts.append(attentions_in(session))
        (expected,) = ogs.InferenceSession(form(name)).run(None, feeds)
        (output,) = session.run(None, feeds)
        assert np.linalg.norm(output - expected) < 0.03 * np.linalg.norm(expected)
    assert counts == [1, 0]


@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("method", ["QDQ", "dynamic"])
@pytest.mark.parametrize("in_context", [False, True], ids=["onnxruntime", "quantization_sessions"])
@pytest.mark.parametrize(("name", "attentions"), [("deformable_detr", 3), ("rt_detr_v2", 2)])
def test_attention_of_a_quantized_detector_is_one_op(
    name: str, attentions: int, in_context: bool, method: str, per_channel: bool, tmp_path: Path
) -> None:
    source = EXPORTED_FOLDER / f"{name}.onnx"
    prepared = tmp_path / "prepared.onnx"
    quantized = tmp_path / "quantized.onnx"
    with ogs.quantization_sessions() if in_context else nullcontext():
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        options = {
            "per_channel": per_channel,
            "nodes_to_exclude": ogs.coordinate_nodes(prepared),
        }
        feeds = stored_arrays(source, "in.")
        if method == "dynamic":
            quantize_dynamic(prepared, quantized, **options)
        else:
            quantize_static(prepared, quantized, reader_of(feeds), **options)
    session = ogs.InferenceSession(quantized)
    assert attentions_in(session) == attentions
    (logits, *_) = session.run(None, feeds)
    expected = stored_arrays(source, "out.")["logits"]
    assert 1e-3 < np.linalg.norm(logits - expected) / np.linalg.norm(expected) < 0.25


@pytest.mark.parametrize("name", ["deformable_detr", "grounding_dino"])
def test_model_prepared_in_the_context_has_standard_operators(name: str, tmp_path: Path) -> None:
    """Quantization needs the types that onnx infers behind them."""
    source = EXPORTED_FOLDER / f"{name}.onnx"
    prepared = tmp_path / "prepared.onnx"
    with ogs.quantization_sessions():
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
    model = onnx.load(prepared)
    assert {node.domain for node in model.graph.node} == {""}
    feeds = stored_arrays(source, "in.")
    session = ogs.InferenceSession(prepared)
    assert attentions_in(session) == 3
    names = [output.name for output in session.get_outputs()]
    for output_name, output in zip(names, session.run(None, feeds), strict=True):
        expected = stored_arrays(source, "out.")[output_name]
        np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-4)


def test_model_too_old_for_standard_operators_is_prepared_with_ops_of_the_package(
    tmp_path: Path,
) -> None:
    model = network(2, NODES["mmcv"][1])
    model.opset_import[0].version = 13
    onnx.save(model, tmp_path / "model.onnx")
    prepared = tmp_path / "prepared.onnx"
    with ogs.quantization_sessions():
        quant_pre_process(tmp_path / "model.onnx", prepared, skip_symbolic_shape=True)
    opsets = {entry.domain: entry.version for entry in onnx.load(prepared).opset_import}
    assert opsets[""] == 13
    expected = ogs.InferenceSession(model).run(None, feeds_for(2))
    np.testing.assert_allclose(
        ogs.InferenceSession(prepared).run(None, feeds_for(2)), expected, rtol=1e-5
    )


@pytest.mark.parametrize(
    "name", ["affine, nothing, aligned", "flow, float32, linear-reflection-aligned, known lengths"]
)
def test_model_with_a_computed_grid_that_is_saved_in_the_context_has_standard_operators(
    name: str, tmp_path: Path
) -> None:
    grid_form = grid_forms.form_of(name)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    with ogs.quantization_sessions():
        session = ogs.InferenceSession(grid_form.model, options)
    assert not any(placement.fused for placement in session.placements)
    saved = onnx.load(tmp_path / "saved.onnx")
    assert {node.domain for node in saved.graph.node} <= {"", "ai.onnx"}
    grid_form.assert_outputs(ogs.InferenceSession(saved).run(None, grid_form.feeds))


def test_model_saved_outside_of_the_context_keeps_its_ops(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    ogs.InferenceSession(network(3, NODES["cubic volume"][1]), options)
    domains = {node.domain for node in onnx.load(tmp_path / "saved.onnx").graph.node}
    assert any(domain.startswith("ort_gridsample") or "contrib" in domain for domain in domains)


def test_quantization_without_the_context_fails(tmp_path: Path) -> None:
    axes, text = NODES["mmcv"]
    with pytest.raises(Exception, match="grid_sampler"):
        quantize(tmp_path, network(axes, text), axes, "QDQ", False)


def test_quantization_sessions_restores_the_class_after_an_error() -> None:
    def fail() -> None:
        with ogs.quantization_sessions():
            assert onnxruntime.InferenceSession is ogs.InferenceSession
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert onnxruntime.InferenceSession is PLAIN


def test_quantization_sessions_in_two_threads_ends_with_the_last() -> None:
    entered = threading.Event()
    leave = threading.Event()

    def hold() -> None:
        with ogs.quantization_sessions():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    with ogs.quantization_sessions():
        pass
    assert onnxruntime.InferenceSession is ogs.InferenceSession
    leave.set()
    thread.join()
    assert onnxruntime.InferenceSession is PLAIN


def test_quantization_sessions_replaces_the_class_in_modules_of_quantization() -> None:
    module = sys.modules["onnxruntime.quantization.quant_utils"]
    with ogs.quantization_sessions():
        assert module.InferenceSession is ogs.InferenceSession
    assert module.InferenceSession is PLAIN


class _ImportingName(str):
    """A name of a module. Another module is imported whenever its beginning is tested."""

    def startswith(self, *args: str) -> bool:
        sys.modules[f"imported meanwhile {len(sys.modules)}"] = threading
        return super().startswith(*args)


def test_quantization_sessions_while_modules_are_imported_replaces_the_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    sys.modules[_ImportingName("importing")] = threading
    with ogs.quantization_sessions():
        assert onnxruntime.InferenceSession is ogs.InferenceSession
    assert onnxruntime.InferenceSession is PLAIN


def test_quantization_sessions_after_a_failed_entry_restores_the_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(quantization, "_replace", Mock(side_effect=[MemoryError, None]))
        with pytest.raises(MemoryError), ogs.quantization_sessions():
            pass
    with ogs.quantization_sessions():
        pass
    assert onnxruntime.InferenceSession is PLAIN
