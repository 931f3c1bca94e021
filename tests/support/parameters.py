"""What tests are parametrized with: the installed cores and ops, and marks for slow cases."""

import os
from collections.abc import Container, Iterable
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
