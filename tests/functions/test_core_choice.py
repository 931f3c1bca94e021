"""The name of the core before and after the first call."""

from unittest.mock import Mock

import pytest

import ort_gridsample as ogs
from ort_gridsample.functions import cores

pytestmark = pytest.mark.usefixtures("default_core")


def test_get_core_before_the_first_call_with_broken_numba_is_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("numba", reason="without Numba the core is NumPy's in any case")
    refuse = Mock(side_effect=SystemError("made for another NumPy"))
    monkeypatch.setattr(cores, "need_numba", refuse)
    ogs.set_core("auto")
    assert ogs.get_core() == "numpy"
