"""Run the examples in the docstrings of the public names."""

import copy
import doctest
import inspect
import sys

import pytest

import ort_gridsample as ogs
from ort_gridsample.dialects import registry
from support.paths import HAS_BFLOAT16_VALUES, HAS_PROVIDER

NAMES = [name for name in ogs.__all__ if callable(getattr(ogs, name))]


@pytest.mark.parametrize("name", NAMES)
def test_docstring_examples_print_the_output_that_they_show(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "register_provider" and not HAS_PROVIDER:
        pytest.skip("this onnxruntime has no execution providers with kernels")
    if name == "InferenceSession" and not HAS_BFLOAT16_VALUES:
        pytest.skip("this onnxruntime has no values of bfloat16 in Python")
    monkeypatch.setattr(registry, "_registry", copy.deepcopy(registry._registry))
    public = getattr(ogs, name)
    module = vars(sys.modules[inspect.unwrap(public).__module__])
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(public, name, globs=dict(module)):
        runner.run(example)
    assert runner.failures == 0
