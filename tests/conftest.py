"""What every test may ask for: a core to run on, and a path to reach the operators by."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

import ort_gridsample as ogs
from paths import PATHS, Function, Model

#: The NumPy core is always there, the compiled one where Numba is; ORT_GRIDSAMPLE_CORE narrows it down to one.
CORES = ("numpy", "jit") if importlib.util.find_spec("numba") else ("numpy",)
CORES = tuple(core for core in CORES if os.environ.get("ORT_GRIDSAMPLE_CORE", core) == core)


@pytest.fixture(scope="module", params=CORES)
def core(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on every core; its name."""
    before = ogs.get_core()
    ogs.set_core(request.param)
    yield request.param
    ogs.set_core(before)


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Function | Model:
    """Run the test through the function, a session and a patched file."""
    return PATHS[request.param]
