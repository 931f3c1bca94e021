"""The functions that the specifications of the operators name."""

from collections.abc import Callable
from unittest.mock import Mock

import pytest

from ort_gridsample import spec
from ort_gridsample.functions import affine, attention, operators, sampling

FUNCTIONS = {
    "GridSample": sampling.grid_sample,
    "AffineGrid": affine.affine_grid,
    "DeformableAttention": attention.attend,
}


def test_every_operator_is_listed() -> None:
    assert FUNCTIONS.keys() == spec.OP_SPECS.keys()


@pytest.mark.parametrize(("operator", "function"), FUNCTIONS.items())
def test_function_of_operator_is_the_named_one(
    operator: str, function: Callable[..., object]
) -> None:
    assert operators.function_of(operator) is function


def test_function_of_operator_that_was_replaced_is_the_replacement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replacement = Mock()
    monkeypatch.setattr(sampling, "grid_sample", replacement)
    assert operators.function_of("GridSample") is replacement
