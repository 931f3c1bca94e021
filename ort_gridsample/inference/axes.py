"""The axes of a value as factors of the axes that another value has.

A Reshape merges and splits axes. If it merges axes B and H, the index on the new axis is b·H + h.
The two digits b and h of that number are the indices on B and H. So an axis is a sequence of digits
(:class:`Factor`), outer ones first, and two axes are the same if they have the same digits.

Axes are immutable. Regrouping them returns new ones, and comparing them changes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from .symbolic import ONE, Length, product_of


class Factor(NamedTuple):
    """A digit of the index on an axis: ``index // inner % length``.

    Attributes:
        length: the number of values of the digit.
        axis: the axis, by an index or by an object that no other axis has.
        inner: the product of the lengths of the digits inside of it.
    """

    length: Length
    axis: Hashable
    inner: Length = ONE

    @classmethod
    def of_new_axis(cls, length: Length) -> Factor:
        """Return the whole index on an axis that is none of those before."""
        return cls(length, object())

    def split(self, outer: Length, inner: Length) -> tuple[Factor, Factor]:
        """Return the digit as two, whose lengths have the product ``length``."""
        return Factor(outer, self.axis, self.inner * inner), Factor(inner, self.axis, self.inner)


#: The factors of an axis, outer ones first.
Factors = tuple[Factor, ...]
#: The factors of each axis of a value.
Axes = tuple[Factors, ...]


def new_axes(lengths: Iterable[Length]) -> Axes:
    """Return axes of these lengths that are none of those before."""
    return tuple((Factor.of_new_axis(length),) for length in lengths)


def whole_axes(lengths: Iterable[Length]) -> Axes:
    """Return axes of these lengths, each with its index as its name."""
    make = Factor._make  # in half the time of a call with defaults
    return tuple([(make((length, axis, ONE)),) for axis, length in enumerate(lengths)])


def merged(factors: Iterable[Factor]) -> Factors:
    """Return ``factors`` in the form that equal axes share.

    Factors of length 1 are left out, and digits of one axis that follow one another are one.
    """
    result: list[Factor] = []
    for factor in factors:
        length, axis, inner = factor
        if length == ONE:
            continue
        if result and result[-1].axis == axis and result[-1].inner == inner * length:
            result[-1] = Factor(result[-1].length * length, axis, inner)
        else:
            result.append(factor)
    return tuple(result)


def flatten(axes: Iterable[Factors]) -> Factors:
    """Return the factors of all ``axes``, outer ones first."""
    return tuple(factor for axis in axes for factor in axis)


def are_same(first: Factors, second: Factors) -> bool:
    """Whether two axes have the same digits in the same order."""
    return first == second or merged(first) == merged(second)


def length_of(factors: Iterable[Factor]) -> Length:
    """Return the product of the lengths of ``factors``."""
    return product_of(factor.length for factor in factors)


def known_product(factors: Iterable[Factor]) -> int | None:
    """Return the product of the lengths of ``factors``, or None if one of them is unknown."""
    return length_of(factors).known


def rest_after(outer: Factors, factors: Factors) -> Factors | None:
    """Return ``factors`` without those of ``outer``, or None if they do not begin with these.

    >>> B, H = Length(unknown=(("X", 0),)), Length(8)
    >>> outer, inner = Factor(B * H, "B·H").split(B, H)
    >>> rest_after((outer,), (Factor(B * H, "B·H"),)) == (inner,)
    True
    """
    rest = list(merged(factors))
    taken = _take(rest, length_of(outer), from_inner=False)
    if taken is None or not are_same(taken, outer):
        return None
    return tuple(rest)


def regroup(axes: Sequence[Factors], lengths: Sequence[Length] | None) -> Axes | None:
    """Return the factors of ``axes``, in their order, as axes of other lengths.

    The lengths are matched from the inner end first, then from the outer end. One length between
    them need not match: its axis gets the remaining factors.

    >>> axes = whole_axes([Length(6), Length(4)])
    >>> regrouped = regroup(axes, [Length(2), Length(12)])
    >>> [[factor.length.number for factor in axis] for axis in regrouped]
    [[2], [3, 4]]
    >>> are_same(flatten(regrouped), flatten(axes))
    True

    Args:
        axes: the axes before the Reshape.
        lengths: the lengths after it, or None if their number is unknown.

    Returns:
        The axes after the Reshape, or None if they do not follow from the factors.
    """
    if lengths is None:
        return None
    factors = list(merged(flatten(axes)))
    pending = list(lengths)
    inner = _take_axes(factors, pending, from_inner=True)
    outer = _take_axes(factors, pending, from_inner=False)
    if len(pending) > 1 or (factors and not pending):
        return None
    middle = [tuple(factors)] if pending else []
    return (*outer, *middle, *reversed(inner))


def _take_axes(factors: list[Factor], lengths: list[Length], *, from_inner: bool) -> list[Factors]:
    """Remove lengths and their factors from one end of both lists, for as long as factors match.

    Returns:
        The axes of the removed lengths, in the order of removal.
    """
    end = -1 if from_inner else 0
    axes = []
    while lengths:
        axis = _take(factors, lengths[end], from_inner=from_inner)
        if axis is None:
            break
        axes.append(axis)
        lengths.pop(end)
    return axes


def _take(factors: list[Factor], length: Length, *, from_inner: bool) -> Factors | None:
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
            if from_inner:
                rest, factor = factor.split(rest_length, missing)
                remaining.append(rest)
            else:
                factor, rest = factor.split(missing, rest_length)
                remaining.insert(0, rest)
            quotient = ONE
        taken.append(factor)
        missing = quotient
    factors[:] = remaining
    return tuple(taken[::-1] if from_inner else taken)
