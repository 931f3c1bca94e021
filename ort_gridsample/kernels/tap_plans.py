"""How compiled code computes the taps of a coordinate, for every mode with every padding.

A plan is derived from the rows of the mode and of the padding in :mod:`ort_gridsample.reference`.
Compiled code contains the plans of all rows: a kernel gets the index of its padding, and sometimes
of its mode, as a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ..reference.coordinates import PADDING_RULES, Axis, Padding
from ..reference.taps import MODE_RULES, Mode, axis_taps, pads_taps

#: The rows that have compiled kernels. One that a program adds later has none: it runs on the NumPy
#: core. All tables of compiled code are made from these rows, whenever they are made.
COMPILED_MODE_RULES = MappingProxyType(dict(MODE_RULES))
COMPILED_PADDING_RULES = MappingProxyType(dict(PADDING_RULES))
COMPILED_MODES = tuple(COMPILED_MODE_RULES)
COMPILED_PADDING = tuple(COMPILED_PADDING_RULES)
#: The number of taps on an axis of each of these modes.
TAPS = MappingProxyType({name: mode.taps for name, mode in COMPILED_MODE_RULES.items()})
#: The index of each mode and of each padding in compiled code.
MODE_CODES = MappingProxyType({name: code for code, name in enumerate(COMPILED_MODES)})
PADDING_CODES = MappingProxyType({name: code for code, name in enumerate(COMPILED_PADDING)})


class TapPlan(NamedTuple):
    """How the taps of a mode are computed with a padding."""

    mode: Mode
    padding: Padding
    #: Whether coordinates are padded, and whether the positions of taps are.
    pads_coordinates: bool
    pads_taps: bool
    #: Whether taps that are partly outside can be moved inside together. They are adjacent then,
    #: and those that were outside are masked, because they count as 0 or have the weight 0.
    moves_inside: bool

    @property
    def reach(self) -> int:
        """A distance in pixels that is further than any tap is from its coordinate."""
        return max(map(abs, self.mode.offsets)) + 1

    @property
    def first_offset(self) -> int:
        """The first tap, in pixels from the base."""
        return self.mode.offsets[0]


def tap_plan(mode: Mode, padding: Padding) -> TapPlan:
    """Return the plan of two rows."""
    pads = pads_taps(mode, padding)
    moves_inside = padding.zero_outside or (not pads and _has_weights_inside_only(mode))
    pads_coordinates = not pads or padding.pads_taps
    return TapPlan(mode, padding, pads_coordinates, pads, moves_inside)


#: The coordinates of :func:`_has_weights_inside_only`, in halves, thirds and sevenths of a pixel.
_COORDINATES = np.arange(2 * 42 + 1) / 42


def _has_weights_inside_only(mode: Mode) -> bool:
    """Whether the taps outside of an axis have the weight 0 if the coordinate is inside."""
    if mode.copies_values:
        return True  # the tap is the base
    axis = Axis.of(3, True, may_be_single=False)
    grid = _COORDINATES[None] - 1
    pixels, weights = axis_taps(np, grid, axis, mode, PADDING_RULES["zeros"], "float64")
    assert weights is not None
    is_outside = (pixels < 0) | (pixels > axis.last)
    return not weights[is_outside].any()


def _plans() -> dict[tuple[int, int], TapPlan]:
    """Return the plan of each mode and padding, by their codes."""
    plans = {}
    for mode, padding in product(COMPILED_MODES, COMPILED_PADDING):
        codes = MODE_CODES[mode], PADDING_CODES[padding]
        plans[codes] = tap_plan(COMPILED_MODE_RULES[mode], COMPILED_PADDING_RULES[padding])
    return plans


PLANS = _plans()
#: Whether weighted taps of a mode cannot all be read in pairs.
HAS_ODD_TAPS = any(
    mode.taps % 2 == 1 for mode in COMPILED_MODE_RULES.values() if not mode.copies_values
)
#: For each mode, a bit for each padding: whether taps are moved inside.
MOVES_INSIDE = tuple(
    sum(PLANS[mode, padding].moves_inside << padding for padding in PADDING_CODES.values())
    for mode in MODE_CODES.values()
)
#: For each mode, a bit for each padding: whether nearly all taps are adjacent pixels. They are if
#: they are moved inside, or if coordinates are.
ADJACENT = tuple(
    sum(
        (PLANS[mode, padding].moves_inside or PLANS[mode, padding].pads_coordinates) << padding
        for padding in PADDING_CODES.values()
    )
    for mode in MODE_CODES.values()
)
#: For each padding, whether a tap outside counts as 0.
ZERO_OUTSIDE = tuple(padding.zero_outside for padding in COMPILED_PADDING_RULES.values())
#: For each mode, whether the positions of taps are padded with every padding.
ALWAYS_PADS_TAPS = tuple(mode.pads_taps for mode in COMPILED_MODE_RULES.values())


def plans_of_mode(mode: int) -> Sequence[TapPlan]:
    """Return the plans of a mode, by the code of the padding."""
    return [PLANS[mode, padding] for padding in PADDING_CODES.values()]
