"""What tests are parametrized with: the installed cores and ops, and marks for slow cases."""

import os
from collections.abc import Container, Iterable, Sequence
from itertools import product
from typing import Any

import pytest

from support.paths import HAS_COMPILED_OPS, HAS_PYTHON_OPS, INSTALLED_CORES

#: The cores to test: all that are installed, or the one that ORT_GRIDSAMPLE_CORE names.
CORES = tuple(
    core for core in INSTALLED_CORES if os.environ.get("ORT_GRIDSAMPLE_CORE", core) == core
)
PYTHON_OPS = ("python",) if HAS_PYTHON_OPS else ()
COMPILED_OPS = ("compiled",) if HAS_COMPILED_OPS else ()
#: The kinds of ops that sessions of this package can run.
OPS = (*PYTHON_OPS, *COMPILED_OPS)


def with_slow(
    names: str, values: Iterable[object], quick: Container[object], **options: Any
) -> pytest.MarkDecorator:
    """Parametrize a test; mark all values as slow except the ``quick`` ones."""
    return _parametrize(names, values, quick, pytest.mark.slow, **options)


def with_sweep(
    names: str, values: Iterable[object], quick: Container[object], **options: Any
) -> pytest.MarkDecorator:
    """Parametrize a test; mark all values as part of the sweep except the ``quick`` ones."""
    return _parametrize(names, values, quick, pytest.mark.sweep, **options)


def combinations_of(*values: Sequence[object]) -> tuple[list[Any], list[Any]]:
    """Return all combinations of values, and those that have each pair of them.

    The latter differ from the combination of the first values in two of them at most.
    """
    combinations = [*product(*values)]
    first = combinations[0]
    with_pairs = [
        combination
        for combination in combinations
        if sum(a != b for a, b in zip(combination, first, strict=True)) <= 2
    ]
    return combinations, with_pairs


def _parametrize(
    names: str,
    values: Iterable[object],
    quick: Container[object],
    mark: pytest.MarkDecorator,
    **options: Any,
) -> pytest.MarkDecorator:
    parameters = []
    for value in values:
        arguments = value if isinstance(value, tuple) else (value,)
        marks = () if value in quick else mark
        parameters.append(pytest.param(*arguments, marks=marks))
    return pytest.mark.parametrize(names, parameters, **options)
