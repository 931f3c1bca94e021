"""The memory of the compiled ops' error messages, and sums of int64 that would wrap around."""

import numpy as np
import pytest

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops import registry
from support.attention_models import session_for
from support.cases import Attributes
from support.compare import refusal
from support.fused_models import transformer, transformer_feeds
from support.models import affine_grid_model, grid_sample_model, loose
from support.paths import open_compiled

UNAVAILABLE = registry.unavailable_reason()
pytestmark = pytest.mark.skipif(bool(UNAVAILABLE), reason=f"no compiled ops: {UNAVAILABLE}")

#: Sizes of three values. The last one must not count as a number of axes.
SIZES = [(1, 3, -5), (1, 3, -(10**6)), (1, 3, 10**15), (1, 3, 2**63 - 1)]
#: The shape of an empty grid, or of a grid of few spatial axes, whose last axis is long.
GRID_SHAPES = [(0, 1, 1 << 40), (1, 2, 10**7)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_affine_grid_size_of_three_values_has_the_error_of_the_function(
    size: tuple[int, ...],
) -> None:
    feeds = {"theta": np.zeros((1, 2, 3), np.float32), "size": np.array(size)}
    expected = refusal(ogs.affine_grid, *feeds.values(), where="AffineGrid node with output 'grid'")
    session = open_compiled(loose(affine_grid_model("float32", 2, align_corners=False)))
    assert refusal(session.run, None, feeds).args == expected.args


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_fused_affine_grid_size_of_three_values_has_the_error_of_the_function(
    size: tuple[int, ...],
) -> None:
    feeds = transformer_feeds() | {"size": np.array(size)}
    expected = refusal(ogs.affine_grid, feeds["theta"], size, where="AffineGrid node 'affine'")
    session = open_compiled(transformer())
    assert refusal(session.run, None, feeds).args == expected.args


def test_omitted_input_has_no_axes() -> None:
    """Its field ``n_axes`` is -1. A message with such a shape would exceed its buffer."""
    from numba import njit

    from ort_gridsample.custom_ops.compiled_ops import requests
    from ort_gridsample.custom_ops.compiled_ops.structs import INPUT

    tensor = np.zeros(1, INPUT)[0]
    tensor["n_axes"] = -1
    assert njit(lambda tensor: len(requests.shape_of(tensor)))(tensor) == 0


@pytest.mark.parametrize("grid_shape", GRID_SHAPES, ids=str)
def test_grid_sample_grid_of_long_last_axis_has_the_error_of_the_function(
    grid_shape: tuple[int, ...],
) -> None:
    feeds = {
        "X": np.zeros((1, 1, 4, 4), np.float32),
        "grid": np.zeros(grid_shape, np.float32),
    }
    expected = refusal(ogs.grid_sample, *feeds.values(), where="GridSample node 'sample0'")
    model = loose(grid_sample_model("float32", "float32", 2, [Attributes("linear", "zeros")]))
    assert refusal(open_compiled(model).run, None, feeds).args == expected.args


@pytest.mark.parametrize(
    "points",
    [
        (2**63 - 1, 2**63 - 1, 2 + 4),
        (2**62, 2**62, 4),
        (2**63 - 1, 1, 4),
    ],
    ids=str,
)
def test_attention_levels_whose_points_exceed_int64_are_refused(points: tuple[int, ...]) -> None:
    feeds = {
        "value": np.zeros((1, 3, 1, 2), np.float32),
        "levels": np.array([(count, 1, 1) for count in points]),
        "at": np.zeros((1, 1, 1, 4, 2), np.float32),
        "by": np.zeros((1, 1, 1, 4), np.float32),
    }
    session = session_for("float32", "float32", align=False)
    with pytest.raises(Exception, match=r"sampling_locations is of shape \(1, 1, 1, 4, 2\)"):
        session.run(None, feeds)
