"""Views of layout operators, compared with what onnx's reference evaluator computes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.graph.use_def import UseDef
from ort_gridsample.inference.axes import are_same, new_axes
from ort_gridsample.inference.lengths import ScopeLengths
from ort_gridsample.inference.symbolic import Length
from ort_gridsample.inference.types import Inference
from ort_gridsample.inference.views import LAYOUT_OPERATORS, REARRANGING, View

INT_MAX = (1 << 63) - 1
Operands = Sequence[Sequence[int] | int | None]


class Case(NamedTuple):
    """A node, with constant operands after its data.

    Attributes:
        op_type: the operator.
        opset: the opset.
        shape: the shape of the data.
        operands: the other inputs; None for one that is left out.
        attributes: the attributes.
        output: the index of the output that is viewed.
        outputs: the number of outputs.
        inputs: the number of data inputs.
    """

    op_type: str
    opset: int
    shape: tuple[int, ...]
    operands: Operands = ()
    attributes: Mapping[str, Any] = {}
    output: int = 0
    outputs: int = 1
    inputs: int = 1


CASES = {
    "identity": Case("Identity", 13, (2, 3)),
    "identity of a scalar": Case("Identity", 1, ()),
    "transpose, default": Case("Transpose", 13, (2, 3, 4)),
    "transpose": Case("Transpose", 1, (2, 3, 4), (), {"perm": [1, 2, 0]}),
    "transpose of length 1": Case("Transpose", 13, (2, 1, 4), (), {"perm": [1, 0, 2]}),
    "reshape": Case("Reshape", 13, (2, 3, 4), ([6, 4],)),
    "reshape, attribute": Case("Reshape", 1, (2, 3, 4), (), {"shape": [2, 12]}),
    "reshape, 0 and -1": Case("Reshape", 5, (2, 3, 4), ([0, -1],)),
    "reshape, -1 first": Case("Reshape", 14, (2, 3, 4), ([-1, 2, 2],)),
    "reshape splits an axis": Case("Reshape", 14, (2, 6, 4), ([2, 3, 2, 4],)),
    "reshape to no digits": Case("Reshape", 14, (6, 4), ([8, 3],)),
    "reshape with allowzero": Case("Reshape", 14, (2, 0, 3), ([3, 0],), {"allowzero": 1}),
    "reshape that adds an axis": Case("Reshape", 14, (2, 3), ([2, 1, 3],)),
    "reshape that drops an axis": Case("Reshape", 14, (2, 1, 3), ([2, 3],)),
    "reshape to a scalar": Case("Reshape", 14, (1, 1), ([],)),
    "flatten": Case("Flatten", 1, (2, 3, 4)),
    "flatten at 0": Case("Flatten", 9, (2, 3, 4), (), {"axis": 0}),
    "flatten at the rank": Case("Flatten", 9, (2, 3, 4), (), {"axis": 3}),
    "flatten, negative": Case("Flatten", 13, (2, 3, 4), (), {"axis": -1}),
    "unsqueeze": Case("Unsqueeze", 13, (2, 3), ([-1, 0],)),
    "unsqueeze, attribute": Case("Unsqueeze", 11, (2, 3), (), {"axes": [1]}),
    "unsqueeze of a scalar": Case("Unsqueeze", 13, (), ([0],)),
    "squeeze": Case("Squeeze", 13, (2, 1, 3, 1), ([1, -1],)),
    "squeeze, attribute": Case("Squeeze", 11, (2, 1, 3, 1), (), {"axes": [1]}),
    "squeeze without axes": Case("Squeeze", 13, (1, 2, 1)),
    "squeeze without axes, opset 1": Case("Squeeze", 1, (1, 2, 1)),
    "slice": Case("Slice", 13, (5, 4), ([1], [3], [0], [1])),
    "slice, attributes": Case(
        "Slice", 1, (5, 4), (), {"starts": [1, 0], "ends": [4, 2], "axes": [0, 1]}
    ),
    "slice, attributes without axes": Case("Slice", 1, (5, 4), (), {"starts": [2], "ends": [9]}),
    "slice without axes": Case("Slice", 13, (5, 4), ([1, 2], [INT_MAX, 3])),
    "slice without steps": Case("Slice", 13, (5, 4), ([1], [-1], [-1])),
    "slice, axes left out": Case("Slice", 13, (5, 4), ([0], [5], None, [2])),
    "slice with steps": Case("Slice", 13, (7, 2), ([1], [INT_MAX], [0], [3])),
    "slice backwards": Case("Slice", 13, (7, 2), ([-1], [-8], [0], [-2])),
    "slice, negative start": Case("Slice", 13, (7, 2), ([-3], [INT_MAX], [0], [1])),
    "slice of nothing": Case("Slice", 13, (5, 4), ([3], [2], [0], [1])),
    "slice of everything": Case("Slice", 13, (5, 4), ([0], [INT_MAX], [1], [1])),
    "slice past the ends": Case("Slice", 13, (5, 4), ([-9], [9], [0], [1])),
    "split": Case("Split", 13, (6, 2), ([1, 2, 3],), {}, 1, 3),
    "split, attribute": Case("Split", 11, (2, 6), (), {"axis": 1, "split": [4, 2]}, 1, 2),
    "split evenly": Case("Split", 13, (6, 2), (), {}, 2, 3),
    "split evenly, opset 2": Case("Split", 2, (2, 6), (), {"axis": 1}, 0, 2),
    "split, num_outputs": Case("Split", 18, (7, 2), (), {"num_outputs": 3}, 2, 3),
    "split, negative axis": Case("Split", 13, (2, 6), ([2, 4],), {"axis": -1}, 1, 2),
    "gather of an index": Case("Gather", 13, (3, 4), (1,)),
    "gather of a negative index": Case("Gather", 11, (3, 4), (-1,), {"axis": 1}),
    "gather of one index in a vector": Case("Gather", 13, (3, 4), ([2],)),
    "gather of a vector": Case("Gather", 13, (3, 4), ([3, 0, 1],), {"axis": -1}),
    "gather backwards": Case("Gather", 13, (3, 4), ([2, 1, 0],)),
    "gather of all": Case("Gather", 13, (3, 4), ([0, 1, 2],)),
    "gather of repeated indices": Case("Gather", 13, (3, 4), ([1, 1],)),
    "expand": Case("Expand", 13, (2, 1, 3), ([2, 4, 3],)),
    "expand to more axes": Case("Expand", 8, (3,), ([2, 3],)),
    "expand to ones": Case("Expand", 13, (2, 3), ([1],)),
    "expand of a scalar": Case("Expand", 13, (), ([2, 2],)),
    "concat": Case("Concat", 13, (2, 3), (), {"axis": 1}, inputs=3),
    "concat, negative axis": Case("Concat", 11, (2, 3), (), {"axis": -2}, inputs=2),
    "concat of one input": Case("Concat", 13, (2, 3), (), {"axis": 0}, inputs=1),
}


def model_of(case: Case, shape: Sequence[int | str], *, constants: bool = True) -> onnx.ModelProto:
    """Return a model of the node. Its operands are constants or integers of unknown elements."""
    data = [f"X{index}" for index in range(case.inputs)]
    names = [*data]
    initializers = []
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in data]
    for index, operand in enumerate(case.operands):
        if operand is None:
            names.append("")
            continue
        name = f"operand{index}"
        names.append(name)
        value = np.array(operand, np.int64)
        if constants:
            initializers.append(onnx.numpy_helper.from_array(value, name))
        else:
            inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, value.shape))
    outputs = [f"Y{index}" for index in range(case.outputs)]
    node = helper.make_node(case.op_type, names, outputs, **case.attributes)
    infos = [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in outputs]
    graph = helper.make_graph([node], "g", inputs, infos, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)])


def view_in(model: onnx.ModelProto, case: Case) -> View | None:
    scopes = scopes_of(model)
    names = [value.name for value in (*model.graph.input, *model.graph.output)]
    inference = Inference(model, scopes, requested_names={id(scopes[0]): names})
    return ScopeLengths(UseDef(scopes[0]), inference, {}).view(f"Y{case.output}")


def data_of(case: Case) -> list[np.ndarray]:
    """Return arrays in which each element is another one."""
    size = int(np.prod(case.shape))
    return [
        np.arange(size, dtype=np.int64).reshape(case.shape) + index * size
        for index in range(case.inputs)
    ]


def expected_output(case: Case) -> np.ndarray:
    model = model_of(case, case.shape)
    if case.op_type == "Split" and "num_outputs" in case.attributes:
        sizes = np.array_split(data_of(case)[0], case.outputs)  # the last part is the smallest
        size = len(sizes[0])
        return data_of(case)[0][case.output * size : (case.output + 1) * size]
    if "shape" in case.attributes:  # the evaluator has no Reshape of opset 1
        return data_of(case)[0].reshape(case.attributes["shape"])
    feeds = {f"X{index}": array for index, array in enumerate(data_of(case))}
    result = ReferenceEvaluator(model).run(None, feeds)[case.output]
    return np.asarray(result)


def viewed(view: View, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the output that a view describes, element by element."""
    shape = tuple(length.number for length in view.shape)
    output = np.empty(shape, np.int64)
    for position in np.ndindex(*shape):
        array, indices = arrays[0], dict.fromkeys(range(arrays[0].ndim), 0)
        for axis, index in enumerate(position):
            digits = view.axes[axis]
            assert digits is not None
            if axis == view.joined_axis:
                source = view.source_of(axis, index)
                assert source is not None
                array, index = arrays[source.input], source.index
            for digit in reversed(digits):
                assert isinstance(digit.axis, int)
                index, value = divmod(index, digit.length.number)
                indices[digit.axis] += value * digit.inner.number
        for axis, part in view.parts.items():
            taken = part.index(indices[axis])
            assert taken is not None
            indices[axis] = taken
        output[position] = array[tuple(indices.values())]
    return output


