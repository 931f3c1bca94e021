"""The axes of a value as factors, which several values share.

A Reshape merges and splits axes. To compare the axes of two values on different sides of it, each
axis is a list of :class:`Factor` objects, and the two values share these objects. An axis that is
split splits its factors in place, so that every value that has such a factor has its parts from
then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...inference.lengths import ONE, Length, product_of


@dataclass(eq=False)
class Factor:
    """A factor of the length of an axis, or the whole length.

    Two factors are the same only if they are one object.

    Attributes:
        length: the length.
        parts: the outer and the inner part of a factor that was split.
    """

    length: Length
    parts: tuple[Factor, ...] = ()

    def split(self, taken: Length, rest: Length, *, from_inner: bool) -> tuple[Factor, Factor]:
        """Split the factor in place.

        Args:
            taken: the length of the inner or outer part.
            rest: the length of the other part.
            from_inner: whether the part of length ``taken`` is the inner one.

        Returns:
            The taken part and the rest.
        """
        taken_part = Factor(taken)
        rest_part = Factor(rest)
        self.parts = (rest_part, taken_part) if from_inner else (taken_part, rest_part)
        return taken_part, rest_part


#: For each axis of a value the factors of its length, outer ones first.
Axes = list[list[Factor]]


def leaves(factors: Sequence[Factor]) -> list[Factor]:
    """Return ``factors`` with split ones replaced by their parts, without factors of length 1."""
    unsplit: list[Factor] = []
    for factor in factors:
        if factor.parts:
            unsplit += leaves(factor.parts)
        elif factor.length != ONE:
            unsplit.append(factor)
    return unsplit


def flatten(axes: Sequence[Sequence[Factor]]) -> list[Factor]:
    """Return the factors of all ``axes``, outer ones first."""
    return [factor for axis in axes for factor in axis]


def are_same(first: Sequence[Factor], second: Sequence[Factor]) -> bool:
    """Whether two lists consist of the same factors in the same order."""
    return leaves(first) == leaves(second)


def known_product(factors: Sequence[Factor]) -> int | None:
    """Return the product of ``factors``, or None if a factor is unknown."""
    return product_of([factor.length for factor in leaves(factors)]).known


def regroup(axes: Axes, lengths: Sequence[Length] | None) -> Axes | None:
    """Return the factors of ``axes``, in their order, as axes of other lengths.

    Factors are split in place where an axis needs a part of them. The lengths are matched from the
    inner end first, then from the outer end. One length between them need not match: its axis gets
    the remaining factors.

    >>> axes = [[Factor(Length(6))], [Factor(Length(4))]]
    >>> regrouped = regroup(axes, [Length(2), Length(12)])
    >>> [[factor.length.number for factor in axis] for axis in regrouped]
    [[2], [3, 4]]
    >>> [factor.length.number for factor in leaves(axes[0])]
    [2, 3]

    Args:
        axes: the axes before the Reshape.
        lengths: the lengths after it, or None if their number is unknown.

    Returns:
        The axes after the Reshape, or None if they do not follow from the factors.
    """
    if lengths is None:
        return None
    factors = leaves(flatten(axes))
    pending = list(lengths)
    inner = _take_axes(factors, pending, from_inner=True)
    outer = _take_axes(factors, pending, from_inner=False)
    if len(pending) > 1 or (factors and not pending):
        return None
    middle = [factors] if pending else []
    return [*outer, *middle, *reversed(inner)]


def _take_axes(factors: list[Factor], lengths: list[Length], *, from_inner: bool) -> Axes:
    """Remove lengths and their factors from one end of both lists, for as long as factors match.

    Returns:
        The axes of the removed lengths, in the order of removal.
    """
    end = -1 if from_inner else 0
    axes: Axes = []
    while lengths:
        axis = _take(factors, lengths[end], from_inner=from_inner)
        if axis is None:
            break
        axes.append(axis)
        lengths.pop(end)
    return axes


def _take(factors: list[Factor], length: Length, *, from_inner: bool) -> list[Factor] | None:
    """Remove factors with the product ``length`` from one end of ``factors``.

    Returns:
        The removed factors, outer ones first. If no factors have this product, return None and
        remove nothing.
    """
    remaining = list(factors)
    taken: list[Factor] = []
    missing = length
    while missing != ONE:
        if not remaining:
            return None
        factor = remaining.pop(-1 if from_inner else 0)
        quotient = missing.divided_by(factor.length)
        if quotient is None:
            rest_length = factor.length.divided_by(missing)
            if rest_length is None:
                return None
            factor, rest = factor.split(missing, rest_length, from_inner=from_inner)
            remaining.insert(len(remaining) if from_inner else 0, rest)
            quotient = ONE
        taken.append(factor)
        missing = quotient
    factors[:] = remaining
    return taken[::-1] if from_inner else taken
