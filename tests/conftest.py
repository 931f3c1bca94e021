"""What every test may ask for: a core to run on, and a path to reach the operators by."""

import importlib.util
import os
from collections.abc import Container, Iterable, Iterator
from typing import Any

# A thread of onnxruntime's telemetry makes forked children hang at their end.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import pytest

import fuzz
import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops.registry import unavailable_reason
from support.paths import (
    HAS_PYTHON_OPS,
    NO_PYTHON_OPS,
    PATHS,
    Function,
    Model,
    needs_python_ops,
    running_on,
)

fuzz.register()

#: The NumPy core is always there, the compiled one where Numba is; ORT_GRIDSAMPLE_CORE narrows it down to one.
CORES = ("numpy", "jit") if importlib.util.find_spec("numba") else ("numpy",)
CORES = tuple(core for core in CORES if os.environ.get("ORT_GRIDSAMPLE_CORE", core) == core)
#: What the package's sessions can run on here.
OPS = (*(["python"] if HAS_PYTHON_OPS else []), *([] if unavailable_reason() else ["compiled"]))
EVERY_OPS = [
    pytest.param("python", marks=needs_python_ops),
    *(each for each in OPS if each != "python"),
]


def _on(core: str) -> Iterator[str]:
    before = ogs.get_core()
    ogs.set_core(core)
    yield core
    ogs.set_core(before)


@pytest.fixture(scope="module", params=CORES)
def core(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on every core; its name."""
    yield from _on(request.param)


def pytest_sessionstart() -> None:
    """Let mutmut count what runs in this process alone: others find no settings of its where they are."""
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        del os.environ["MUTANT_UNDER_TEST"]


def with_slow(
    names: str, values: Iterable[object], quick: Container[object], **how: Any
) -> pytest.MarkDecorator:
    """A test for each of ``values``, slow for those that are not among the ``quick``."""
    return _marked(names, values, quick, pytest.mark.slow, **how)


def with_sweep(
    names: str, values: Iterable[object], quick: Container[object], **how: Any
) -> pytest.MarkDecorator:
    """A test for each of ``values``, part of the sweep for those that are not among the ``quick``."""
    return _marked(names, values, quick, pytest.mark.sweep, **how)


def _marked(
    names: str,
    values: Iterable[object],
    quick: Container[object],
    mark: pytest.MarkDecorator,
    **how: Any,
) -> pytest.MarkDecorator:
    marks = [(value, () if value in quick else mark) for value in values]
    parameters = [
        pytest.param(*(each if isinstance(each, tuple) else [each]), marks=mark)
        for each, mark in marks
    ]
    return pytest.mark.parametrize(names, parameters, **how)


@pytest.fixture(params=EVERY_OPS)
def ops(request: pytest.FixtureRequest) -> Iterator[str]:
    """Make the test's sessions on every kind of op; its name."""
    with running_on(request.param):
        yield request.param


@pytest.fixture
def python_ops() -> Iterator[None]:
    """Make the test's sessions on Python ops."""
    if not HAS_PYTHON_OPS:
        pytest.skip(NO_PYTHON_OPS)
    with running_on("python"):
        yield


@pytest.fixture
def default_core() -> Iterator[None]:
    """Let the test choose cores; afterwards it is the default one."""
    yield
    ogs.set_core(None)


@pytest.fixture
def numpy_core() -> Iterator[str]:
    """Run the test on the NumPy core, which need not be compiled for the many types of some tests."""
    yield from _on("numpy")


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Function | Model:
    """Run the test through the function, a session and a patched file."""
    return PATHS[request.param]
