"""Symbolic lengths of axes: products of a number and of lengths that are known only in a run.

Exporters often compute the shape that a Reshape reads from the shapes of other values. These
products tell how such a Reshape splits and merges axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: The maximum number of unknown factors of a length. A chain of products doubles them at each node.
MAX_FACTORS = 64
#: The maximum length of an axis: lengths are int64.
_MAX_NUMBER = (1 << 63) - 1


class Length(NamedTuple):
    """A product of a number and of unknown lengths.

    As an element of a Reshape's shape, 0 and -1 have ONNX's meaning.

    Attributes:
        number: the known factor.
        unknown: the unknown factors, each a value's name and an axis, sorted.
    """

    number: int = 1
    unknown: tuple[tuple[str, int], ...] = ()

    def __mul__(self, other: Length) -> Length:  # type: ignore[override]
        return product_of((self, other))

    def divided_by(self, other: Length) -> Length | None:
        """Return the quotient, or None if ``other`` is not a divisor."""
        remaining = list(self.unknown)
        for factor in other.unknown:
            if factor not in remaining:
                return None
            remaining.remove(factor)
        if other.number == 0 or self.number % other.number != 0:
            return None
        return Length(self.number // other.number, tuple(remaining))

    @property
    def is_tractable(self) -> bool:
        """Whether the factors are few enough to compute with, and the number fits int64."""
        return len(self.unknown) <= MAX_FACTORS and abs(self.number) <= _MAX_NUMBER

    @property
    def known(self) -> int | None:
        """The length as a number, or None if it has unknown factors."""
        return None if self.unknown else self.number


ONE = Length()
#: The lengths of the axes of a value, or the elements of a 1-D tensor of lengths. An unknown
#: length is None.
PartialLengths = Sequence[Length | None]


def product_of(lengths: Iterable[Length]) -> Length:
    """Return the product of ``lengths``."""
    number = 1
    unknown: tuple[tuple[str, int], ...] = ()
    for length in lengths:
        number *= length.number
        if length.unknown:
            unknown = tuple(sorted(unknown + length.unknown)) if unknown else length.unknown
    return Length(number, unknown)


def known_numbers(lengths: PartialLengths | None) -> list[int] | None:
    """Return ``lengths`` as numbers; None if one of them, or their count, is unknown."""
    if lengths is None:
        return None
    numbers = [None if length is None else length.known for length in lengths]
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) else None
