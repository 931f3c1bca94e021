"""Run the examples in the docstrings of the public names."""

import copy
import doctest
import inspect
import sys

import numpy as np
import pytest
from onnx import parser

import ort_gridsample as ogs
from ort_gridsample.detection import find, programs
from ort_gridsample.dialects import registry
from ort_gridsample.graph.scope import scopes_of
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


def test_example_of_programs_prints_the_output_that_it_shows() -> None:
    results = doctest.testmod(programs)
    assert results.attempted
    assert not results.failed


def test_example_of_programs_is_traced_to_the_programs_that_it_shows() -> None:
    text = programs.__doc__ or ""
    nodes = "".join(line for line in text.splitlines() if line.startswith("    "))
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[1,3,8,8] X, float[N,2,H,W] flow, float[1] one) => (float[] Y) {{
            {nodes} Y = GridSample (X, grid) }}"""
    )
    (match,) = find.find_matches(model, scopes_of(model), None, with_reasons=False)
    assert match.fused_grid is not None
    numbers = programs.encode(match.fused_grid.programs, match.fused_grid.values)
    assert str(np.reshape(numbers, (2, -1))[:, :8].tolist()) in text
    assert match.fused_grid.scalars == [320.0, "one", 240.0, "one"]
