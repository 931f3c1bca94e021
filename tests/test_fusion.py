"""AffineGrid and GridSample in one: found where nothing else reads the grid, with the two ops' answers bit for bit."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ort_gridsample as ogs
from cases import ATTRIBUTES, Attributes
from compare import assert_identical
from ort_gridsample.model.fusion import pairs
from ort_gridsample.model.graphs import scopes
from ort_gridsample.runtime import choice
from paths import quiet_options


def attributes_of(attributes: Attributes) -> dict[str, object]:
    return {**asdict(attributes), "align_corners": int(attributes.align_corners)}


Between = Sequence[tuple[str, dict[str, object]]]

compiled = pytest.mark.skipif(bool(choice.ops.why_not()), reason=f"no compiled ops: {choice.ops.why_not()}")

#: Of the types that theta and the grid may have, what is between.
CHAINS: dict[str, tuple[str, Between]] = {
    "nothing": ("FLOAT", ()),
    "an Identity": ("FLOAT", [("Identity", {})]),
    "Transposes that undo each other": (
        "FLOAT",
        [("Transpose", {"to": "first"}), ("Identity", {}), ("Transpose", {"to": "last"})],
    ),
    "a narrower grid": ("FLOAT", [("Cast", {"to": TensorProto.FLOAT16})]),
    "a wider grid": ("FLOAT16", [("Cast", {"to": TensorProto.FLOAT})]),
    "float64": ("DOUBLE", ()),
    "float64 and a narrower grid": ("DOUBLE", [("Cast", {"to": TensorProto.FLOAT})]),
    "float64 and a grid of halves": ("DOUBLE", [("Cast", {"to": TensorProto.BFLOAT16})]),
    "bfloat16": ("BFLOAT16", ()),
}
NOT_FOUND: dict[str, Between] = {
    "Transposes that leave another order": [("Transpose", {"perm": [0, 2, 1, 3]})],
    "two Casts": [("Cast", {"to": TensorProto.FLOAT16}), ("Cast", {"to": TensorProto.FLOAT})],
    "another operator": [("Neg", {})],
}


def transformer(
    between: Between = (),
    theta: str = "FLOAT",
    attributes: Attributes = ATTRIBUTES[0],
    r: int = 2,
    grid_corners: int = 0,
) -> onnx.ModelProto:
    """The model theta → AffineGrid → ``between`` → GridSample; halves go in and out as float32."""
    halves = theta in ("FLOAT16", "BFLOAT16")
    nodes = [helper.make_node("Cast", ["theta"], ["t"], to=TensorProto.DataType.Value(theta))] if halves else []
    nodes.append(
        helper.make_node(
            "AffineGrid", ["t" if halves else "theta", "size"], ["g0"], "affine", align_corners=grid_corners
        )
    )
    for i, (op_type, said) in enumerate(between):
        nodes.append(helper.make_node(op_type, [f"g{i}"], [f"g{i + 1}"], **said))
    nodes.append(
        helper.make_node("GridSample", ["X", f"g{len(between)}"], ["Y"], "sample", **attributes_of(attributes))
    )
    kind = TensorProto.DOUBLE if theta == "DOUBLE" else TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("X", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("theta", kind, None),
        helper.make_tensor_value_info("size", TensorProto.INT64, None),
    ]
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "transformer", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def feed(theta: str = "FLOAT", r: int = 2, out: Sequence[int] = (7, 5, 6)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(r)
    return {
        "X": rng.normal(size=(2, 3, *(4, 9, 8)[3 - r :])).astype(np.float32),
        "theta": rng.normal(size=(2, r, r + 1)).astype(np.float64 if theta == "DOUBLE" else np.float32),
        "size": np.array([2, 3, *out[3 - r :]]),
    }


def two_ops(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session of the compiled ops, one for each node."""
    patched = ogs.patch_model(model, target="compiled").SerializeToString()
    return onnxruntime.InferenceSession(patched, ogs.register(quiet_options()))


def within(session: ogs.InferenceSession) -> list[str]:
    return [placement.within for placement in session.replaced]


@compiled
@pytest.mark.parametrize("r", [2, 3])
@pytest.mark.parametrize("chain", CHAINS)
def test_is_the_two_ops_bit_for_bit(chain, r):
    theta, between = CHAINS[chain]
    orders = {"first": [0, r + 1, *range(1, r + 1)], "last": [0, *range(2, r + 2), 1]}
    between = [(op, {"perm": orders[str(said["to"])]} if op == "Transpose" else said) for op, said in between]
    for attributes in ATTRIBUTES if chain == "nothing" else ATTRIBUTES[::5]:
        for corners in (0, 1):
            model = transformer(between, theta, attributes, r, corners)
            session, expected = ogs.InferenceSession(model), two_ops(model)
            assert within(session) == ["sample", ""]
            assert str(session.replaced[0]).endswith(": compiled op (one with GridSample node 'sample')")
            for out in ((7, 5, 6), (1, 40, 90), (2, 3, 5000), (3, 1, 1)):
                fed = feed(theta, r, out)
                assert_identical(session.run(None, fed)[0], expected.run(None, fed)[0])