def test_cases_have_every_operator() -> None:
    assert {case.op_type for case in CASES.values()} == set(LAYOUT_OPERATORS)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_view_of_known_lengths_is_what_the_node_computes(case: Case) -> None:
    view = view_in(model_of(case, case.shape), case)
    expected = expected_output(case)
    assert view is not None
    assert tuple(length.known for length in view.shape) == expected.shape
    if None in view.axes:
        assert view.keeps_order
    else:
        np.testing.assert_array_equal(viewed(view, data_of(case)), expected)
    if view.keeps_order:
        np.testing.assert_array_equal(expected.ravel(), data_of(case)[0].ravel())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_view_of_symbolic_lengths_is_what_the_node_computes(case: Case) -> None:
    """What a view states of unknown lengths holds for each of them."""
    names = [f"N{axis}" for axis in range(len(case.shape))]
    view = view_in(model_of(case, names), case)
    if view is None:
        return
    expected = expected_output(case)
    assert len(view.shape) == expected.ndim
    for length, actual in zip(view.shape, expected.shape, strict=True):
        if all(name.startswith("X") for name, _ in length.unknown):
            sizes = [case.shape[axis] for _, axis in length.unknown]
            assert length.number * int(np.prod(sizes)) == actual
    if view.keeps_order:
        np.testing.assert_array_equal(expected.ravel(), data_of(case)[0].ravel())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_view_with_unknown_operands_states_nothing_wrong(case: Case) -> None:
    view = view_in(model_of(case, case.shape, constants=False), case)
    if view is None:
        return
    expected = expected_output(case)
    assert len(view.shape) == expected.ndim
    for length, actual in zip(view.shape, expected.shape, strict=True):
        assert length.known in (None, actual)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_source_of_an_index_has_what_the_output_has(case: Case) -> None:
    view = view_in(model_of(case, case.shape), case)
    expected = expected_output(case)
    arrays = data_of(case)
    assert view is not None
    if view.may_fail and view.joined_axis is None:
        return
    for axis in range(expected.ndim):
        for index in range(expected.shape[axis]):
            source = view.source_of(axis, index)
            if source is not None:
                found = arrays[source.input]
                found = found if source.axis is None else found.take(source.index, source.axis)
                np.testing.assert_array_equal(found, expected.take(index, axis))
    source = view.source_of(None)
    if source is not None:
        found = arrays[source.input]
        found = found if source.axis is None else found.take(source.index, source.axis)
        np.testing.assert_array_equal(found, expected)


