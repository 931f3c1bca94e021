"""Lengths of axes as products of input lengths, compared with those of a run."""

import math
from collections.abc import Sequence
from unittest.mock import Mock

import numpy as np
import onnxruntime
import pytest

from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.graph.use_def import UseDef
from ort_gridsample.inference import lengths
from ort_gridsample.inference.lengths import Length, ScopeLengths
from ort_gridsample.inference.types import Inference
from support.models import parsed

#: Nodes with output Y and inputs X (N, 4, W) and b (4, 1).
NODES = {
    "broadcast": "Y = Add(b, X)",
    "scalar operand": "d = Constant <value_floats = [0.5]> () Y = Div(X, d)",
    "transposed": "Z = Transpose <perm = [1, 2, 0]> (X) Y = Transpose(Z)",
    "inferred length": "to = Constant <value_ints = [0, 2, 2, -1]> () Y = Reshape(X, to)",
    "copied length": "to = Constant <value_ints = [2, -1, 0]> () Y = Reshape(X, to)",
    "unsqueezed": "axes = Constant <value_ints = [-1, 1]> () Y = Unsqueeze(X, axes)",
    "squeezed": """
        axes = Constant <value_ints = [-1, 1]> ()
        Z = Unsqueeze(X, axes)
        Y = Squeeze(Z, axes)
    """,
    "picked index": "at = Constant <value_int = 1> () Y = Gather <axis = -2> (X, at)",
    "picked first": "at = Constant <value_int = 1> () Y = Gather(X, at)",
    "picked first axis": "at = Constant <value_int = 2> () Z = Transpose(X) Y = Gather(Z, at)",
    "concatenated": "Y = Concat <axis = 1> (X, X)",
    "split": "by = Constant <value_ints = [1, 3]> () Z, Y = Split <axis = -2> (X, by)",
    "sliced": """
        one = Constant <value_ints = [1]> ()
        end = Constant <value_ints = [3]> ()
        Z = Slice(X, one, end, one)
        Y = Softmax(Z)
    """,
    "reshaped by computed shape": """
        shape = Shape(X)
        ends = Constant <value_ints = [-1, 0]> ()
        end_lengths = Gather(shape, ends)
        lengths = Cast <to = 7> (end_lengths)
        first = Constant <value_int = 0> ()
        width = Gather(lengths, first)
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        two = Constant <value_ints = [2]> ()
        batch = Slice(lengths, one, two)
        widths = Unsqueeze(width, zero)
        product = Mul(batch, widths)
        to = Concat <axis = 0> (two, product, two)
        Y = Reshape(X, to)
    """,
    "reshaped by part of a shape": """
        inferred = Constant <value_ints = [-1]> ()
        part = Shape <start = 1, end = 3> (X)
        last = Shape <start = -1> (X)
        first_shape = Concat <axis = 0> (part, inferred)
        Z = Reshape(X, first_shape)
        second_shape = Concat <axis = 0> (inferred, last)
        Y = Reshape(Z, second_shape)
    """,
}

