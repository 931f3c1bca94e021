"""Fixtures and marks for all tests: cores, kinds of ops, and ways to call the operators."""

import os
import zlib
from collections.abc import Iterator

# A thread of onnxruntime's telemetry makes forked children hang at their end.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# pytest-xdist sets the width of the terminal, at which commands would fold what they print.
os.environ.pop("COLUMNS", None)

import pytest

import fuzz
import ort_gridsample as ogs
from ort_gridsample.dialects import registry
from support.parameters import COMPILED_OPS, CORES
from support.paths import (
    HAS_PYTHON_OPS,
    NO_PYTHON_OPS,
    PATHS,
    Function,
    Model,
    core_set_to,
    needs_python_ops,
    running_on,
)

#: The fixtures of tests/web.
pytest_plugins = ["support.built_page"]

fuzz.register()


@pytest.fixture(scope="module", params=CORES)
def core(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on every core; yield the core's name."""
    with core_set_to(request.param):
        yield request.param


#: The folders of the layers without kernels. Their tests call the functions on the NumPy core.
WITHOUT_KERNELS = {"graph", "dialects", "inference", "opsets", "detection", "rewriting"}
#: One of so many tests of the contract suite is quick.
QUICK_SHARE = 25


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark a sample of the contract suite as quick. It is the same in each run and process.

    Tests of layers without kernels use the fixture :func:`numpy_core`.
    """
    for item in items:
        if item.path.parent.name in WITHOUT_KERNELS and isinstance(item, pytest.Function):
            item.fixturenames.append("numpy_core")
        in_suite = "contract" in item.path.parts
        is_long = any(item.get_closest_marker(name) for name in ("slow", "network", "sweep"))
        # An edit of a kernel builds the library again.
        is_long |= "library" in item.name
        if in_suite and not is_long and zlib.crc32(item.nodeid.encode()) % QUICK_SHARE == 0:
            item.add_marker(pytest.mark.quick)


def pytest_sessionstart() -> None:
    """Let mutmut collect statistics in this process only: child processes lack its settings."""
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        del os.environ["MUTANT_UNDER_TEST"]


@pytest.fixture(params=[pytest.param("python", marks=needs_python_ops), *COMPILED_OPS])
def ops(request: pytest.FixtureRequest) -> Iterator[str]:
    """Open the test's sessions on every kind of op; yield its name."""
    with running_on(request.param):
        yield request.param


@pytest.fixture
def python_ops() -> Iterator[None]:
    """Open the test's sessions on Python ops."""
    if not HAS_PYTHON_OPS:
        pytest.skip(NO_PYTHON_OPS)
    with running_on("python"):
        yield


@pytest.fixture
def new_dialects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo add_dialect after the test."""
    monkeypatch.setattr(registry, "_registry", registry.Registry())


@pytest.fixture
def default_core() -> Iterator[None]:
    """Select the default core after the test."""
    yield
    ogs.set_core(None)


@pytest.fixture
def numpy_core() -> Iterator[str]:
    """Run the test on the NumPy core, which is not compiled for each type."""
    with core_set_to("numpy"):
        yield "numpy"


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Function | Model:
    """Run the test through the function, a session and a patched file."""
    return PATHS[request.param]
