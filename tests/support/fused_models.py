"""Spatial transformers, and comparisons of fused with separate operators."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

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

#: Operators and attributes of the nodes between an AffineGrid and a GridSample.
GridSteps = Sequence[tuple[str, dict[str, object]]]

needs_compiled_ops = pytest.mark.skipif(
    bool(registry.unavailable_reason()),
    reason=f"no compiled ops: {registry.unavailable_reason()}",
)


def transformer(
    steps: GridSteps = (),
    theta_type: str = "FLOAT",
    attributes: Attributes = ATTRIBUTES[0],
    grid_align_corners: int = 0,
) -> onnx.ModelProto:
    """Return the model theta → Cast → AffineGrid → ``steps`` → GridSample, without shapes.

    The input theta is float64 if ``theta_type`` is DOUBLE, else float32.
    """
    input_type = "double" if theta_type == "DOUBLE" else "float"
    opset = 22 if theta_type == "BFLOAT16" else faults.OPSET
    signature = f"transformer (float X, {input_type} theta, int64 size) => (float Y)"
    cast = f"t = Cast <to = {TensorProto.DataType.Value(theta_type)}> (theta)"
    model = parsed(f"{signature} {{ {cast} }}", opset)
    model.graph.node.append(
        helper.make_node(
            "AffineGrid", ["t", "size"], ["g0"], "affine", align_corners=grid_align_corners
        )
    )
    for i, (op_type, step_attributes) in enumerate(steps):
        model.graph.node.append(
            helper.make_node(op_type, [f"g{i}"], [f"g{i + 1}"], **step_attributes)
        )
    grid = f"g{len(steps)}"
    model.graph.node.append(
        helper.make_node("GridSample", ["X", grid], ["Y"], "sample", **asdict(attributes))
    )
    faults.skip_unread(model)
    return loose(model)


def transformer_feeds(
    theta_type: str = "FLOAT", axes: int = 2, lengths: Sequence[int] = (7, 5, 6)
) -> dict[str, np.ndarray]:
    """Return X, theta and size of a :func:`transformer`.

    Args:
        theta_type: as of the model.
        axes: the number of spatial axes, 2 or 3.
        lengths: three lengths of the grid, of which the last ``axes`` are used.
    """
    rng = np.random.default_rng(axes)
    X = rng.normal(size=(2, 3, *(4, 9, 8)[-axes:])).astype(np.float32)
    theta = rng.normal(size=(2, axes, axes + 1))
    theta = theta.astype(np.float64 if theta_type == "DOUBLE" else np.float32)
    return {"X": X, "theta": theta, "size": np.array([2, 3, *lengths[-axes:]])}


def open_unfused(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return onnxruntime's session of the model with one compiled op for each sampling node."""
    patched = ogs.patch_model(model, target="compiled").SerializeToString()
    return onnxruntime.InferenceSession(patched, ogs.register(quiet_options()))


def saved_by_session(model: onnx.ModelProto, path: Path, nodes: Any = None) -> onnx.ModelProto:
    """Return the model that onnxruntime saves at ``path`` for a session of ``model``."""
    options = quiet_options()
    options.optimized_model_filepath = str(path)
    ogs.InferenceSession(model, options, nodes=nodes)
    return onnx.load(path)


def assert_saved_model_can_be_read(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], path: Path, *operators: str
) -> None:
    """Check that the model that onnxruntime saves of a session can be inspected, run and lowered.

    Args:
        model: the model of the session.
        feeds: inputs of the model.
        path: where onnxruntime saves its model.
        operators: the operators of the records of the saved model.
    """
    options = quiet_options()
    options.optimized_model_filepath = str(path)
    (expected,) = ogs.InferenceSession(model, options).run(None, feeds)
    saved = onnx.load(path)
    before = saved.SerializeToString(deterministic=True)
    assert [record.operator for record in ogs.inspect_model(saved)] == [*operators]

    session = ogs.InferenceSession(path, quiet_options())
    assert {placement.runs_on for placement in session.placements} == {"compiled op"}
    assert_identical(session.run(None, feeds)[0], expected)

    lowered = ogs.patch_model(saved, target="primitives")
    assert {node.domain for node in lowered.graph.node} <= {"", "ai.onnx"}
    for other in (open_session(saved), open_native(lowered)):
        np.testing.assert_allclose(other.run(None, feeds)[0], expected, rtol=1e-3, atol=1e-3)
    assert saved.SerializeToString(deterministic=True) == before


def models_with_another_reader(model: onnx.ModelProto, name: str) -> dict[str, onnx.ModelProto]:
    """Return copies of a model in which something else reads ``name`` too, by the reader."""
    body = parser.parse_graph(f"body () => (float n) {{ n = Neg ({name}) }}")
    readers = {
        "node": helper.make_node("Neg", [name], ["read"]),
        "body": helper.make_node("If", ["yes"], ["read"], then_branch=body, else_branch=body),
        "GridSample": helper.make_node("GridSample", [name, "grid"], ["read"]),
    }
    models = {"output": onnx.ModelProto.FromString(model.SerializeToString())}
    models["output"].graph.output.append(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    )
    for reader, node in readers.items():
        models[reader] = onnx.ModelProto.FromString(model.SerializeToString())
        models[reader].graph.node.append(node)
    return models
