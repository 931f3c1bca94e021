"""Operators that PyTorch decomposed to basic ones, in each way that replaces them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pytest

from support.decomposed_models import ONE_OF_EACH_KIND, feeds_for, load_decomposed
from support.forms import Form
from support.paths import open_native
from support.ways import WAYS, Matrix


class DecomposedForm(Form):
    """A model of basic operators, which onnxruntime runs itself."""

    @cached_property
    def expected(self) -> list[np.ndarray]:
        return open_native(self.model).run(None, self.feeds)


def form_of(name: str) -> Form:
    model = load_decomposed(name)
    return DecomposedForm(model, feeds_for(model), tolerance=4e-4)


MATRIX = Matrix(form_of, [], sample=lambda name: True, library="(?!)")
#: The ways in which a session or a patch detects such operators. The provider does not.
DETECTING = ("python", "compiled", "patched file", "compiled file", "ai.onnx")


@pytest.mark.parametrize(
    ("name", "way"), MATRIX.cells(ONE_OF_EACH_KIND, [*WAYS.keys() - DETECTING])
)
def test_decomposed_operator_in_any_way_has_the_outputs_of_onnxruntime(name: str, way: str) -> None:
    MATRIX.run(name, way)
