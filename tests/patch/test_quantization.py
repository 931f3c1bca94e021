"""Models that onnxruntime cannot run are quantized with this package's sessions, and patched last."""

import logging
import sys
import threading
from collections.abc import Iterator
from itertools import chain, product, repeat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import ort_gridsample as ogs

PLAIN = onnxruntime.InferenceSession
HEAD = '<ir_version: 9, opset_import: ["": 20, "mmcv": 1]> g (float[1,3,{s}] X, float[1,{g},{r}] T) => (float[1,4,{g}] Y)'
#: The sampling nodes that onnxruntime has no kernel for: rank, and their text.
NODES = {
    "mmcv": (2, "mmcv.grid_sampler <interpolation_mode = 0, padding_mode = 0, align_corners = 0>"),
    "cubic volume": (3, 'GridSample <mode = "cubic">'),
}
STANDARD = 'GridSample <mode = "linear">'


def network(rank: int, node: str) -> onnx.ModelProto:
    """A convolution, a grid that is scaled, and a sampling node."""
    text = HEAD.format(s=",".join("8" * rank), g=",".join("4" * rank), r=rank)
    pads = ",".join("1" * 2 * rank)
    body = f"A = Conv <pads = [{pads}]> (X, W) G = Mul (T, S) Z = {node} (A, G) Y = Relu (Z)"
    model = onnx.parser.parse_model(f"{text} {{ {body} }}")
    rng = np.random.default_rng(1)
    W, S = rng.standard_normal((4, 3, *[3] * rank), np.float32), np.full(rank, 0.9, np.float32)
    model.graph.initializer.extend(
        [numpy_helper.from_array(W, "W"), numpy_helper.from_array(S, "S")]
    )
    for number, each in enumerate(model.graph.node):
        each.name = f"node{number}"
    return model


def feeds_for(rank: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {
        "X": rng.standard_normal((1, 3, *[8] * rank), np.float32),
        "T": rng.uniform(-1, 1, (1, *[4] * rank, rank)).astype(np.float32),
    }


def quantized(
    folder: Path, model: onnx.ModelProto, rank: int, form: str, preprocess: bool
) -> onnx.ModelProto:
    path, output = str(folder / "model.onnx"), str(folder / "quantized.onnx")
    onnx.save(model, path)
    if preprocess:
        quant_pre_process(path, prepared := str(folder / "prepared.onnx"), skip_symbolic_shape=True)
        path = prepared
    reader = SimpleNamespace(get_next=chain([feeds_for(rank)], repeat(None)).__next__)
    excluded = ogs.coordinate_nodes(path)
    assert excluded
    quantize_static(path, output, reader, quant_format=QuantFormat[form], nodes_to_exclude=excluded)
    return onnx.load(output)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantization logs a lot at the root."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.WARNING)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    assert onnxruntime.InferenceSession is PLAIN


CASES = [*product(NODES, ["QDQ", "QOperator"], [False, True])]


@pytest.mark.parametrize(("node", "form", "preprocess"), CASES)
def test_quantized_model_is_patched_last_to_any_target(
    node: str, form: str, preprocess: bool, tmp_path: Path
) -> None:
    rank, text = NODES[node]
    model, feeds = network(rank, text), feeds_for(rank)
    with ogs.quantization_sessions():
        converted = quantized(tmp_path, model, rank, form, preprocess)
    assert {"QLinearConv", "DequantizeLinear"} & {each.op_type for each in converted.graph.node}
    (expected,) = ogs.InferenceSession(model).run(None, feeds)
    (output,) = ogs.InferenceSession(converted).run(None, feeds)
    assert 0 < np.abs(output - expected).max() < 0.1 * np.abs(expected).max()
    lowered = ogs.patch_model(converted, target="primitives")
    (of_primitives,) = PLAIN(lowered.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(of_primitives, output, atol=1e-4)


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_quantization_has_the_outputs_of_plain_onnxruntime(form: str, tmp_path: Path) -> None:
    """The same network with a node that onnxruntime runs is quantized by onnxruntime alone."""
    with ogs.quantization_sessions():
        ours = quantized(tmp_path, network(2, NODES["mmcv"][1]), 2, form, False)
    plain = quantized(tmp_path, network(2, STANDARD), 2, form, False)
    (expected,) = PLAIN(plain.SerializeToString()).run(None, feeds_for(2))
    (output,) = ogs.InferenceSession(ours).run(None, feeds_for(2))
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_quantization_without_the_context_fails(tmp_path: Path) -> None:
    rank, text = NODES["mmcv"]
    with pytest.raises(Exception, match="grid_sampler"):
        quantized(tmp_path, network(rank, text), rank, "QDQ", False)


def test_quantization_sessions_restores_the_class_after_an_error() -> None:
    def fail() -> None:
        with ogs.quantization_sessions():
            assert onnxruntime.InferenceSession is ogs.InferenceSession
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert onnxruntime.InferenceSession is PLAIN


def test_quantization_sessions_in_two_threads_ends_with_the_last() -> None:
    entered, leave = threading.Event(), threading.Event()

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
