"""Trials of nodes on a runner that returns any output."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

import ort_gridsample as ogs
from ort_gridsample.inference.trial import Trial, sampling_data

ARRAY = np.array([[0.25, 0.5]], np.float32)
RNG = np.random.default_rng(0)


class FakeRunner:
    """A runner that returns an array, or raises an error."""

    def __init__(self, output: np.ndarray | Exception) -> None:
        self.output = output

    def run(
        self, model: bytes, feeds: Sequence[Mapping[str, np.ndarray]], *, optimized: bool
    ) -> list[list[np.ndarray]]:
        if isinstance(self.output, Exception):
            raise self.output
        return [[self.output] for _ in feeds]


def refusal(output: np.ndarray | Exception, expected: np.ndarray | None = ARRAY) -> str:
    trial = Trial(b"", {"X": ARRAY}, expected, "[0, 1]")
    return trial.refusal(FakeRunner(output), "its answer")


@pytest.mark.parametrize("output", [ARRAY, ARRAY + 0.09], ids=["equal", "near"])
def test_trial_with_the_right_output_is_not_refused(output: np.ndarray) -> None:
    assert refusal(output) == ""


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (ARRAY + 0.5, "its answer is off by 0.5 where values are in [0, 1]"),
        (ARRAY * np.nan, "its answer is off by inf where values are in [0, 1]"),
        (ARRAY * np.inf, "its answer is off by inf where values are in [0, 1]"),
        (ARRAY[0], "its answer is of shape (2,), expected (1, 2)"),
        (RuntimeError("no\n  kernel"), "no kernel"),
        (KeyError(), "KeyError"),
    ],
    ids=["far", "NaN", "infinite", "shape", "error", "error without a message"],
)
def test_trial_that_fails_is_refused_with_the_reason(
    output: np.ndarray | Exception, expected: str
) -> None:
    assert refusal(output) == expected


def test_trial_without_a_right_output_is_refused_by_an_error_only() -> None:
    assert refusal(ARRAY + 9, expected=None) == ""
    assert refusal(RuntimeError("no kernel"), expected=None) == "no kernel"


@pytest.mark.parametrize("align_corners", [False, True])
def test_sampling_data_has_the_grid_of_the_pixels_and_the_output(align_corners: bool) -> None:
    pixels = RNG.uniform(-1, 6, (2, 3, 4, 2))
    X = RNG.random((2, 3, 5, 6))
    data = sampling_data(X, pixels, "linear", "zeros", align_corners)
    assert data.first is X
    lengths = np.array([6, 5])
    halves = (data.second + 1) / 2
    restored = halves * (lengths - 1) if align_corners else halves * lengths - 0.5
    np.testing.assert_allclose(restored, pixels)
    expected = ogs.grid_sample(X, data.second, align_corners=align_corners)
    np.testing.assert_allclose(data.expected, expected)
