"""Nothing that goes wrong in an op ends the process: each case runs in one of its own, which an abort would end."""

from __future__ import annotations

import numpy as np
import pytest

import ort_gridsample as ogs
from cases import Attributes, dtype_of
from models import grid_sample_model
from paths import PATHS
from processes import COMPILED, PYTHON, WAYS, run_each

#: Wrong grids, of a run and of twenty asynchronous ones, and what an op raises on purpose, where Python is in the run.
EXCEPTIONS = """
import threading
import ort_gridsample.runtime.python_ops.ops as ops
session, function = make(open_model), ops.grid_sample
done, seen = threading.Semaphore(0), {}
def callback(results, i, error):
    seen[i] = error if error else results[0].shape
    done.release()
for i in range(20):
    session.run_async(None, {"X": X, "grid": grid[[0] * (2 if i % 5 == 0 else 1)]}, callback, i)
print(all(done.acquire(timeout=60) for i in range(20)))
print(all(seen[i] == X.shape if i % 5 else "GridSample node" in seen[i] for i in range(20)))
print(attempt(session, X, grid[[0] * 3]))
print(attempt(session, X, grid))
for exception in (ValueError, MemoryError, KeyboardInterrupt, SystemExit, RecursionError)[:RAISED]:
    def broken(*args, **kwargs):
        raise exception("broken on purpose")
    ops.grid_sample = broken
    try:
        print(attempt(session, X, grid))
    except BaseException as error:
        print(type(error).__name__, error)
    ops.grid_sample = function
    print(attempt(session, X, grid))
"""


def test_wrong_grid_and_exceptions_in_the_core() -> None:
    answers = run_each(EXCEPTIONS.replace("RAISED", "5 if open_model in (open_session, open_patched_file) else 0"))
    assert list(answers) == WAYS
    node, shape = "GridSample node 'sample0'", "(1, 2, 64, 64)"
    for way, (all_ended, as_they_should, wrong, *raised) in answers.items():
        assert (all_ended, as_they_should) == ("True", "True"), way
        plain = way == "open_patched_file"  # which says no more than which node it was
        assert (f"rejected the input of {node}" if plain else f"{node}: grid is of shape (3, 64, 64, 2)") in wrong, way
        sentence = "ort_gridsample rejected" if plain else "broken on purpose"
        assert [sentence in line for line in raised[1::2]] == [True] * (5 if way in PYTHON else 0), (way, raised)
        assert set(raised[::2]) == {shape}, way


@pytest.mark.parametrize(
    ("X_type", "bit"), [("float16", 2**-9), pytest.param("bfloat16", 2**-6, marks=pytest.mark.slow)]
)
def test_half_precision(X_type: str, bit: float) -> None:
    """Through Casts to and from float32 on a Python op, as it is on a compiled one; the answer is the function's."""
    attributes = Attributes("linear", "border")
    model = grid_sample_model(X_type, "float32", 2, [attributes])
    outside = [node.op_type for node in model.graph.node if node.op_type != "GridSample"]
    for target, casts in (("ort_gridsample", 2), ("compiled", 0))[: 2 if COMPILED else 1]:
        patched = [node.op_type for node in ogs.patch_model(model, target=target).graph.node]
        assert patched.count("Cast") == len(outside) + casts, target
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1, 2, 5, 6)).astype(dtype_of(X_type))
    grid = rng.uniform(-1.2, 1.2, (1, 3, 4, 2)).astype(np.float32)
    expected = ogs.grid_sample(X, grid, "linear", "border")
    for name, path in PATHS.items():
        found = path.grid_sample(X, grid, "linear", "border", False)
        assert found.dtype == X.dtype, name
        np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=0, atol=bit, err_msg=name)
