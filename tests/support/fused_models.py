"""Spatial transformers, and comparisons of fused with separate operators."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops import registry
from support import faults
from support.cases import ATTRIBUTES, Attributes
from support.compare import assert_identical
from support.models import loose, parsed
from support.paths import open_native, open_session, quiet_options

Between = Sequence[tuple[str, dict[str, object]]]


UNAVAILABLE = registry.unavailable_reason()


compiled = pytest.mark.skipif(bool(UNAVAILABLE), reason=f"no compiled ops: {UNAVAILABLE}")


def transformer(
    between: Between = (),
    theta: str = "FLOAT",
    attributes: Attributes = ATTRIBUTES[0],
    grid_corners: int = 0,
) -> onnx.ModelProto:
    """The model theta → AffineGrid → ``between`` → GridSample; halves go in and out as float32."""
    kind = "double" if theta == "DOUBLE" else "float"
    opset = 22 if theta == "BFLOAT16" else faults.OPSET
    cast = f"t = Cast <to = {TensorProto.DataType.Value(theta)}> (theta)"
    model = parsed(
        f"transformer (float X, {kind} theta, int64 size) => (float Y) {{ {cast} }}", opset
    )
    nodes = [
        helper.make_node("AffineGrid", ["t", "size"], ["g0"], "affine", align_corners=grid_corners)
    ]
    nodes += [
        helper.make_node(op, [f"g{i}"], [f"g{i + 1}"], **said)
        for i, (op, said) in enumerate(between)
    ]
    nodes += [
        helper.make_node(
            "GridSample", ["X", f"g{len(between)}"], ["Y"], "sample", **asdict(attributes)
        )
    ]
    model.graph.node.extend(nodes)
    faults.skip_unread(model)
    return loose(model)


def feed(theta: str = "FLOAT", r: int = 2, out: Sequence[int] = (7, 5, 6)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(r)
    X, matrix = (
        rng.normal(size=(2, 3, *(4, 9, 8)[3 - r :])).astype(np.float32),
        rng.normal(size=(2, r, r + 1)),
    )
    typed = matrix.astype(np.float64 if theta == "DOUBLE" else np.float32)
    return {"X": X, "theta": typed, "size": np.array([2, 3, *out[3 - r :]])}


def two_ops(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    patched = ogs.patch_model(model, target="compiled").SerializeToString()
    return onnxruntime.InferenceSession(patched, ogs.register(quiet_options()))


def assert_read_back(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], path: Path, *operators: str
) -> None:
    """What onnxruntime saves of a session's model runs in a session, and is patched, as the model itself."""
    options, answers = quiet_options(), list[np.ndarray]()
    options.optimized_model_filepath = str(path)
    answers += ogs.InferenceSession(model, options).run(None, feeds)
    saved = onnx.load(path)
    before = saved.SerializeToString(deterministic=True)
    assert [record.operator for record in ogs.inspect_model(saved)] == [*operators]
    again = ogs.InferenceSession(path, quiet_options())
    assert {placement.runs_on for placement in again.replaced} == {"compiled op"}
    assert_identical(again.run(None, feeds)[0], answers[0])
    lowered = ogs.patch_model(saved, target="primitives")
    assert {node.domain for node in lowered.graph.node} <= {"", "ai.onnx"}
    for session in (open_session(saved), open_native(lowered)):
        np.testing.assert_allclose(session.run(None, feeds)[0], answers[0], rtol=1e-3, atol=1e-3)
    assert saved.SerializeToString(deterministic=True) == before


def fused(session: ogs.InferenceSession) -> list[int]:
    return [len(placement.fused) for placement in session.replaced]


def readers(model: onnx.ModelProto, name: str) -> list[onnx.ModelProto]:
    """Models in which somebody else reads the value ``name``: the caller, a node, a graph, another GridSample."""
    output, reader, body, other = (
        onnx.ModelProto.FromString(model.SerializeToString()) for _ in range(4)
    )
    output.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    reader.graph.node.append(helper.make_node("Neg", [name], ["elsewhere"]))
    inner = parser.parse_graph(f"body () => (float n) {{ n = Neg ({name}) }}")
    body.graph.node.append(
        helper.make_node("If", ["yes"], ["elsewhere"], then_branch=inner, else_branch=inner)
    )
    other.graph.node.append(helper.make_node("GridSample", [name, "grid"], ["elsewhere"]))
    return [output, reader, body, other]