#: Nodes with output Y that read U, of unknown rank, or the integers k, which are only known in a
#: run. The value lists the known lengths of Y, and an axis such as X0 for each unknown one.
UNKNOWN = {
    "Y = Add(U, b)": None,
    "Y = Add(b, U)": None,
    "Y = Transpose(U)": None,
    "Y = Reshape(X, k)": None,
    "Y = Reshape(X, v)": None,
    "Y = Reshape(U, s)": "X0 4 X2",
    "Y = Unsqueeze(U, one)": None,
    "Y = Unsqueeze(X, k)": None,
    "Y = Squeeze(U, one)": None,
    "Y = Squeeze(X)": None,
    "axes = Constant <value = int64[0] {}> () Y = Squeeze(X, axes)": None,
    "Y = Gather(U, at)": None,
    "Y = Gather(X, k)": "k0 4 X2",
    "Y = Gather <axis = 1> (X, one)": "X0 1 X2",
    "Y = Slice(U, one, one, one)": None,
    "Y = Slice(X, k, k, k)": "Y0 Y1 Y2",
    "Y = Concat <axis = 0> (U, X)": None,
    "Y = Concat <axis = 1> (X, U)": "X0 Y1 X2",
    "Y, Z = Split <axis = 1> (U, k)": None,
    "Y, Z = Split <axis = 1> (X, k)": "X0 Y1 X2",
    "p = Mul(k, s) Y = Reshape(X, p)": "Y0 Y1 Y2",
    "p = Mul(s, k) Y = Reshape(X, p)": "Y0 Y1 Y2",
    "p = Mul(s, one) Y = Reshape(X, p)": "Y0 4 Y2",
    "p = Concat <axis = 0> (k, s) Y = Reshape(X, p)": None,
    "p = Gather(s, k) Y = Reshape(X, p)": None,
    "p = Slice(s, k, one) Y = Reshape(X, p)": None,
    "p = Slice(s, none, three, none, two) Y = Reshape(X, p)": "X0 X2",
}


def lengths_of(nodes: str) -> Sequence[Length] | None:
    model = parsed(f"g (float[N, 4, W] X, float[4, 1] b, float[] U, int64[K] k) => (Y) {{{nodes}}}")
    graphs = scopes_of(model)
    (scope,) = graphs
    inference = Inference(
        model, graphs, requested_names={id(scope): [*scope.makers, "X", "b", "U", "k"]}
    )
    return ScopeLengths(UseDef(scope), inference, {}).shape("Y")


#: Nodes that compute what the nodes of UNKNOWN read.
CONSTANTS = """
    at = Constant <value_int = 1> ()
    s = Shape(X)
    v = Shape(U)
    none = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    three = Constant <value_ints = [3]> ()
"""


@pytest.mark.parametrize(("nodes", "expected"), UNKNOWN.items(), ids=UNKNOWN)
def test_lengths_that_depend_on_values_are_unknown(nodes: str, expected: str | None) -> None:
    shape = lengths_of(f"{CONSTANTS} {nodes}")
    if expected is None:
        assert shape is None
        return
    assert shape is not None
    axes = [
        str(length.known or "".join(f"{name}{axis}" for name, axis in length.unknown))
        for length in shape
    ]
    assert " ".join(axes) == expected


@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_lengths_are_those_of_a_run(nodes: str) -> None:
    model = parsed(f"g (float[N, 4, W] X, float[4, 1] b) => (Y) {{{nodes}}}")
    shape = lengths_of(nodes) or ()
    assert {name for length in shape for name, _ in length.unknown} == {"X"}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for X in (np.zeros((3, 4, 10), np.float32), np.zeros((6, 4, 5), np.float32)):
        (Y,) = session.run(None, {"X": X, "b": np.zeros((4, 1), np.float32)})
        assert Y.shape == tuple(
            length.number * math.prod(X.shape[axis] for _, axis in length.unknown)
            for length in shape
        )


def squared(shape: str, count: int) -> str:
    """Return nodes that square the elements of a shape ``count`` times, and reshape X by them."""
    squares = " ".join(f"s{i + 1} = Mul(s{i}, s{i})" for i in range(count))
    return f"s0 = {shape} {squares} Y = Reshape(U, s{count})"


def test_elements_of_a_value_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Mock(side_effect=lengths._ELEMENT_RULES["Mul"])
    monkeypatch.setitem(lengths._ELEMENT_RULES, "Mul", rule)
    lengths_of(squared("Shape(X)", 10))
    assert rule.call_count == 10


@pytest.mark.parametrize("shape", ["Shape(X)", "Constant <value_ints = [2]> ()"])
def test_lengths_of_too_many_factors_are_unknown(shape: str) -> None:
    shape_of_Y = lengths_of(squared(shape, 12))
    assert shape_of_Y
    assert shape_of_Y[0] == Length(unknown=(("Y", 0),))
