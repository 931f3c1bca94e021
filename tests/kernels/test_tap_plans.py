"""The plans of compiled code for modes and paddings, and the rows that it refuses."""

from dataclasses import replace

import pytest

from ort_gridsample.kernels import kernel_factories, kernel_key
from ort_gridsample.kernels.tap_plans import (
    MODE_CODES,
    PADDING_CODES,
    PLANS,
    TAPS,
    TapPlan,
    tap_plan,
)
from ort_gridsample.reference.coordinates import PADDING_RULES, Padding
from ort_gridsample.reference.taps import MODE_RULES

LINEAR = MODE_RULES["linear"]
CUBIC = MODE_RULES["cubic"]
BORDER = PADDING_RULES["border"]
WRAP = PADDING_RULES["wrap"]


def plan_of(mode: str, padding_mode: str) -> TapPlan:
    return PLANS[MODE_CODES[mode], PADDING_CODES[padding_mode]]


@pytest.mark.parametrize("padding_mode", PADDING_RULES)
@pytest.mark.parametrize("mode", MODE_RULES)
def test_taps_move_inside_unless_others_than_zeros_are_padded_one_by_one(mode, padding_mode):
    padding = PADDING_RULES[padding_mode]
    pads_taps = MODE_RULES[mode].pads_taps or padding.pads_taps
    plan = plan_of(mode, padding_mode)
    assert plan.moves_inside == (padding.zero_outside or not pads_taps)
    assert plan.pads_taps == pads_taps
    assert plan.pads_coordinates == (padding.pads_taps or not pads_taps)


@pytest.mark.parametrize(
    ("mode", "padding_mode"), [("cubic", "border"), ("lanczos3", "reflection"), ("linear", "wrap")]
)
def test_taps_that_are_padded_one_by_one_do_not_move_inside(mode, padding_mode):
    plan = plan_of(mode, padding_mode)
    assert plan.pads_taps
    assert not plan.moves_inside
    assert plan.pads_coordinates == (padding_mode == "wrap")


def test_taps_after_the_last_pixel_with_a_weight_do_not_move_inside():
    def weights(xp, t):
        return xp.concatenate([t * 0, 1 - t, t], axis=-2)

    later = replace(LINEAR, offsets=(0, 1, 2), weights=weights)
    assert not tap_plan(later, BORDER).moves_inside


@pytest.mark.parametrize("offsets", [(0, 2), (1, 0)])
def test_mode_whose_taps_are_not_adjacent_is_refused(offsets):
    with pytest.raises(ValueError, match="adjacent taps"):
        tap_plan(replace(CUBIC, offsets=offsets), BORDER)


def test_mode_of_several_taps_without_weights_is_refused():
    with pytest.raises(ValueError, match="needs weights"):
        tap_plan(replace(LINEAR, weights=None), BORDER)


def test_padding_without_a_period_that_does_not_clip_is_refused():
    with pytest.raises(ValueError, match="must clip coordinates"):
        tap_plan(LINEAR, Padding(lambda xp, x, axis: xp.abs(x)))


def test_padding_that_leaves_taps_outside_is_refused():
    with pytest.raises(ValueError, match="must move every tap"):
        tap_plan(LINEAR, replace(WRAP, pad_once=lambda xp, x, axis: x))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"zero_outside": True}, "no taps outside"),
        ({"period": lambda axis: axis.last * 2}, "period of 1 pixels is 0"),
        ({"pad_once": lambda xp, x, axis: xp.clip(x * 0.5, 0, 0)}, "leave coordinates inside"),
    ],
)
def test_padding_with_a_period_that_kernels_would_compute_wrongly_is_refused(fields, error):
    with pytest.raises(ValueError, match=error):
        tap_plan(MODE_RULES["linear"], replace(PADDING_RULES["reflection"], **fields))


@pytest.mark.parametrize("table", [TAPS, MODE_CODES, PADDING_CODES])
def test_codes_of_compiled_rows_cannot_change(table):
    with pytest.raises(TypeError):
        table["late"] = len(table)


def keys_of_kernels() -> list[str]:
    keys = []
    for factory, *options in kernel_factories.kernel_functions(
        "float32", "float32", "cubic"
    ).values():
        function = factory(*options) if options else factory
        keys.append(kernel_key.kernel_key(function))
    return keys


def test_row_that_is_added_later_changes_no_kernel(monkeypatch):
    """Whenever a kernel is compiled, it has the rows whose codes the ops pass."""
    before = keys_of_kernels()
    monkeypatch.setattr(kernel_key, "_definitions", {})
    monkeypatch.setitem(PADDING_RULES, "late", WRAP)
    monkeypatch.setitem(MODE_RULES, "late", CUBIC)
    assert keys_of_kernels() == before
