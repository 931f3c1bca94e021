"""AffineGrid and GridSample in one: found where nothing else reads the grid, with the two ops' answers bit for bit."""

import pickle
import re
from itertools import cycle
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ort_gridsample as ogs
from conftest import with_slow
from ort_gridsample.detection.find import find
from ort_gridsample.graph.scope import scopes
from ort_gridsample.rewriting.patch import patch_in_place
from ort_gridsample.rewriting.targets.compiled_op import FusedOp
from support.cases import ATTRIBUTES
from support.compare import about, assert_identical, refusal
from support.fused_models import (
    Between,
    assert_read_back,
    compiled,
    feed,
    fused,
    readers,
    transformer,
    two_ops,
)
from support.paths import quiet_options

#: The orders of a Transpose that moves the coordinates, for any number of axes.
FIRST, LAST = {"to": "first"}, {"to": "last"}
#: Of the types that theta and the grid may have, what is between.
CHAINS: dict[str, tuple[str, Between]] = {
    "nothing": ("FLOAT", ()),
    "Transposes that undo each other": (
        "FLOAT",
        [("Transpose", FIRST), ("Identity", {}), ("Transpose", LAST)],
    ),
    "a narrower grid": ("FLOAT", [("Cast", {"to": TensorProto.FLOAT16})]),
    "float64": ("DOUBLE", ()),
    "a wider grid": ("FLOAT16", [("Cast", {"to": TensorProto.FLOAT})]),
    "float64 and a narrower grid": ("DOUBLE", [("Cast", {"to": TensorProto.FLOAT})]),
    "float64 and a grid of halves": ("DOUBLE", [("Cast", {"to": TensorProto.BFLOAT16})]),
    "bfloat16": ("BFLOAT16", ()),
}
NOT_FOUND: dict[str, Between] = {
    "Transposes that leave another order": [("Transpose", {"perm": [0, 2, 1, 3]})],
    "a Transpose that does not say its order": [("Transpose", {})],
    "two Casts": [("Cast", {"to": TensorProto.FLOAT16}), ("Cast", {"to": TensorProto.FLOAT})],
    "a Cast to a type that no grid has": [("Cast", {"to": TensorProto.INT32})],
    "another operator": [("Neg", {})],
    "another domain": [("Identity", {"domain": "com.example"})],
}


def in_axes(between: Between, r: int) -> Between:
    orders = {"first": [0, r + 1, *range(1, r + 1)], "last": [0, *range(2, r + 2), 1]}
    return [(op, {"perm": orders[str(a["to"])]} if op == "Transpose" else a) for op, a in between]


@compiled
@pytest.mark.parametrize("chain", list(CHAINS)[:4])
def test_a_model_that_a_session_saved_is_read_back(chain: str, tmp_path: Path) -> None:
    theta, between = CHAINS[chain]
    model, feeds = transformer(in_axes(between, 2), theta, grid_corners=1), feed(theta)
    for value in model.graph.input:
        elem_type, shape = value.type.tensor_type.elem_type, feeds[value.name].shape
        value.type.CopyFrom(helper.make_tensor_type_proto(elem_type, shape))
    assert_read_back(model, feeds, tmp_path / "saved.onnx", "AffineGrid", "GridSample")


@compiled
@with_slow("chain", CHAINS, list(CHAINS)[:4])  # the others are compiled anew
def test_is_the_two_ops_bit_for_bit(chain: str) -> None:
    theta, said = CHAINS[chain]
    several = (
        ATTRIBUTES if chain == "nothing" else ATTRIBUTES[6:12:3]
    )  # linear alone: each mode would be compiled
    for attributes, r, corners in zip(several, cycle((2, 3, 3)), cycle((0, 1, 1, 0)), strict=False):
        model = transformer(in_axes(said, r), theta, attributes, corners)
        session, expected = ogs.InferenceSession(model, quiet_options()), two_ops(model)
        assert fused(session) == [0, 1 + len(said)]
        affine, _ = session.replaced
        assert (affine.runs_on, affine.reason) == (
            "compiled op",
            "fused into GridSample node 'sample'",
        )
        for out in ((7, 5, 6), (1, 40, 90), (2, 3, 5000), (3, 1, 1)):
            fed = feed(theta, r, out)
            with about((attributes, r, corners, out)):
                assert_identical(session.run(None, fed)[0], expected.run(None, fed)[0])