#: Cases that have a source for each index of an axis.
SOURCES = {
    "transpose": 2,
    "reshape that adds an axis": 1,
    "reshape that drops an axis": None,
    "unsqueeze, attribute": 1,
    "squeeze, attribute": None,
    "slice with steps": 0,
    "slice backwards": 0,
    "split": 0,
    "split evenly": 0,
    "split, num_outputs": 0,
    "gather of a vector": 1,
    "gather of repeated indices": 0,
    "gather of an index": None,
    "gather of a negative index": None,
    "expand": 1,
    "expand to ones": 1,
    "concat": 1,
    "concat, negative axis": 0,
    "identity": 1,
}
#: Cases that do more to an axis than to take a part of it.
WITHOUT_SOURCES = {
    "reshape": 0,
    "reshape, 0 and -1": 0,
    "flatten": None,
    "transpose": 0,
    "transpose, default": 0,
    "squeeze": 0,
    "slice, attributes": 0,
    "split": 1,
    "concat": 0,
    "expand": 0,
    "gather of a vector": 0,
    "reshape to no digits": 0,
}


@pytest.mark.parametrize(("name", "axis"), SOURCES.items(), ids=SOURCES)
def test_source_of_an_axis_that_other_axes_leave_alone_is_found(
    name: str, axis: int | None
) -> None:
    case = CASES[name]
    view = view_in(model_of(case, case.shape), case)
    assert view is not None
    assert view.source_of(axis) is not None


