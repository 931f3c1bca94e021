"""What every test may ask for: a core to run on, and a path to reach the operators by."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

import ort_gridsample as ogs
from paths import PATHS, Function, Model

#: The NumPy core is always there; the compiled one where the package and the environment have it.
CORES = ("numpy", "jit") if hasattr(ogs, "set_core") and importlib.util.find_spec("numba") else ("numpy",)


@pytest.fixture(scope="module", params=CORES)
def core(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on every core; its name."""
    if CORES == ("numpy",):
        yield request.param
        return
    before = ogs.get_core()
    ogs.set_core(request.param)
    yield request.param
    ogs.set_core(before)


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Function | Model:
    """Run the test through the function, a session and a patched file."""
    return PATHS[request.param]
