"""Run the examples in the docstrings of the public functions."""

import copy
import doctest
import inspect
import sys

import pytest

import ort_gridsample as ogs
from ort_gridsample.dialects import registry
from support.paths import HAS_PROVIDER

FUNCTIONS = [name for name in ogs.__all__ if inspect.isroutine(getattr(ogs, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_examples_print_the_output_that_they_show(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "register_provider" and not HAS_PROVIDER:
        pytest.skip("this onnxruntime has no execution providers with kernels")
    monkeypatch.setattr(registry, "_registry", copy.deepcopy(registry._registry))
    function = getattr(ogs, name)
    module = vars(sys.modules[inspect.unwrap(function).__module__])
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(function, name, globs=dict(module)):
        runner.run(example)
    assert runner.failures == 0
