"""Models that onnxruntime cannot run, quantized with sessions of this package and patched last."""

import logging
import sys
import threading
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import ort_gridsample as ogs
from ort_gridsample.session import quantization

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
    reader = SimpleNamespace(get_next=chain([feeds_for(axes)], repeat(None)).__next__)
    excluded = ogs.coordinate_nodes(path)
    assert excluded
    output_path = str(folder / "quantized.onnx")
    quantize_static(
        path,
        output_path,
        reader,
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
