"""Pixels in the CPU's vectors: what is written in LLVM answers as the loops for other CPUs, and as NumPy."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from cases import dtype_of
from processes import python

pytest.importorskip("numba", reason="the vectors are Numba's")
import numba

from ort_gridsample.core import halves

#: All compile for seconds; the default run holds the whole core, which is made of these, against the oracle.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("way", ["the CPU's", "in bits"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_halves_are_converted_as_by_numpy(kind: str, way: str) -> None:
    half, dtype = halves.HALVES[kind], dtype_of(kind)
    in_bits = (getattr(halves, f"{name}_{kind}") for name in ("from", "to"))
    widened, rounded = in_bits if way == "in bits" else (half.widened, half.rounded)

    @numba.njit
    def convert(numbers, bits, back, forth):
        for i in range(len(numbers)):
            back[i] = widened(bits[i])
            forth[i] = rounded(numbers[i])

    bits, rng = np.arange(1 << 16, dtype=np.uint16), np.random.default_rng(2)
    near = bits.view(dtype).astype(np.float32)  # every half, and numbers around each
    with np.errstate(invalid="ignore"):
        numbers = np.concatenate([near, near * np.float32(1 + 2**-11), np.float32(1e5) * rng.normal(size=1 << 16)])
    numbers = numbers.astype(np.float32)
    back, forth = np.empty(len(numbers), np.float32), np.empty(len(numbers), np.uint16)
    convert(numbers, np.resize(bits, len(numbers)), back, forth)
    np.testing.assert_array_equal(back[: len(bits)], near)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(forth.view(dtype).astype(np.float32), numbers.astype(dtype).astype(np.float32))


@pytest.mark.timeout(600)
def test_vectors_and_loops_answer_as_numpy(tmp_path: Path) -> None:
    """Loops on a CPU that does not gather. All but for a rounding."""
    script = """
import itertools, os, numpy as np
if os.environ["WAY"] == "loops":
    from ort_gridsample.core import vectors
    vectors.GATHERS = False
import ort_gridsample as ogs
ogs.set_core("numpy" if os.environ["WAY"] == "numpy" else "jit")
rng = np.random.default_rng(0)
answers = {}
for kind, mode, r, channels in itertools.product(("float32", "float16", "int16"), ("linear", "cubic"), (1, 2), (3, 37)):
    X = (100 * rng.normal(size=(1, channels, *(9,) * r))).astype(kind)
    grid = rng.uniform(-1.2, 1.2, (1, 70, *(5,) * (r - 1), r)).astype(np.float32)
    grid[:, :20] *= 0.5
    answers[f"{kind} {mode} {r} {channels}"] = ogs.grid_sample(X, grid, mode=mode)
np.savez(os.environ["OUT"], **answers)
"""
    found = {}
    for way in ("numpy", "vectors", "loops"):
        out, cache = str(tmp_path / f"{way}.npz"), str(tmp_path / way)
        assert python(script, {**os.environ, "WAY": way, "OUT": out, "NUMBA_CACHE_DIR": cache}) == []
        found[way] = np.load(out)
    for name, way in itertools.product(found["numpy"], ("vectors", "loops")):
        a, b = found["numpy"][name], found[way][name]
        close = {"float32": 1e-5, "float16": 2e-3, "int16": 0}[name.split()[0]]
        assert a.dtype == b.dtype
        np.testing.assert_allclose(b.astype("d"), a.astype("d"), rtol=close, atol=100 * close or 1, err_msg=name)
