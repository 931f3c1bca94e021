"""Rows that a program adds are recognized, and do not prevent that others are."""

from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest

import ort_gridsample as ogs
from ort_gridsample.detection import decomposed
from ort_gridsample.graph.expressions import Expressions
from ort_gridsample.reference.coordinates import PADDING_RULES, Axis, Padding
from ort_gridsample.reference.taps import MODE_RULES, Mode
from ort_gridsample.rewriting.targets.lowered_arguments import Argument
from ort_gridsample.rewriting.targets.primitives import lower_grid_sample
from support.cases import Attributes
from support.models import make_model

AddRow = Callable[[str, Padding | Mode], None]


@pytest.fixture
def add_row(monkeypatch: pytest.MonkeyPatch) -> AddRow:
    """Add a row to its table, for one test."""
    monkeypatch.setattr(decomposed, "_trial_results", {})

    def add(name: str, row: Padding | Mode) -> None:
        table = PADDING_RULES if isinstance(row, Padding) else MODE_RULES
        monkeypatch.setitem(table, name, row)  # type: ignore[arg-type]

    return add


def lowered(attributes: Attributes, rank: int) -> onnx.ModelProto:
    """Return a model of basic operators. No node has a row that a program adds later."""
    lengths = [f"D{axis}" for axis in range(rank)]
    X = Argument("X", "float32", ("N", "C", *lengths))
    grid = Argument("grid", "float32", ("N", *[f"{length}_out" for length in lengths], rank))
    nodes = lower_grid_sample(Expressions("s", 17), X, grid, "Y", **asdict(attributes))
    inputs = {"X": ("float32", X.shape), "grid": ("float32", grid.shape)}
    return make_model(nodes, inputs, {"Y": ("float32", [None] * (rank + 2))}, 17)


def recognized_attributes(attributes: Attributes, rank: int) -> Attributes | None:
    records = ogs.inspect_model(lowered(attributes, rank))
    if not records:
        return None
    (record,) = records
    return Attributes(str(record.mode), str(record.padding_mode), bool(record.align_corners))


def mirror_once(xp: Any, x: Any, axis: Axis) -> Any:
    """Reflect at the centers of the outer pixels, which reflection does if corners are aligned."""
    x = xp.maximum(x, x * -1)
    return xp.clip(xp.minimum(x, axis.last * 2 - x), 0, axis.last)


MIRROR = Padding(mirror_once, period=lambda axis: axis.maximum(axis.last * 2, 1))
EXPECTED_OF_MIRROR = [
    (Attributes("linear", "mirror", False), Attributes("linear", "mirror", False)),
    (Attributes("linear", "mirror", True), Attributes("linear", "reflection", True)),
    (Attributes("linear", "reflection", True), Attributes("linear", "reflection", True)),
    (Attributes("cubic", "reflection", True), Attributes("cubic", "reflection", True)),
    (Attributes("nearest", "reflection", True), Attributes("nearest", "reflection", True)),
]


@pytest.mark.parametrize(("attributes", "expected"), EXPECTED_OF_MIRROR, ids=str)
def test_rows_that_are_equal_in_an_alignment_are_recognized_as_the_first(
    attributes: Attributes, expected: Attributes, add_row: AddRow
) -> None:
    add_row("mirror", MIRROR)
    assert recognized_attributes(attributes, 2) == expected


def far_once(xp: Any, x: Any, axis: Axis) -> Any:
    """Clip coordinates, as the padding border does; but those very far outside to the first."""
    return xp.where(xp.less(axis.length * 2048, xp.abs(x)), 0, xp.clip(x, 0, axis.last))


FAR = Padding(far_once, period=lambda axis: axis.length * 4096)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("padding_mode", ["border", "far"])
def test_row_that_differs_far_outside_is_told_apart(
    padding_mode: str, mode: str, add_row: AddRow
) -> None:
    add_row("far", FAR)
    attributes = Attributes(mode, padding_mode)
    assert recognized_attributes(attributes, 2) == attributes


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_copy_of_a_row_is_recognized_as_the_first(mode: str, add_row: AddRow) -> None:
    add_row("copied", MODE_RULES[mode])
    for name in (mode, "copied"):
        assert recognized_attributes(Attributes(name), 2) == Attributes(mode)


def floor(xp: Any, x: Any) -> Any:
    return xp.floor(x)


def sine_weights(xp: Any, t: Any) -> Any:
    sine = xp.sin(t * (np.pi / 2))
    return xp.concatenate([1 - sine * sine, sine * sine], axis=-2)


def quadratic_weights(xp: Any, t: Any) -> Any:
    before = 0.5 - t
    after = t + 0.5
    return xp.concatenate([before * before * 0.5, 0.75 - t * t, after * after * 0.5], axis=-2)


def wide_weights(xp: Any, t: Any) -> Any:
    """Return eight weights, those of the odd taps larger, divided by their sum."""
    weights = []
    for offset in range(-3, 5):
        distance = (t - offset) * 0.25
        bump = 1 - distance * distance
        weights.append(bump * bump * (1 + offset % 2))
    total = weights[0]
    for weight in weights[1:]:
        total = total + weight
    return xp.concatenate([weight / total for weight in weights], axis=-2)


MODES = {
    "below": Mode(floor, (0,), None, pads_taps=False),
    "sine": Mode(floor, (0, 1), sine_weights, pads_taps=False),
    "quadratic": Mode(lambda xp, x: xp.rint(x), (-1, 0, 1), quadratic_weights, pads_taps=True),
    "wide": Mode(floor, tuple(range(-3, 5)), wide_weights, pads_taps=True),
}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_added_mode_is_recognized(mode: str, rank: int, add_row: AddRow) -> None:
    """With a jump at the centers of pixels, sines, an odd number of taps, and 512 taps."""
    add_row(mode, MODES[mode])
    for padding_mode, align_corners in product(("zeros", "border"), (False, True)):
        attributes = Attributes(mode, padding_mode, align_corners)
        assert recognized_attributes(attributes, rank) == attributes


def test_jump_of_a_mode_is_where_its_base_becomes_the_next_pixel() -> None:
    names = ("nearest", "linear", "cubic", "lanczos3")
    rows = {**{name: MODE_RULES[name] for name in names}, **MODES}
    assert {name: mode.jump for name, mode in rows.items()} == {
        "nearest": 0.5,
        "linear": 0,
        "cubic": 0,
        "lanczos3": 0,
        "below": 0,
        "sine": 0,
        "quadratic": 0.5,
        "wide": 0,
    }
