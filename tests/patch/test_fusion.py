"""Fusion of an AffineGrid into the GridSample that reads its grid."""

import pickle
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ort_gridsample as ogs
from conftest import with_slow
from ort_gridsample.detection.find import find_matches
from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.rewriting.patch import rewrite_selected_nodes
from ort_gridsample.rewriting.targets.compiled_op import FusedOpTarget
from support.cases import ATTRIBUTES, Attributes
from support.compare import about, assert_identical, refusal
from support.fused_models import (
    GridSteps,
    assert_saved_model_can_be_read,
    fused_counts,
    models_with_another_reader,
    needs_compiled_ops,
    open_unfused,
    transformer,
    transformer_feeds,
)
from support.paths import quiet_options

#: Transposes of a grid of any number of axes: coordinates first, and back.
COORDINATES_FIRST: tuple[str, dict[str, object]] = ("Transpose", {"to": "first"})
COORDINATES_LAST: tuple[str, dict[str, object]] = ("Transpose", {"to": "last"})


def cast_to(elem_type: int) -> tuple[str, dict[str, object]]:
    return "Cast", {"to": elem_type}


#: The type of theta, and the nodes between AffineGrid and GridSample.
QUICK_CHAINS: dict[str, tuple[str, GridSteps]] = {
    "nothing": ("FLOAT", ()),
    "Transposes that undo each other": (
        "FLOAT",
        [COORDINATES_FIRST, ("Identity", {}), COORDINATES_LAST],
    ),
    "a narrower grid": ("FLOAT", [cast_to(TensorProto.FLOAT16)]),
    "float64": ("DOUBLE", ()),
}
#: These need more compilations.
SLOW_CHAINS: dict[str, tuple[str, GridSteps]] = {
    "a wider grid": ("FLOAT16", [cast_to(TensorProto.FLOAT)]),
    "float64 and a narrower grid": ("DOUBLE", [cast_to(TensorProto.FLOAT)]),
    "float64 and a bfloat16 grid": ("DOUBLE", [cast_to(TensorProto.BFLOAT16)]),
    "bfloat16": ("BFLOAT16", ()),
}
CHAINS = QUICK_CHAINS | SLOW_CHAINS
UNFUSED_CHAINS: dict[str, GridSteps] = {
    "a Transpose of spatial axes": [("Transpose", {"perm": [0, 2, 1, 3]})],
    "a Transpose without perm": [("Transpose", {})],
    "two Casts": [cast_to(TensorProto.FLOAT16), cast_to(TensorProto.FLOAT)],
    "a Cast to a type of no grid": [cast_to(TensorProto.INT32)],
    "another operator": [("Neg", {})],
    "an Identity of another domain": [("Identity", {"domain": "com.example"})],
}


def steps_for(steps: GridSteps, axes: int) -> GridSteps:
    """Return the steps with the perm of each Transpose for a grid of so many spatial axes."""
    perms = {"first": [0, axes + 1, *range(1, axes + 1)], "last": [0, *range(2, axes + 2), 1]}
    return [
        (op_type, {"perm": perms[str(attributes["to"])]} if op_type == "Transpose" else attributes)
        for op_type, attributes in steps
    ]


@needs_compiled_ops
@pytest.mark.parametrize("chain", QUICK_CHAINS)
def test_fused_model_saved_by_onnxruntime_can_be_read(chain: str, tmp_path: Path) -> None:
    theta_type, steps = CHAINS[chain]
    model = transformer(steps_for(steps, 2), theta_type, grid_align_corners=1)
    feeds = transformer_feeds(theta_type)
    for value in model.graph.input:
        elem_type = value.type.tensor_type.elem_type
        value.type.CopyFrom(helper.make_tensor_type_proto(elem_type, feeds[value.name].shape))
    path = tmp_path / "saved.onnx"
    assert_saved_model_can_be_read(model, feeds, path, "AffineGrid", "GridSample")


@dataclass(frozen=True)
class Sample:
    """Attributes of the GridSample, its number of axes, and align_corners of the AffineGrid."""

    attributes: Attributes
    axes: int
    grid_align_corners: int


def samples_of(chain: str) -> list[Sample]:
    """Return all attributes for the shortest chain, and few linear ones for others.

    Each mode would be compiled for their types.
    """
    linear = [
        attributes
        for attributes in ATTRIBUTES
        if attributes.mode == "linear"
        and (attributes.padding_mode, attributes.align_corners)
        in (("zeros", False), ("border", True))
    ]
    attributes_of_samples = ATTRIBUTES if chain == "nothing" else linear
    axes = (2, 3, 3)
    align_corners = (0, 1, 1, 0)
    return [
        Sample(attributes, axes[i % len(axes)], align_corners[i % len(align_corners)])
        for i, attributes in enumerate(attributes_of_samples)
    ]


@needs_compiled_ops
@with_slow("chain", CHAINS, QUICK_CHAINS)
def test_fused_op_has_the_output_of_two_ops(chain: str) -> None:
    theta_type, steps = CHAINS[chain]
    for sample in samples_of(chain):
        model = transformer(
            steps_for(steps, sample.axes),
            theta_type,
            sample.attributes,
            sample.grid_align_corners,
        )
        session = ogs.InferenceSession(model, quiet_options())
        unfused = open_unfused(model)
        assert fused_counts(session) == [0, 1 + len(steps)]
        for lengths in ((7, 5, 6), (1, 40, 90), (2, 3, 5000), (3, 1, 1)):
            feeds = transformer_feeds(theta_type, sample.axes, lengths)
            with about((sample, lengths)):
                assert_identical(session.run(None, feeds)[0], unfused.run(None, feeds)[0])


