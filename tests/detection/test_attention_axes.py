"""Axes as shared factors: how a Reshape splits and merges them."""

from collections.abc import Sequence

import pytest

from ort_gridsample.detection.attention.axes import (
    Axes,
    Factor,
    are_same,
    flatten,
    known_product,
    leaves,
    regroup,
)
from ort_gridsample.inference.lengths import ONE, Length

N = Length(unknown=(("X", 0),))
Q = Length(unknown=(("X", 1),))
OTHER = Length(unknown=(("Y", 0),))


def lengths(*values: Length | int) -> list[Length]:
    return [value if isinstance(value, Length) else Length(value) for value in values]


def axes_of(*values: Length | int) -> Axes:
    return [[Factor(length)] for length in lengths(*values)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((6, 4), (6, 4), [[6], [4]]),
        ((6, 4), (24,), [[6, 4]]),
        ((6, 4), (2, 3, 4), [[2], [3], [4]]),
        ((6, 4), (3, 8), [[3], [2, 4]]),
        ((6, 4), (6, 1, 4), [[6], [], [4]]),
        ((1, 6), (6,), [[6]]),
        ((), (1,), [[]]),
        ((N, 8, Q), (N * Length(8), Q), [[N, 8], [Q]]),
        ((N * Length(8), Q), (N, 8, Q), [[N], [8], [Q]]),
        (
            (8, Q),
            (2, OTHER, Q),
            [[2], [4], [Q]],
        ),  # the remaining factors are of the unmatched length
    ],
)
def test_regroup_lengths_of_the_same_product_returns_their_factors(
    before: Sequence[Length | int],
    after: Sequence[Length | int],
    expected: Sequence[Sequence[Length | int]],
) -> None:
    axes = axes_of(*before)
    regrouped = regroup(axes, lengths(*after))
    assert regrouped is not None
    assert [[factor.length for factor in leaves(axis)] for axis in regrouped] == [
        lengths(*axis) for axis in expected
    ]
    assert are_same(flatten(regrouped), flatten(axes))


@pytest.mark.parametrize("after", [(5, 5), (OTHER, OTHER), (4, 5, 5, 4), ()])
def test_regroup_lengths_of_another_product_returns_none(after: Sequence[Length | int]) -> None:
    assert regroup(axes_of(6, 4), lengths(*after)) is None


def test_regroup_unknown_rank_returns_none() -> None:
    assert regroup(axes_of(6, 4), None) is None


def test_regroup_splits_factors_that_another_value_shares() -> None:
    axis = [Factor(Length(6))]
    other = [axis, [Factor(Length(4))]]
    regrouped = regroup([axis], [Length(2), Length(3)])
    assert regrouped is not None
    assert are_same(other[0], flatten(regrouped))
    assert not are_same(axis, [Factor(Length(6))])


def test_known_product_of_an_unknown_factor_is_none() -> None:
    assert known_product([Factor(Length(2)), Factor(Length(3))]) == 6
    assert known_product([Factor(Length(2)), Factor(Q)]) is None
    assert known_product([Factor(ONE)]) == 1
