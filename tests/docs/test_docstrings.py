"""The examples in the docstrings of the public functions run, and print what they show."""

import copy
import doctest
import inspect
import sys

import pytest

import ort_gridsample as ogs
from ort_gridsample.dialects import registry

FUNCTIONS = [name for name in ogs.__all__ if inspect.isroutine(getattr(ogs, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_examples_print_what_they_show(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registry", copy.deepcopy(registry._registry))
    function = getattr(ogs, name)
    module = vars(sys.modules[inspect.unwrap(function).__module__])
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(function, name, globs=dict(module)):
        runner.run(example)
    assert runner.failures == 0
