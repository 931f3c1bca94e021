"""The combinations of the taps of several axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .expressions import DimLike, Expressions, Tensor


class TapGroups:
    """All combinations of the axes' taps, in groups. One Gather reads one group.

    Example: cubic (4 taps) on 3 axes with ``max_gathers`` = 16. The two outer axes have 4² = 16
    combinations, so there are 16 groups; each has the 4 taps of the innermost axis. With
    ``max_gathers`` = 1 there is one group of all 64 taps.

    Args:
        e: writes the nodes.
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
        # The number of outer axes of which each combination of taps is a group.
        self._n_outer_axes = max(
            n_axes for n_axes in range(r + 1) if taps**n_axes <= e.runtime.max_gathers
        )
        self.group_size = int(taps ** (r - self._n_outer_axes))

    def combined_groups(
        self,
        axes: Sequence[Tensor],
        combine: Callable[..., Tensor],
        group_tail: list[DimLike],
    ) -> list[Tensor]:
        """Return all combinations of the axes' taps in groups.

        Args:
            axes: the taps (1, taps, N·P) of each axis, outermost first.
            combine: combines the taps of two axes.
            group_tail: the shape of a group is (group size, *group_tail).
        """
        return self._outer_groups(axes, self._n_outer_axes, combine, group_tail)

    def _outer_groups(
        self,
        axes: Sequence[Tensor],
        n_outer: int,
        combine: Callable[..., Tensor],
        group_tail: list[DimLike],
    ) -> list[Tensor]:
        """Return a group for each combination of the taps of the first ``n_outer`` axes.

        If the groups are more than a Split may have outputs, the groups of the axes before the
        last outer one are made first, and each is combined with the rest and split by itself.
        """
        e = self._e
        n_groups = self._taps**n_outer
        group_size = self._taps ** (len(axes) - n_outer)
        if n_groups <= e.runtime.max_split_outputs or n_outer <= 1:
            combined = self._combined(axes, combine, group_tail)
            return e.split(combined, n_groups, group_size, axis=0)
        inner = self._combined(axes[n_outer - 1 :], combine, group_tail)
        outer_rows = self._outer_groups(axes[: n_outer - 1], n_outer - 1, combine, group_tail)
        groups = []
        for outer_row in outer_rows:
            groups += e.split(combine(outer_row, inner), self._taps, group_size, axis=0)
        return groups

    def _combined(
        self,
        axes: Sequence[Tensor],
        combine: Callable[..., Tensor],
        group_tail: list[DimLike],
    ) -> Tensor:
        """Return all combinations of the axes' taps, (combinations, *group_tail)."""
        e = self._e
        total = axes[0]
        n_combinations = self._taps
        for axis_taps in axes[1:]:
            total = combine(e.reshape(total, [n_combinations, 1, self._n_positions]), axis_taps)
            n_combinations *= self._taps
        return e.reshape(total, [n_combinations, *group_tail])
