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

import onnxruntime
import pytest

from ort_gridsample import versions
from support.cases import Attributes
from support.exported_models import EXPORTED_FOLDER, EXPORTED_MODELS
from support.fusion_lists import fused_by_provider, fused_by_session
from support.models import grid_sample_model
from support.paths import needs_provider

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
        session: the values that only the session fuses the computation of.
        provider: those of the provider.
        reason: why.
        logged: a part of the provider's line in the log, for nodes that it does not fuse.
    """

    session: Sequence[str] = ()
    provider: Sequence[str] = ()
    reason: str = ""
    logged: str = ""


_LAYOUT = "no value of the graph is the output (B, Q, H·D)"
_SUMMED_LAYERS = (
    "onnxruntime's transpose optimizer adds the layers before it transposes them, and the provider "
    "writes the output (B, Q, H·D) only"
)
_RESHAPED_OUTPUT = (
    "onnxruntime's transpose optimizer exchanges the last Transpose and Reshape, and the provider "
    "writes the output (B, Q, H·D) only"
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
    "fusion/dfine/static-torchscript": Difference(
        session=["/Transpose_3_output_0", "/Transpose_6_output_0"],
        reason=_SUMMED_LAYERS,
        logged=_LAYOUT,
    ),
    "fusion/dfine/static-dynamo": Difference(
        session=["permute_3", "permute_6"], reason=_SUMMED_LAYERS, logged=_LAYOUT
    ),
    "fusion/dfine/batch-torchscript": Difference(
        session=["/Transpose_3_output_0", "/Transpose_6_output_0"],
        reason=_SUMMED_LAYERS,
        logged=_LAYOUT,
    ),
    "fusion/dfine/batch-dynamo": Difference(
        session=["permute_3", "permute_6"], reason=_SUMMED_LAYERS, logged=_LAYOUT
    ),
    "fusion/dcnv3/static-torchscript": Difference(
        session=["/Transpose_4_output_0"], reason=_RESHAPED_OUTPUT, logged=_LAYOUT
    ),
    "fusion/dcnv3/static-dynamo": Difference(
        session=["transpose_3"], reason=_RESHAPED_OUTPUT, logged=_LAYOUT
    ),
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


def test_provider_logs_nothing_for_a_grid_that_is_an_input(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = grid_sample_model("float32", "float32", 2, [Attributes()], 20)
    with caplog.at_level(logging.DEBUG, logger="ort_gridsample"):
        assert fused_by_provider(model.SerializeToString(), monkeypatch) == set()
    assert not any("is not fused" in line for line in caplog.messages)
