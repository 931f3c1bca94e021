"""The table of taps: the pixels that each output position reads, and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import spec
from .arrays import Array, Floats, Indices, Mask
from .coordinates import PADDING_RULES, Axis, unnormalize
from .plan import Plan, type_name
from .taps import MODE_RULES, axis_taps


@dataclass(frozen=True)
class TapTable:
    """The T taps of each of P output positions, on one axis or on several."""

    index: Indices  #: (T, P), the pixel that is read; inside X for any coordinate
    weight: Array | None  #: (T, P), its weight; None if all weights are 1
    #: (T, P), whether the tap lies inside X; a tap outside counts as 0. None if all lie inside.
    inside: Mask | None

    def times(self, inner: TapTable, length: int) -> TapTable:
        """Combine each of these taps with each tap of ``inner``, the next axis inward.

        ``length`` is the length of that axis.
        """
        index = _combine(np.add, self.index * length, inner.index)
        weight = None
        if inner.weight is not None:
            weight = _combine(np.multiply, self.weight, inner.weight)
        inside = None
        if self.inside is not None or inner.inside is not None:
            inside = _combine(np.logical_and, self._inside_mask(), inner._inside_mask())
        return TapTable(index, weight, inside)

    def part(self, positions: slice) -> TapTable:
        """Return the table of some of the positions."""
        return TapTable(
            self.index[:, positions],
            None if self.weight is None else self.weight[:, positions],
            None if self.inside is None else self.inside[:, positions],
        )

    def _inside_mask(self) -> Mask:
        if self.inside is None:
            return np.broadcast_to(np.True_, self.index.shape)
        return self.inside


def _combine(function: np.ufunc, outer: Any, inner: Array) -> Array:
    """Apply ``function`` to each pair of taps: from (T1, P) and (T2, P) to (T1·T2, P)."""
    return function(outer[:, None], inner).reshape(-1, inner.shape[1])


def tap_table(grid: Floats, lengths: Sequence[int], plan: Plan) -> TapTable:
    """Return the table of the positions ``grid`` (P, r) in an X with axes of these ``lengths``."""
    coordinate_type = spec.TYPES[type_name(grid.dtype)].compute
    table: TapTable | None = None
    # The grid lists the innermost axis first.
    for g, length in zip(grid.T[::-1], lengths, strict=True):
        axis_table = _axis_table(g.astype(coordinate_type)[None], length, plan)
        table = axis_table if table is None else table.times(axis_table, length)
    assert table is not None  # a grid has at least one axis
    return table


def _axis_table(g: Floats, length: int, plan: Plan) -> TapTable:
    """Return the table of ``g`` (1, P) on an axis of ``length`` pixels."""
    mode = MODE_RULES[plan.mode]
    padding = PADDING_RULES[plan.padding_mode]
    axis = Axis.of(length, plan.align_corners, may_be_single=length == 1)

    # If all taps are inside X, padding changes nothing. NaN and infinity fail this comparison.
    x = unnormalize(g, axis)
    first_tap = float(x.min()) + mode.offsets[0]
    last_tap = float(x.max()) + mode.offsets[-1]
    if first_tap >= 0 and last_tap <= length - 1:
        base = mode.base(np, x)
        index = base.astype(np.intp) + np.array(mode.offsets, np.intp)[:, None]
        if mode.weights is None:
            return TapTable(index, None, None)
        distance = (x - base).astype(plan.weights, copy=False)
        return TapTable(index, mode.weights(np, distance), None)

    tap_pixel, weight = axis_taps(np, g, axis, mode, padding, plan.weights)
    index = tap_pixel.astype(np.intp)
    clipped = np.clip(index, 0, length - 1)
    if padding.zero_outside:
        inside = clipped == index
        if not inside.all():
            return TapTable(clipped, weight, inside)
    return TapTable(clipped, weight, None)
