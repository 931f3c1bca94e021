"""A session compiles what its nodes need when it is made."""

from __future__ import annotations

import numpy as np
import pytest

import ort_gridsample as ogs
from cases import Attributes
from models import grid_sample_model
from ort_gridsample.core import numpy_core
from processes import python


@pytest.mark.usefixtures("python_ops")
@pytest.mark.parametrize("patched_before", [False, True])
def test_what_the_nodes_need_is_prepared(patched_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("ort_gridsample.runtime.session.core", lambda: numpy_core)
    monkeypatch.setattr(numpy_core, "prepare", lambda *what: asked.append(what))
    model = grid_sample_model("float16", "float64", 2, [Attributes("cubic", "zeros", False)] * 2)
    ogs.InferenceSession(ogs.patch_model(model) if patched_before else model, nodes="all")
    assert asked == [(np.dtype("float32"), np.dtype("float64"), "cubic")]


@pytest.mark.parametrize(
    "X_type", ["float32", *(pytest.param(name, marks=pytest.mark.slow) for name in ("float16", "uint8", "complex64"))]
)
def test_nothing_is_left_to_compile_in_a_run(X_type: str) -> None:
    """Not even to load: LLVM ends a process that has no memory left for that."""
    pytest.importorskip("numba")
    (added,) = python(f"""
import numpy as np
from ort_gridsample import grid_sample
from ort_gridsample.core import compilation, jit_core, lanes, ways

def known():
    return compilation.function.cache_info().currsize

jit_core.prepare(np.dtype("{X_type}"), np.dtype("float32"), "linear")
before = known()
parts = ways.parts("{X_type}", "float32", "linear", (lanes.steer,))
assert all(compilation.function(part)._address for part in parts if part is not None)
for n in (1, 8):
    for channels in (1, 2, 8, 9, 40):
        for side in (2, 60):
            X, grid = np.ones((n, channels, 9, 9), "{X_type}"), np.ones((n, side, side, 2), np.float32)
            grid_sample(X, grid, "linear", num_threads=2)
print(before, known() - before)
""")
    count, _, more = added.partition(" ")
    assert int(count) > 0
    assert more == "0"