@compiled
def test_whatever_the_number_of_channels_and_threads() -> None:
    """X laid out in rows asks for coordinates before any lane works."""
    model, rng = transformer(), np.random.default_rng(0)
    session, expected = ogs.InferenceSession(model), two_ops(model)
    shapes = [
        ((2, 37, 20, 20), (60, 70)),
        ((1, 16, 4, 4), (1, 300)),
        ((0, 3, 4, 4), (2, 2)),
        ((2, 3, 4, 4), (0, 5)),
    ]
    for shape, out in shapes:
        X, theta = (rng.normal(size=each).astype(np.float32) for each in (shape, (shape[0], 2, 3)))
        fed = {"X": X, "theta": theta, "size": np.array([shape[0], 1, *out])}
        assert_identical(session.run(None, fed)[0], expected.run(None, fed)[0])


@compiled
def test_wrong_inputs_are_told_as_by_the_two_ops() -> None:
    model, good = transformer(), feed()
    session, expected = ogs.InferenceSession(model, quiet_options()), two_ops(model)
    X, theta, size = good.values()
    sizes = [
        size[:-1],
        size[None],
        -size,
        np.array([3, 3, 5, 6]),
        np.array([2, 1, 1 << 40, 1 << 40]),
    ]
    wrong = {
        "size": sizes,
        "theta": [theta[:, :1], theta[0]],
        "X": [X[:1], X[..., None], X[:, :, :, 0], X[0, 0]],
    }
    for change in ({name: value} for name, values in wrong.items() for value in values):
        with pytest.raises(
            Exception, match=re.escape(str(refusal(session.run, None, good | change)))
        ):
            expected.run(None, good | change)
    assert session.run(None, good)[0].shape == (2, 3, 5, 6)


@compiled
def test_is_pickled_and_opened_again(tmp_path: Path) -> None:
    model, fed = transformer(), feed()
    expected = two_ops(model).run(None, fed)[0]
    paths = {
        tmp_path / "model.onnx": model,
        tmp_path / "patched.onnx": ogs.patch_model(model, target="compiled"),
    }
    for path, each in paths.items():
        onnx.save(each, path)
    for given in (model, model.SerializeToString(), *paths):
        session = ogs.InferenceSession(given, quiet_options())
        for each in (session, pickle.loads(pickle.dumps(session))):
            assert {*fused(each)} == {0, 1}
            assert_identical(each.run(None, fed)[0], expected)
    assert len(patch_in_place(paths[tmp_path / "patched.onnx"], FusedOp())[0]) == 2


@compiled
def test_nodes_can_decline_it() -> None:
    model, fed = transformer(), feed()
    session = ogs.InferenceSession(
        model, quiet_options(), nodes=lambda record: record.operator != "AffineGrid"
    )
    placed = [("GridSample", "compiled op", ()), ("AffineGrid", "onnxruntime", ())]
    assert [(each.record.operator, each.runs_on, each.fused) for each in session.replaced] == placed
    np.testing.assert_allclose(
        session.run(None, fed)[0], two_ops(model).run(None, fed)[0], atol=1e-5
    )


def found(model: onnx.ModelProto) -> list[tuple[str, str]]:
    matches = find(model, scopes(model), None, asked=False)
    return [
        (each.record.name, each.fused_into.record.name)
        for each in matches
        if each.fused_into is not None
    ]


@pytest.mark.parametrize("between", NOT_FOUND.values(), ids=NOT_FOUND)
def test_what_changes_the_grid_is_left_alone(between: Between) -> None:
    model = transformer(between)
    assert found(model) == []
    assert not any("affine" in record.fused for record in ogs.inspect_model(model))


def test_a_grid_that_somebody_else_reads_is_left_alone() -> None:
    alone = transformer([("Identity", {})])
    assert [record.fused for record in ogs.inspect_model(alone)] == [(), ("affine", "(g1)")]
    assert found(alone) == [("affine", "sample")]
    for name in ("g0", "g1"):
        for model in readers(alone, name):
            assert found(model) == [], name
    alone.graph.node[-1].input[:] = ["g1", "X"]
    assert found(alone) == []
