"""Test the errors of a run: nodes that raise them, and messages that they are read from."""

from __future__ import annotations

import importlib
import pkgutil
import string

import numpy as np
import onnx
import pytest
from onnx import helper

from ort_gridsample import errors
from ort_gridsample.custom_ops import compiled_ops
from ort_gridsample.errors import GridSampleError, where_node
from ort_gridsample.functions import error_templates
from ort_gridsample.functions.error_templates import ErrorTemplate
from ort_gridsample.graph import run_errors
from ort_gridsample.graph.expressions import Expressions, Tensor
from ort_gridsample.graph.new_names import Names
from support.parameters import COMPILED_OPS
from support.paths import open_native


def templates_of_the_package() -> dict[str, ErrorTemplate]:
    """Return all error templates, by the module and the name of each."""
    modules = [error_templates]
    if COMPILED_OPS:
        for info in pkgutil.iter_modules(compiled_ops.__path__, f"{compiled_ops.__name__}."):
            modules.append(importlib.import_module(info.name))
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, ErrorTemplate)
    }


TEMPLATES = templates_of_the_package()
#: Names of nodes that could be confused with the parts of an error.
NODES = ["n", "(Y)", "it's", '"it\'s"', "a: X is b, expected c", "a/b: X is b_1", "名", "a\nb"]
OUT_OF_BOUNDS = "Status Message: indices element out of data bounds, idx=2 must be in [-1,0]"
#: The beginning of a message, and its text before and after the error.
FORMS = {
    "compiled op": ("Non-zero status code returned. Name:'n' Status Message: ", ""),
    "check": ("running Gather node. Name:'", f"' {OUT_OF_BOUNDS}"),
    "numbered check": ("running Gather node. Name:'", f"_12' {OUT_OF_BOUNDS}"),
    "check in a lowered node": ("Name:'a/b/ort_gridsample/", f"_3' {OUT_OF_BOUNDS}"),
    "creation": ("Exception during initialization: node 'n': ", ""),
}


def error_of(template: ErrorTemplate, where: str) -> GridSampleError:
    """Return an error of ``template`` with a value for each field."""
    texts = (template.argument, template.found, template.expected)
    names = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
    values = {name: f"({name}, 1)" for name in names} | {"argument": "argument"}
    return template.error(where, **values)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_error_of_the_package_is_read_from_every_message(name: str, form: str) -> None:
    before, after = FORMS[form]
    for node in NODES:
        error = error_of(TEMPLATES[name], where_node("GridSample", node))
        read = run_errors.read_error(f"{before}{error}{after}")
        assert read is not None
        assert (read.args, read.verb) == (error.args, error.verb)


@pytest.mark.parametrize("name", TEMPLATES)
def test_error_of_a_function_of_several_nodes_is_read(name: str) -> None:
    error = error_of(TEMPLATES[name], "GridSample")
    read = run_errors.read_error(f"Name:'_inl_1/ort_gridsample/{error}_7' {OUT_OF_BOUNDS}")
    assert read is not None
    assert (read.args, read.verb) == (error.args, error.verb)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Status Message: indices element out of data bounds, idx=2 must be within [-1,0]",
        "Name:'Gather_3' Status Message: invalid: X is 3, expected 4",
        "GridSample node 'n': X is wrong, expected another",
    ],
)
def test_message_about_something_else_has_no_error(message: str) -> None:
    assert run_errors.read_error(message) is None


@pytest.mark.parametrize("number", [1, (1 << 63) - 1])
@pytest.mark.parametrize("bounds", ["idx={}", "index = {}"])
def test_number_of_a_failure_is_read_from_the_message_of_a_guard(bounds: str, number: int) -> None:
    name = run_errors.guard_name(where_node("GridSample", "a: X is b, expected c"))
    message = f"Name:'{name}' Status Message: out of data bounds, {bounds.format(number)} must be"
    assert run_errors.read_failure(message) == number
    assert run_errors.read_error(message) is None


def test_message_without_a_guard_has_no_failure() -> None:
    assert run_errors.read_failure("Name:'Gather' Status Message: out of bounds, idx=3") is None


@pytest.mark.parametrize(
    "code",
    [
        "",
        "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : ",
        "failed to call OrtRun(). ERROR_CODE: 9, ERROR_MESSAGE: ",
    ],
)
def test_sentence_of_a_kernel_has_no_error_code(code: str) -> None:
    assert run_errors.without_error_code(f"{code}Could not find X : 9") == "Could not find X : 9"


def run_check(checked: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Reshape an array of a ``shape`` to the shape that a check returns."""
    e = checked.owner
    nodes = e.finish(e.op("Reshape", e.input("x"), checked), "y")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", onnx.TensorProto.FLOAT, None)],
        [value("y", onnx.TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", e.opset)]
    session = open_native(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    return session.run(None, {"x": np.ones(shape, np.float32)})[0]


def shape_check(error: GridSampleError, *expected: int) -> Tensor:
    """Return the shape of x after a check that it is the ``expected`` one."""
    e = Expressions("n", 17, names=Names(onnx.ModelProto()))
    shape = e.shape_of(e.input("x"))
    return run_errors.require_same(shape, shape, e.row(*expected), error)


def test_check_of_equal_rows_passes_the_value() -> None:
    error = run_errors.shape_error("Op node 'n'", "x", "shape (2, 3)")
    assert run_check(shape_check(error, 2, 3), (2, 3)).shape == (2, 3)


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 1), (3,), (2, 3 + (1 << 20))], ids=str)
def test_check_of_other_rows_raises_the_error(shape: tuple[int, ...], node: str) -> None:
    error = run_errors.shape_error(errors.where_node("Op", node), "x", "shape (2, 3)")
    with pytest.raises(Exception, match="x is of another shape") as raised:
        run_check(shape_check(error, 2, 3), shape)
    read = run_errors.read_error(str(raised.value))
    assert read is not None
    assert read.args == error.args


@pytest.mark.parametrize("number", [1, -2, 1 << 31, -(1 << 62)])
def test_check_of_another_number_than_0_raises_the_error(number: int) -> None:
    e = Expressions("n", 17, names=Names(onnx.ModelProto()))
    error = run_errors.shape_error("Op node 'n'", "x", "nothing")
    numbers = e.shape_of(e.input("x")) * 0 + e.constant([0, number])
    checked = e.shape_of(e.input("x")) + run_errors.write_check(e, numbers, error)
    with pytest.raises(Exception, match="x is of another shape"):
        run_check(checked, (2, 3))


@pytest.mark.parametrize("shape", [(2, 4), (2, 2), (1, 3), (4, 3)], ids=str)
def test_check_of_other_lengths_raises_the_error(shape: tuple[int, ...]) -> None:
    e = Expressions("n", 17, names=Names(onnx.ModelProto()))
    error = run_errors.shape_error("Op node 'n'", "x", "shape (2, 3)")
    x = e.input("x")
    (check,) = run_errors.check_lengths(e, e.dims(x, (None, None)), [2, 3], error)
    with pytest.raises(Exception, match="x is of another shape"):
        run_check(e.shape_of(x) + check, shape)


def test_check_of_known_lengths_is_not_written() -> None:
    e = Expressions("n", 17, names=Names(onnx.ModelProto()))
    error = run_errors.shape_error("Op node 'n'", "x", "nothing")
    assert run_errors.check_lengths(e, [2, 3], [2, 4], error) == []
