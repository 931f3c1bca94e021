"""The preparation of kernels for types that have none."""

from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("numba", reason="the compiled core needs Numba")
from ort_gridsample.kernels import jit_core


@pytest.mark.parametrize("dtype", [object, "U1"])
def test_prepare_of_strings_compiles_nothing(
    dtype: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = Mock(side_effect=AssertionError("a kernel is compiled"))
    monkeypatch.setattr(jit_core, "_sampling_functions", refuse)
    monkeypatch.setattr(jit_core, "missing_on_disk", refuse)
    jit_core.prepare(np.dtype(dtype), np.dtype("float32"), "nearest")
    refuse.assert_not_called()
