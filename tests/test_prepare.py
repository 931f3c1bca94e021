"""A session compiles what its nodes need when it is made."""

from __future__ import annotations

import numpy as np
import pytest

import ort_gridsample as ogs
from cases import Attributes
from models import grid_sample_model
from ort_gridsample.core import numpy_core


@pytest.mark.usefixtures("python_ops")
@pytest.mark.parametrize("patched_before", [False, True])
def test_what_the_nodes_need_is_prepared(patched_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("ort_gridsample.runtime.session.core", lambda: numpy_core)
    monkeypatch.setattr(numpy_core, "prepare", lambda *what: asked.append(what))
    model = grid_sample_model("float16", "float64", 2, [Attributes("cubic", "zeros", False)] * 2)
    ogs.InferenceSession(ogs.patch_model(model) if patched_before else model, nodes="all")
    assert asked == [(np.dtype("float32"), np.dtype("float64"), "cubic")]
