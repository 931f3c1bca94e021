"""The operands of deformable attention: their layouts, and the search for a value of all levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ...inference.axes import Axes, Factors, are_same, flatten, known_product
from .layouts import (
    Layout,
    LocationsLayout,
    Operand,
    OutputLayout,
    ValueLayout,
    WeightsLayout,
)
from .trace import LevelTracer, TracedValue


@dataclass(frozen=True)
class SummedAxes:
    """The factors of the axes (B·H, D, Q, P) of the product that deformable attention sums over P.

    Attributes:
        heads: the inner factors of ``batch_heads`` that are H. They follow from the value of all
            levels.
    """

    batch_heads: Factors
    channels: Factors
    queries: Factors
    points: Factors
    heads: Factors = ()

    def are_by_query(self, axes: Axes) -> bool:
        """Whether ``axes``, together with an axis H, are (B, Q, …)."""
        return are_same(axes[0] + self.heads, self.batch_heads) and are_same(axes[1], self.queries)


def value_layout(traced: TracedValue, summed_axes: SummedAxes) -> ValueLayout | None:
    """Return the layout of a value with the pixels of a level, or None if it is no operand."""
    axes = traced.axes
    if len(axes) not in (3, 4) or traced.scaling_steps != 0:
        return None
    if not are_same(axes[1], traced.level_axis):
        return None
    if not are_same(axes[0] + flatten(axes[2:]), summed_axes.batch_heads + summed_axes.channels):
        return None
    if len(axes) == 3:
        return "B, S, H·D"
    return "B, S, H, D" if are_same(axes[3], summed_axes.channels) else None


def locations_layout(
    traced: TracedValue,
    summed_axes: SummedAxes,
    coordinates: Factors,
) -> LocationsLayout | None:
    """Return the layout of a value with the locations of a level, or None if it is no operand.

    Args:
        summed_axes: the axes of the product that is summed over P.
    """
    axes = traced.axes
    if len(axes) not in (5, 6) or traced.scaling_steps != 2:
        return None
    if not summed_axes.are_by_query(axes) or not are_same(axes[2], summed_axes.heads):
        return None
    if not are_same(axes[-2], traced.level_axis) or not are_same(axes[-1], coordinates):
        return None
    return "B, Q, H, P, r" if len(axes) == 5 else "B, Q, H, L, P, r"


def weights_layout(
    traced: TracedValue,
    summed_axes: SummedAxes,
    *,
    weights_axes: Axes,
    heads: int,
) -> WeightsLayout | None:
    """Return the layout of a value with all weights, or None if it is no operand.

    Args:
        summed_axes: the axes of the product that is summed over P.
        weights_axes: the axes (B·H, 1, Q, P) of the weights in the product. One query, or one
            batch, may be broadcast, and so the first and the third need not be those of the
            product.
        heads: H.
    """
    axes = traced.axes
    if len(axes) not in (4, 5) or traced.scaling_steps != 0:
        return None
    if not are_same(flatten(axes[3:]), summed_axes.points) or known_product(axes[2]) != heads:
        return None
    batch_heads, _, queries, _ = weights_axes
    if not are_same(axes[0] + axes[2], batch_heads) or not are_same(axes[1], queries):
        return None
    return "B, Q, H, P" if len(axes) == 4 else "B, Q, H, L, P"


def output_layout(axes: Axes, summed_axes: SummedAxes) -> OutputLayout | None:
    """Return the layout of a value that the sum is rearranged to, or None if it is no output.

    Args:
        axes: the axes of the value.
        summed_axes: the axes of the product that is summed over P.
    """
    if len(axes) not in (3, 4) or not summed_axes.are_by_query(axes):
        return None
    if not are_same(flatten(axes[2:]), summed_axes.heads + summed_axes.channels):
        return None
    if len(axes) == 3:
        return "by_query"
    return "by_head" if are_same(axes[3], summed_axes.channels) else None


def find_shared_operand(
    tracer: LevelTracer,
    levels: Sequence[TracedValue],
    sizes: Sequence[int | None],
    layout_of: Callable[[TracedValue], Layout | None],
) -> tuple[TracedValue, Operand] | None:
    """Trace the images or grids of the levels back to one value that has all of them in order.

    Args:
        levels: the image or the grid of each level.
        sizes: the number of pixels or points of each level, with None for unknown ones.
        layout_of: returns the layout of a value, or None if it is no operand.

    Returns:
        The first level as a part of this value, and the value. If there are several values, the
        one that is farthest back. None if there is no such value.
    """
    sources_of_levels: list[dict[str, tuple[TracedValue, Operand]]] = []
    for level in levels:
        sources = {}
        for source in tracer.sources(level):
            layout = layout_of(source)
            if layout is not None:
                sources[source.name] = source, Operand(source.name, layout)
        sources_of_levels.append(sources)
    for name in reversed(sources_of_levels[0]):
        traced = [sources[name][0] for sources in sources_of_levels if name in sources]
        if len(traced) == len(levels) and _are_all_levels(traced, sizes):
            return sources_of_levels[0][name]
    return None


def _are_all_levels(levels: Sequence[TracedValue], sizes: Sequence[int | None]) -> bool:
    """Whether ``levels``, parts of one value, are all levels of it in order."""
    parts = [traced.level for traced in levels]
    if parts == [None]:
        return True
    cut = [part for part in parts if part is not None]
    if len(cut) < len(parts):
        return False
    if [part.section for part in cut] == [(i, len(cut)) for i in range(len(cut))]:
        return True
    known_sizes = [size for size in sizes if size is not None]
    if len(known_sizes) < len(sizes):
        return False
    *starts, end = accumulate(known_sizes, initial=0)
    if [part.start for part in cut] != starts:
        return False
    return known_product(levels[0].level_axis) == end
