"""What a session and the execution provider fuse in the same models.

Both search with the same code. The session searches the model as it was exported, and the provider
the graph that onnxruntime has optimized. Each difference is a row of :data:`DIFFERENCES`.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import onnxruntime
import pytest

from ort_gridsample import versions
from support.cases import Attributes
from support.exported_models import EXPORTED_FOLDER, EXPORTED_MODELS
from support.fusion_lists import fused_by_provider, fused_by_session
from support.models import grid_sample_model, parsed
from support.paths import needs_provider, open_native, open_provider

#: The release whose optimizations the rows describe.
RELEASE = "1.32"
pytestmark = [
    *needs_provider,
    pytest.mark.skipif(
        not versions.is_at_least(onnxruntime.__version__, RELEASE),
        reason=f"releases before {RELEASE} optimize graphs in other ways",
    ),
]


class Difference(NamedTuple):
    """What only one of the two fuses, and why.

    Attributes:
        session: the GridSamples that only the session fuses, as
            :data:`support.fusion_lists.Fused` has them.
        provider: those of the provider.
        reason: why.
        logged: a part of the provider's line in the log, for nodes that it does not fuse.
    """

    session: Sequence[str] = ()
    provider: Sequence[str] = ()
    reason: str = ""
    logged: str = ""


_SHARED_IMAGES = (
    "the layers of its decoder share the images of all levels, and onnxruntime passes a fused node "
    "only the values that the replaced nodes read, which are the images and not their source"
)
#: The name of a model -> how its lists differ. All other models have equal lists.
DIFFERENCES = {
    "stn_bicubic": Difference(
        session=["Y"],
        reason="its AffineGrid is decomposed; the provider cannot run candidates to test them",
        logged="the provider does not search for operators that are decomposed",
    ),
    "voxelmorph": Difference(
        session=["moved", "moved_labels"],
        reason="onnxruntime joins equal computations: two GridSamples then read one grid",
        logged="other nodes read its grid '/Concat_12_output_0'",
    ),
    **{
        f"fusion/dfine/{size}-{exporter}": Difference(
            session=samples,
            reason=_SHARED_IMAGES,
            logged="the fused node would read 'a', and onnxruntime passes only what",
        )
        for size in ("static", "batch")
        for exporter, samples in {
            "torchscript": ["/GridSample_1_output_0", "/GridSample_3_output_0"],
            "dynamo": ["grid_sampler", "grid_sampler_3"],
        }.items()
    },
}


@cache
def models() -> dict[str, bytes]:
    """Return the bytes of all exported models by name."""
    contents = {path.stem: path.read_bytes() for path in EXPORTED_MODELS}
    for path in sorted(EXPORTED_FOLDER.glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                contents[f"{path.stem}/{name.removesuffix('.onnx')}"] = archive.read(name)
    return contents


@pytest.mark.parametrize("name", models())
def test_session_and_provider_fuse_the_same_nodes_unless_a_row_says_why(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = models()[name]
    session = fused_by_session(model)
    with caplog.at_level(logging.DEBUG, logger="ort_gridsample"):
        provider = fused_by_provider(model, monkeypatch)
    difference = DIFFERENCES.get(name, Difference())
    assert sorted(value for _, value in session - provider) == list(difference.session)
    assert sorted(value for _, value in provider - session) == list(difference.provider)
    if difference.logged:
        lines = [line for line in caplog.messages if difference.logged in line]
        assert len(lines) >= len(difference.session)


#: Models in which the shape of a grid follows only from nodes that compute no coordinates.
COMPUTED_SHAPES = {
    "a flow is resized to a computed shape": """
        g (float[N,3,8,9] X, float[N,2,12,14] flow) => (float[N,3,6,7] Y)
            <int64[2] lengths = {6, 7}> {
            first = Shape <end = 2> (flow)
            sizes = Concat <axis = 0> (first, lengths)
            resized = Resize <mode = "nearest"> (flow, "", "", sizes)
            G = Transpose <perm = [0, 2, 3, 1]> (resized)
            Y = GridSample (X, G)
        }""",
    "a summand is made in a computed shape": """
        g (float[N,3,8,9] X, float[N,6,7,2] flow) => (float[N,3,6,7] Y)
            <int64 axis = {1}, int64[1] start = {0}, int64[1] end = {4}> {
            shape = Shape (flow)
            sliced = Slice (shape, start, end)
            ones = ConstantOfShape <value = float[1] {0.1}> (sliced)
            sums = CumSum (ones, axis)
            two = Constant <value = float {2}> ()
            scaled = Mul (flow, two)
            G = Add (scaled, sums)
            Y = GridSample (X, G)
        }""",
}


@pytest.mark.parametrize("name", COMPUTED_SHAPES)
def test_grid_whose_shape_onnxruntime_does_not_infer_is_fused_by_both(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parsed(COMPUTED_SHAPES[name]).SerializeToString()
    assert fused_by_session(model) == {("GridSample", "Y")}
    assert fused_by_provider(model, monkeypatch) == {("GridSample", "Y")}


@pytest.mark.parametrize("name", COMPUTED_SHAPES)
def test_fused_grid_of_a_computed_shape_has_the_outputs_of_onnxruntime(name: str) -> None:
    model = parsed(COMPUTED_SHAPES[name])
    rng = np.random.default_rng(0)
    flow_shape = [dim.dim_value or 2 for dim in model.graph.input[1].type.tensor_type.shape.dim]
    feeds = {
        "X": rng.normal(size=(2, 3, 8, 9)).astype(np.float32),
        "flow": rng.uniform(-0.6, 0.4, flow_shape).astype(np.float32),
    }
    (expected,) = open_native(model).run(None, feeds)
    (Y,) = open_provider(model).run(None, feeds)
    np.testing.assert_allclose(Y, expected, atol=1e-5)


def test_each_row_has_a_model_and_a_reason() -> None:
    assert models().keys() >= DIFFERENCES.keys()
    for difference in DIFFERENCES.values():
        assert difference.reason
        assert difference.session or difference.provider
        assert difference.logged or difference.provider


@pytest.mark.parametrize("name", ["fusion/dfine/batch-dynamo", "stn_bicubic", "voxelmorph"])
def test_provider_logs_why_each_node_is_not_fused(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="ort_gridsample"):
        provider = fused_by_provider(models()[name], monkeypatch)
    reasons = [line for line in caplog.messages if " is not fused by the provider: " in line]
    assert reasons
    for line in reasons:
        assert line.startswith(("GridSample node ", "DeformableAttention node "))
    for _, value in provider:
        assert not any(f"with output {value!r} is not fused" in line for line in reasons)


#: The nodes that compute the grid G of (1, 6, 7, 2) -> what the provider cannot do with them.
UNFUSED_GRIDS = {
    "G = Reshape (row, shape)": (
        "Reshape node with output 'G': the provider cannot trace the coordinates in 'row'"
    ),
    "G = Pad (small, pads)": ("Pad node with output 'G': the provider does not fuse this node"),
    "P = Pad (small, pads) G = Reshape (P, shape)": (
        "Reshape node with output 'G': the provider does not fuse Pad node with output 'P'"
    ),
    "P = MatMul (points, square) G = Reshape (P, shape)": (
        "Reshape node with output 'G': MatMul node with output 'P' may belong to an AffineGrid, "
        "and the provider does not search for operators that are decomposed to basic ones"
    ),
    "P = Add (row, row) G = Reshape (P, shape)": (
        "Reshape node with output 'G': the provider cannot trace the coordinates that Add node "
        "with output 'P' computes"
    ),
}


@pytest.mark.parametrize("nodes", UNFUSED_GRIDS)
def test_provider_logs_what_it_cannot_do_with_the_nodes_of_a_grid(
    nodes: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = parsed(f"""
        g (float[1,3,8,9] X, float[1,84] row, float[1,4,5,2] small, float[1,42,2] points,
            float[2,2] square, float[1,84] other)
            => (float[1,3,6,7] Y, float[1,3,6,7] Z)
            <int64[4] shape = {{1, 6, 7, 2}}, int64[8] pads = {{0, 1, 1, 0, 0, 1, 1, 0}}> {{
            {nodes}
            Y = GridSample (X, G)
            H = Reshape (other, shape)
            Z = GridSample (X, H)
        }}""")
    with caplog.at_level(logging.DEBUG, logger="ort_gridsample"):
        assert fused_by_provider(model.SerializeToString(), monkeypatch) == set()
    (reason,) = [line for line in caplog.messages if "its grid 'G'" in line]
    assert reason.startswith("GridSample node with output 'Y' is not fused by the provider: ")
    assert reason.endswith(f" its grid 'G', the output of {UNFUSED_GRIDS[nodes]}")


def test_provider_logs_nothing_for_a_grid_that_is_an_input(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = grid_sample_model("float32", "float32", 2, [Attributes()], 20)
    with caplog.at_level(logging.DEBUG, logger="ort_gridsample"):
        assert fused_by_provider(model.SerializeToString(), monkeypatch) == set()
    assert not any("is not fused" in line for line in caplog.messages)
