"""Axes as digits of the indices on other axes: how a Reshape splits and merges them."""

from collections.abc import Sequence

import pytest

from ort_gridsample.inference.axes import (
    Factor,
    are_same,
    flatten,
    known_product,
    merged,
    new_axes,
    regroup,
    rest_after,
    whole_axes,
)
from ort_gridsample.inference.symbolic import ONE, Length

N = Length(unknown=(("X", 0),))
Q = Length(unknown=(("X", 1),))
OTHER = Length(unknown=(("Y", 0),))


def lengths(*values: Length | int) -> list[Length]:
    return [value if isinstance(value, Length) else Length(value) for value in values]


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
    axes = whole_axes(lengths(*before))
    regrouped = regroup(axes, lengths(*after))
    assert regrouped is not None
    assert [[factor.length for factor in axis] for axis in regrouped] == [
        lengths(*axis) for axis in expected
    ]
    assert are_same(flatten(regrouped), flatten(axes))


@pytest.mark.parametrize("after", [(5, 5), (OTHER, OTHER), (4, 5, 5, 4), ()])
def test_regroup_lengths_of_another_product_returns_none(after: Sequence[Length | int]) -> None:
    assert regroup(whole_axes(lengths(6, 4)), lengths(*after)) is None


def test_regroup_unknown_rank_returns_none() -> None:
    assert regroup(whole_axes(lengths(6, 4)), None) is None


def test_regroup_split_axis_is_the_same_as_the_whole_axis() -> None:
    (axis,) = new_axes([Length(6)])
    regrouped = regroup([axis], [Length(2), Length(3)])
    assert regrouped is not None
    assert are_same(axis, flatten(regrouped))
    assert not are_same(axis, *new_axes([Length(6)]))


def test_regroup_axis_that_was_split_can_be_split_otherwise() -> None:
    (axis,) = new_axes([Length(6)])
    first = regroup([axis], [Length(2), Length(3)])
    second = regroup([axis], [Length(3), Length(2)])
    assert first is not None
    assert second is not None
    assert are_same(flatten(first), flatten(second))
    assert not are_same(first[0], second[1])


def test_regroup_changes_neither_axes_nor_lengths() -> None:
    axes = whole_axes(lengths(6, 4))
    after = lengths(3, 8)
    regroup(axes, after)
    assert axes == whole_axes(lengths(6, 4))
    assert after == lengths(3, 8)


def test_are_same_digits_in_another_order_is_false() -> None:
    outer, inner = Factor(N * Q, "N·Q").split(N, Q)
    assert are_same((outer, inner), (Factor(N * Q, "N·Q"),))
    assert not are_same((inner, outer), (Factor(N * Q, "N·Q"),))


def test_merged_digits_with_a_gap_stay_apart() -> None:
    digits = regroup(whole_axes(lengths(24)), lengths(2, 3, 4))
    assert digits is not None
    assert merged((*digits[0], *digits[2])) == (*digits[0], *digits[2])


def test_rest_after_other_digits_is_none() -> None:
    outer, inner = Factor(N * Q, "N·Q").split(N, Q)
    whole = (Factor(N * Q, "N·Q"),)
    assert rest_after((outer,), whole) == (inner,)
    assert rest_after((inner,), whole) is None
    assert rest_after(whole, (outer,)) is None
    assert rest_after((), whole) == whole
    assert rest_after(whole, whole) == ()


def test_known_product_of_an_unknown_factor_is_none() -> None:
    assert known_product(flatten(new_axes(lengths(2, 3)))) == 6
    assert known_product(flatten(new_axes(lengths(2, Q)))) is None
    assert known_product(flatten(new_axes([ONE]))) == 1
