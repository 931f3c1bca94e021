"""Run models of basic operators, and compare their outputs with the function's."""

from dataclasses import astuple

import numpy as np
from onnx.reference import ReferenceEvaluator

import ort_gridsample as ogs
from support import paths


def run(model, *inputs):
    """Run a model in plain onnxruntime; the output has the type of the first input."""
    return paths.run(paths.open_native(model), inputs[0].dtype, *inputs)[0]


def run_reference(model, *inputs):
    """Run a model in onnx's evaluator."""
    feeds = {value.name: array for value, array in zip(model.graph.input, inputs, strict=True)}
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, feeds)[0]


def assert_close(Y, X, grid, attributes, atol=1e-5):
    """Check Y against the function, exactly if the mode is nearest."""
    with np.errstate(invalid="ignore"):
        expected = ogs.grid_sample(X, grid, *astuple(attributes))
    assert (Y.shape, Y.dtype) == (expected.shape, expected.dtype)
    atol = 0 if attributes.mode == "nearest" else atol
    np.testing.assert_allclose(Y, expected, rtol=0, atol=atol)