@compiled
def test_whatever_the_number_of_channels_and_threads():
    """X laid out in rows asks for coordinates before any lane works."""
    model, rng = transformer(), np.random.default_rng(0)
    session, expected = ogs.InferenceSession(model), two_ops(model)
    for shape, out in (
        ((2, 37, 20, 20), (60, 70)),
        ((1, 16, 4, 4), (1, 300)),
        ((0, 3, 4, 4), (2, 2)),
        ((2, 3, 4, 4), (0, 5)),
    ):
        fed = {
            "X": rng.normal(size=shape).astype(np.float32),
            "theta": rng.normal(size=(shape[0], 2, 3)).astype(np.float32),
            "size": np.array([shape[0], 1, *out]),
        }
        assert_identical(session.run(None, fed)[0], expected.run(None, fed)[0])


@compiled
def test_wrong_inputs_are_told_as_by_the_two_ops():
    model, good = transformer(), feed()
    session, expected = ogs.InferenceSession(model, quiet_options()), two_ops(model)
    wrong = [
        {"size": good["size"][:-1]},
        {"size": good["size"][None]},
        {"size": -good["size"]},
        {"size": np.array([3, 3, 5, 6])},
        {"size": np.array([2, 1, 1 << 40, 1 << 40])},
        {"theta": good["theta"][:, :1]},
        {"theta": good["theta"][0]},
        {"X": good["X"][:1]},
        {"X": good["X"][..., None]},
        {"X": good["X"][:, :, :, 0]},
        {"X": good["X"][0, 0]},
    ]
    for change in wrong:
        with pytest.raises(ogs.GridSampleError) as told:
            session.run(None, good | change)
        with pytest.raises(Exception, match="node '") as twice:
            expected.run(None, good | change)
        assert str(told.value) in str(twice.value)
    assert session.run(None, good)[0].shape == (2, 3, 5, 6)


@compiled
def test_is_pickled_and_opened_again(tmp_path):
    model, fed = transformer(), feed()
    expected = two_ops(model).run(None, fed)[0]
    onnx.save(ogs.patch_model(model, target="compiled"), tmp_path / "patched.onnx")
    onnx.save(model, tmp_path / "model.onnx")
    for given in (model, model.SerializeToString(), tmp_path / "model.onnx", tmp_path / "patched.onnx"):
        session = ogs.InferenceSession(given)
        for each in (session, pickle.loads(pickle.dumps(session))):
            assert "sample" in within(each)
            assert_identical(each.run(None, fed)[0], expected)


@compiled
def test_nodes_can_decline_it():
    model, fed = transformer(), feed()
    session = ogs.InferenceSession(model, nodes=lambda record: record.operator != "AffineGrid")
    assert [placement.runs_on for placement in session.replaced] == ["onnxruntime", "compiled op"] or set(
        within(session)
    ) == {""}
    np.testing.assert_allclose(session.run(None, fed)[0], two_ops(model).run(None, fed)[0], atol=1e-5)


def found(model: onnx.ModelProto) -> list[tuple[str, str]]:
    return [
        (scope.container.node[pair.affine].name, scope.container.node[pair.sample].name)
        for scope in scopes(model)
        for pair in pairs(scope, ())
    ]


def test_inspect_says_so():
    affine, sample = ogs.inspect_model(transformer([("Identity", {})]))
    assert (affine.feeds, sample.feeds) == ("sample", "")


@pytest.mark.parametrize("between", NOT_FOUND.values(), ids=NOT_FOUND)
def test_what_changes_the_grid_is_left_alone(between):
    assert found(transformer(between)) == []
    assert {record.feeds for record in ogs.inspect_model(transformer(between))} == {""}


def test_a_grid_that_somebody_else_reads_is_left_alone():
    assert found(transformer()) == [("affine", "sample")]
    output, reader, body, other = (transformer([("Identity", {})]) for _ in range(4))
    output.graph.output.append(helper.make_tensor_value_info("g0", TensorProto.FLOAT, None))
    reader.graph.node.append(helper.make_node("Neg", ["g1"], ["elsewhere"]))
    inner = helper.make_graph(
        [helper.make_node("Neg", ["g0"], ["n"])],
        "body",
        [],
        [helper.make_tensor_value_info("n", TensorProto.FLOAT, None)],
    )
    body.graph.node.append(helper.make_node("If", ["yes"], ["elsewhere"], then_branch=inner, else_branch=inner))
    other.graph.node[-1].input[0], other.graph.node[-1].input[1] = other.graph.node[-1].input[1], "X"
    for model in (output, reader, body, other):
        assert found(model) == []
