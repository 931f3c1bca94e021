"""Placeholders: the only tensors without values."""

import ast
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import ort_gridsample
from ort_gridsample.graph.model_source import ModelSource
from ort_gridsample.graph.placeholders import is_placeholder
from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.graph.weights import SeparateWeights
from support.models import parsed

#: A model whose constants C are one of the main graph and one of a branch.
BRANCHES = """g (bool c, float[2] X) => (float[2] Y) {
    Y = If (c) <then_branch = t () => (float[2] T)
                   { C = Constant <value = float[2] {1, 2}> () T = Add (X, C) },
                else_branch = e () => (float[2] E) { E = Add (X, D) }> }"""


def branching_model() -> onnx.ModelProto:
    model = parsed(BRANCHES)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "D"))
    return model


def test_only_one_module_reads_or_writes_the_mark_of_external_data() -> None:
    package = Path(ort_gridsample.__file__).parent
    modules = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("EXTERNAL", "data_location")
    ]
    assert set(modules) == {"graph/placeholders.py"}


@pytest.mark.parametrize("names", [{"C"}, {"D"}, {"C", "D"}])
def test_hide_makes_constants_of_all_graphs_unknown_for_a_while(names: set[str]) -> None:
    model = branching_model()
    scopes = scopes_of(model)
    by_path = {name: scope for scope in scopes for name in ("C", "D") if name in scope.definitions}
    with ModelSource(model).hide(names, scopes):
        for name, scope in by_path.items():
            assert (scope.find_constant(name) is None) == (name in names)
    for name, values in (("C", [1, 2]), ("D", [1, 1])):
        np.testing.assert_array_equal(by_path[name].constant_value(name), values)
    assert b"EXTERNAL" not in str(model).encode()


def test_hidden_weight_is_unknown_and_gets_its_own_values_back() -> None:
    model = branching_model()
    tensor = model.graph.initializer[0]
    values = numpy_helper.to_array(tensor).view(np.uint8)
    placeholder = onnx.TensorProto(name="D", data_type=tensor.data_type, dims=tensor.dims)
    placeholder.data_location = onnx.TensorProto.EXTERNAL
    tensor.CopyFrom(placeholder)
    source = ModelSource(model, SeparateWeights({"D": values}))
    scopes = scopes_of(model, source)
    np.testing.assert_array_equal(scopes[0].constant_value("D"), np.ones(2, np.float32))
    with source.hide({"D"}, scopes):
        assert scopes[0].find_constant("D") is None
    assert not is_placeholder(model.graph.initializer[0])
    np.testing.assert_array_equal(scopes[0].constant_value("D"), np.ones(2, np.float32))


def test_restore_keeps_values_that_the_model_has() -> None:
    model = branching_model()
    others = np.full(2, 7, np.float32).view(np.uint8)
    source = ModelSource(model, SeparateWeights({"D": others}))
    source.restore()
    assert not source.names
    np.testing.assert_array_equal(scopes_of(model)[0].constant_value("D"), np.ones(2, np.float32))