@pytest.mark.parametrize(("name", "axis"), WITHOUT_SOURCES.items(), ids=WITHOUT_SOURCES)
def test_source_of_an_axis_beside_changed_axes_is_none(name: str, axis: int | None) -> None:
    case = CASES[name]
    view = view_in(model_of(case, case.shape), case)
    assert view is not None
    assert view.source_of(axis) is None


@pytest.mark.parametrize("name", CASES, ids=CASES)
def test_axes_before_and_after_are_inverse(name: str) -> None:
    case = CASES[name]
    view = view_in(model_of(case, case.shape), case)
    assert view is not None
    before = new_axes(map(Length, case.shape))
    after = view.axes_after(before)
    if case.op_type in REARRANGING and name not in (
        "reshape to no digits",
        "reshape with allowzero",
    ):
        assert after is not None
    if after is None:
        return
    again = view.axes_before(after)
    assert again is not None
    assert all(itertools.starmap(are_same, zip(again, before, strict=True)))


@pytest.mark.parametrize("name", ["reshape", "reshape splits an axis", "unsqueeze", "transpose"])
def test_axes_before_an_axis_that_the_node_does_not_have_is_none(name: str) -> None:
    case = CASES[name]
    view = view_in(model_of(case, case.shape), case)
    assert view is not None
    assert view.axes_before(new_axes([Length(5), Length(7)])) is None


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("Y = Slice(s, one, three)", [3, 4]),
        ("Y = Slice(s, three, none, none, back)", [5, 4, 3]),
        ("Y = Slice(s, none, end, none, two)", [2, 4]),
        ("Y = Gather(s, ends)", [5, 2]),
        ("at = Constant <value_int = -2> () Y = Gather(s, at)", [4]),
        ("Z, Y = Split <axis = 0> (s, sizes)", [3, 4, 5]),
        ("Y, Z = Split(s)", [2, 3]),
        ("Y = Concat <axis = 0> (s, ends, one)", [2, 3, 4, 5, -1, 0, 1]),
        ("at = Constant <value_int = 1> () e = Gather(s, at) Y = Expand(e, three)", [3, 3, 3]),
        ("at = Constant <value_int = 1> () e = Gather(s, at) Y = Unsqueeze(e, none)", [3]),
        ("e = Gather(s, one) Y = Squeeze(e)", [3]),
        ("Y = Transpose(s)", [2, 3, 4, 5]),
        ("Y = Identity(s)", [2, 3, 4, 5]),
        ("e = Unsqueeze(s, none) Y = Flatten <axis = 0> (s)", None),
    ],
)
def test_elements_of_a_shape_follow_layout_operators(node: str, expected: list[int] | None) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[2,3,4,5] X) => (int64[K] Y) {{
            s = Shape(X)
            none = Constant <value_ints = [0]> ()
            one = Constant <value_ints = [1]> ()
            two = Constant <value_ints = [2]> ()
            three = Constant <value_ints = [3]> ()
            back = Constant <value_ints = [-1]> ()
            ends = Constant <value_ints = [-1, 0]> ()
            sizes = Constant <value_ints = [1, 3]> ()
            end = Constant <value_ints = [{INT_MAX}]> ()
            {node} }}""")
    scopes = scopes_of(model)
    names = {id(scopes[0]): ["X", *scopes[0].makers]}
    lengths = ScopeLengths(UseDef(scopes[0]), Inference(model, scopes, requested_names=names), {})
    elements = lengths.elements("Y")
    found = None if elements is None else [length and length.known for length in elements]
    assert found == expected
