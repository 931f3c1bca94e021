"""The programs that compute the coordinates of a grid."""

import doctest

import numpy as np
from onnx import parser

from ort_gridsample.detection import find, programs
from ort_gridsample.graph.scope import scopes_of


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
