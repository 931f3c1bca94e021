"""Combine the taps of all axes into groups, each for one Gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...graph.expressions import DimLike, Expressions, Tensor


class TapGroups:
    """All combinations of the axes' taps, in groups. One Gather reads one group.

    Example: cubic (4 taps) on 3 axes, for a runtime whose ``max_gathers`` is 16. The two outer axes
    have 4² = 16 combinations, so there are 16 groups; each has the 4 taps of the innermost axis.
    With ``max_gathers`` = 1 there is one group of all 64 taps.

    Args:
        e: the :class:`.Expressions` that write the nodes.
        taps: the number of taps on each axis.
        r: the number of axes.
        n_positions: N·P, the number of output positions of all batches.

    Attributes:
        group_size: the number of taps in a group.
    """

    def __init__(self, e: Expressions, taps: int, r: int, n_positions: DimLike) -> None:
        self._e = e
        self._taps = taps
        self._n_positions = n_positions
        # Each combination of the taps of this many outer axes is one group.
        self._n_outer_axes = max(
            n_axes for n_axes in range(r + 1) if taps**n_axes <= e.runtime.max_gathers
        )
        self.group_size = int(taps ** (r - self._n_outer_axes))

    def combined_groups(
        self,
        axes: Sequence[Tensor],
        combine: Callable[[Tensor, Tensor], Tensor],
        group_tail: list[DimLike],
    ) -> list[Tensor]:
        """Return all combinations of the axes' taps in groups.

        Args:
            axes: the taps (1, taps, N·P) of each axis, outermost first.
            combine: adds or multiplies the taps, or combinations of taps, of some axes and those of
                others. It broadcasts.
            group_tail: the shape of a group without its first axis: N·P and axes of length 1.
        """
        return self._outer_groups(axes, self._n_outer_axes, combine, group_tail)

    def _outer_groups(
        self,
        axes: Sequence[Tensor],
        n_outer: int,
        combine: Callable[[Tensor, Tensor], Tensor],
        group_tail: list[DimLike],
    ) -> list[Tensor]:
        """Return a group for each combination of the taps of the first ``n_outer`` axes.

        If one Split may not have so many outputs, the groups of all outer axes but the last are
        combined with the remaining axes one by one, and each result is split separately.
        """
        e = self._e
        n_groups = self._taps**n_outer
        group_size = self._taps ** (len(axes) - n_outer)
        if n_groups <= e.runtime.max_split_outputs or n_outer <= 1:
            combined = self._combined(axes, combine, group_tail)
            return e.split(combined, n_groups, group_size, axis=0)
        remaining = self._combined(axes[n_outer - 1 :], combine, group_tail)
        outer_groups = self._outer_groups(axes[: n_outer - 1], n_outer - 1, combine, group_tail)
        groups = []
        for outer_group in outer_groups:
            groups += e.split(combine(outer_group, remaining), self._taps, group_size, axis=0)
        return groups

    def _combined(
        self,
        axes: Sequence[Tensor],
        combine: Callable[[Tensor, Tensor], Tensor],
        group_tail: list[DimLike],
    ) -> Tensor:
        """Return all combinations of the axes' taps, (combinations, *group_tail)."""
        e = self._e
        combined = axes[0]
        n_combinations = self._taps
        for axis_taps in axes[1:]:
            outer = e.reshape(combined, [n_combinations, 1, self._n_positions])
            combined = combine(outer, axis_taps)
            n_combinations *= self._taps
        return e.reshape(combined, [n_combinations, *group_tail])