@needs_compiled_ops
def test_placement_of_a_fused_affine_grid_names_its_grid_sample() -> None:
    affine, _ = ogs.InferenceSession(transformer(), quiet_options()).placements
    assert affine.runs_on == "compiled op"
    assert affine.reason == "fused into GridSample node 'sample'"


@needs_compiled_ops
def test_fused_op_of_any_number_of_channels_has_the_output_of_two_ops() -> None:
    """X with many channels is packed, and needs coordinates before any thread samples."""
    rng = np.random.default_rng(0)
    model = transformer()
    session = ogs.InferenceSession(model)
    unfused = open_unfused(model)
    for X_shape, lengths in (
        ((2, 37, 20, 20), (60, 70)),
        ((1, 16, 4, 4), (1, 300)),
        ((0, 3, 4, 4), (2, 2)),
        ((2, 3, 4, 4), (0, 5)),
    ):
        feeds = {
            "X": rng.normal(size=X_shape).astype(np.float32),
            "theta": rng.normal(size=(X_shape[0], 2, 3)).astype(np.float32),
            "size": np.array([X_shape[0], 1, *lengths]),
        }
        assert_identical(session.run(None, feeds)[0], unfused.run(None, feeds)[0])


def wrong_feeds() -> list[dict[str, np.ndarray]]:
    feeds = transformer_feeds()
    X = feeds["X"]
    theta = feeds["theta"]
    size = feeds["size"]
    wrong_values = {
        "size": [
            size[:-1],
            size[None],
            -size,
            np.array([3, 3, 5, 6]),
            np.array([2, 1, 1 << 40, 1 << 40]),
        ],
        "theta": [theta[:, :1], theta[0]],
        "X": [X[:1], X[..., None], X[:, :, :, 0], X[0, 0]],
    }
    return [feeds | {name: value} for name, values in wrong_values.items() for value in values]


@needs_compiled_ops
def test_fused_op_of_wrong_inputs_has_the_errors_of_two_ops() -> None:
    model = transformer()
    session = ogs.InferenceSession(model, quiet_options())
    unfused = open_unfused(model)
    for feeds in wrong_feeds():
        error = refusal(session.run, None, feeds)
        with pytest.raises(Exception, match=re.escape(str(error))):
            unfused.run(None, feeds)
    assert session.run(None, transformer_feeds())[0].shape == (2, 3, 5, 6)


@needs_compiled_ops
@pytest.mark.parametrize("target", [None, "compiled"])
@pytest.mark.parametrize("source", ["ModelProto", "bytes", "path"])
def test_fused_session_can_be_pickled(target: str | None, source: str, tmp_path: Path) -> None:
    model = transformer()
    feeds = transformer_feeds()
    expected = open_unfused(model).run(None, feeds)[0]
    if target is not None:
        model = ogs.patch_model(model, target=target)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    sources = {"ModelProto": model, "bytes": model.SerializeToString(), "path": path}
    session = ogs.InferenceSession(sources[source], quiet_options())
    for opened in (session, pickle.loads(pickle.dumps(session))):
        assert set(fused_counts(opened)) == {0, 1}
        assert_identical(opened.run(None, feeds)[0], expected)


def test_compiled_ops_of_a_patched_model_are_fused() -> None:
    model = ogs.patch_model(transformer(), target="compiled")
    assert len(rewrite_selected_nodes(model, FusedOpTarget())[0]) == 2


@needs_compiled_ops
def test_node_that_is_not_chosen_is_not_fused() -> None:
    model = transformer()
    feeds = transformer_feeds()
    session = ogs.InferenceSession(
        model, quiet_options(), nodes=lambda record: record.operator != "AffineGrid"
    )
    assert [
        (placement.record.operator, placement.runs_on, placement.fused)
        for placement in session.placements
    ] == [("GridSample", "compiled op", ()), ("AffineGrid", "onnxruntime", ())]
    (expected,) = open_unfused(model).run(None, feeds)
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, atol=1e-5)


def fused_pairs(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """Return the names of the AffineGrids that are fused, and of the GridSamples that fuse them."""
    return [
        (match.record.name, match.fused_into.record.name)
        for match in find_matches(model, scopes_of(model), None, with_reasons=False)
        if match.fused_into is not None
    ]


@pytest.mark.parametrize("steps", UNFUSED_CHAINS.values(), ids=UNFUSED_CHAINS)
def test_grid_that_nodes_change_is_not_fused(steps: GridSteps) -> None:
    model = transformer(steps)
    assert fused_pairs(model) == []
    assert not any("affine" in record.fused for record in ogs.inspect_model(model))


def test_grid_of_a_single_reader_is_fused() -> None:
    model = transformer([("Identity", {})])
    assert [record.fused for record in ogs.inspect_model(model)] == [(), ("affine", "(g1)")]
    assert fused_pairs(model) == [("affine", "sample")]


@pytest.mark.parametrize("value", ["g0", "g1"])
@pytest.mark.parametrize("reader", ["output", "node", "body", "GridSample"])
def test_grid_with_another_reader_is_not_fused(reader: str, value: str) -> None:
    models = models_with_another_reader(transformer([("Identity", {})]), value)
    assert fused_pairs(models[reader]) == []


def test_grid_that_is_sampled_is_not_fused() -> None:
    model = transformer([("Identity", {})])
    model.graph.node[-1].input[:] = ["g1", "X"]
    assert fused_pairs(model) == []
