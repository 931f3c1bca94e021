"""The NumPy core's table: for P output positions the T pixels of flat X that each reads, and their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import spec
from .arrays import Array, Floats, Indices, Mask
from .coordinates import PADDING, Axis, unnormalize
from .plan import Plan, type_name
from .taps import MODES, axis_taps


@dataclass(frozen=True)
class Table:
    """The taps of P output positions, on one axis or on several."""

    index: Indices  #: (T, P), the pixel read, always inside X, whatever the coordinate
    weight: Array | None  #: (T, P), its weight; None is a weight of 1
    inside: Mask | None  #: (T, P), whether the tap lies inside X (elsewhere it counts as 0); None is everywhere

    def times(self, inner: Table, length: int) -> Table:
        """Every combination of these taps with those of the next axis inward, which has ``length`` pixels."""
        weight = None if inner.weight is None else _pairs(np.multiply, self.weight, inner.weight)
        inside = None
        if self.inside is not None or inner.inside is not None:
            each = (np.broadcast_to(True, t.index.shape) if t.inside is None else t.inside for t in (self, inner))
            inside = _pairs(np.logical_and, *each)
        return Table(_pairs(np.add, self.index * length, inner.index), weight, inside)

    def part(self, at: slice) -> Table:
        """The table of the positions ``at``."""
        weight = None if self.weight is None else self.weight[:, at]
        return Table(self.index[:, at], weight, None if self.inside is None else self.inside[:, at])


def _pairs(function: np.ufunc, outer: Any, inner: Array) -> Array:
    return function(outer[:, None], inner).reshape(-1, inner.shape[1])


def table(grid: Floats, lengths: tuple[int, ...], plan: Plan) -> Table:
    """The table of the positions ``grid`` (P, r) in an X with axes of these ``lengths``."""
    coordinates = spec.TYPES[type_name(grid.dtype)].compute
    found: Table | None = None
    for g, length in zip(grid.T[::-1], lengths, strict=True):  # the grid lists the innermost axis first
        along = _axis_table(g.astype(coordinates)[None], length, plan)
        found = found.times(along, length) if found else along
    assert found is not None  # a grid has at least one axis
    return found


def _axis_table(g: Floats, length: int, plan: Plan) -> Table:
    """The table of ``g`` (1, P) on an axis of ``length`` pixels."""
    mode, padding = MODES[plan.mode], PADDING[plan.padding_mode]
    axis = Axis.of(length, plan.align_corners, length == 1)
    x = unnormalize(g, axis)
    low, high = float(x.min()), float(x.max())
    if low + mode.offsets[0] >= 0 and high + mode.offsets[-1] <= length - 1:  # every tap is inside
        base = mode.base(np, x)
        weight = mode.weights(np, (x - base).astype(plan.weights, copy=False)) if mode.weights else None
        return Table(base.astype(np.intp) + np.array(mode.offsets, np.intp)[:, None], weight, None)
    position, weight = axis_taps(np, g, axis, mode, padding, plan.weights)
    index = position.astype(np.intp)
    clipped = np.clip(index, 0, length - 1)
    inside = clipped == index if padding.zero_outside else None
    return Table(clipped, weight, None if inside is None or inside.all() else inside)
