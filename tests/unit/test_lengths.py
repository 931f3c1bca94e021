"""The lengths that nodes give to axes, as products, beside those of a run."""

import math
from collections.abc import Sequence

import numpy as np
import onnxruntime
import pytest

from ort_gridsample.graph.scope import scopes
from ort_gridsample.graph.use_def import UseDef
from ort_gridsample.inference.lengths import Length, Lengths
from ort_gridsample.inference.types import Inference
from support.models import parsed

#: What makes Y of X (N, 4, W) and b (4, 1).
NODES = {
    "of one axis": "Y = Add(b, X)",
    "of a number": "d = Constant <value_floats = [0.5]> () Y = Div(X, d)",
    "turned": "Z = Transpose <perm = [1, 2, 0]> (X) Y = Transpose(Z)",
    "left": "to = Constant <value_ints = [0, 2, 2, -1]> () Y = Reshape(X, to)",
    "copied": "to = Constant <value_ints = [2, -1, 0]> () Y = Reshape(X, to)",
    "unsqueezed": "axes = Constant <value_ints = [-1, 1]> () Y = Unsqueeze(X, axes)",
    "squeezed": "axes = Constant <value_ints = [-1, 1]> () Z = Unsqueeze(X, axes) Y = Squeeze(Z, axes)",
    "picked": "at = Constant <value_int = 1> () Y = Gather <axis = -2> (X, at)",
    "picked first": "at = Constant <value_int = 1> () Y = Gather(X, at)",
    "picked before": "at = Constant <value_int = 2> () Z = Transpose(X) Y = Gather(Z, at)",
    "joined": "Y = Concat <axis = 1> (X, X)",
    "split": "by = Constant <value_ints = [1, 3]> () Z, Y = Split <axis = -2> (X, by)",
    "cut": "i = Constant <value_ints = [1]> () n = Constant <value_ints = [3]> () Z = Slice(X, i, n, i) Y = Softmax(Z)",
    "of shapes": """
        s = Shape(X) ends = Constant <value_ints = [-1, 0]> () t = Gather(s, ends) u = Cast <to = 7> (t)
        first = Constant <value_int = 0> () w = Gather(u, first) zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> () two = Constant <value_ints = [2]> () n = Slice(u, one, two)
        v = Unsqueeze(w, zero) nw = Mul(n, v) to = Concat <axis = 0> (two, nw, two) Y = Reshape(X, to)
    """,
    "of a part of a shape": """
        left = Constant <value_ints = [-1]> () part = Shape <start = 1, end = 3> (X) end = Shape <start = -1> (X)
        to = Concat <axis = 0> (part, left) Z = Reshape(X, to) as = Concat <axis = 0> (left, end) Y = Reshape(Z, as)
    """,
}


#: What makes Y with an input U of unknown rank, or integers k that only a run knows; and what is known of its axes.
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
    "Y = Gather(U, at)": None,
    "Y = Gather(X, k)": "Y0 4 Y2",
    "Y = Gather <axis = 1> (X, one)": "Y0 1 Y2",
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
    (scope,) = found = scopes(model)
    inference = Inference(model, found, values={id(scope): [*scope.makers, "X", "b", "U", "k"]})
    return Lengths(UseDef(scope), inference, {}).shape("Y")


def test_what_only_a_run_knows_is_not_known() -> None:
    given = "at = Constant <value_int = 1> () s = Shape(X) v = Shape(U)"
    rows = ("none", "one", "two", "three")
    given += "".join(
        f" {name} = Constant <value_ints = [{number}]> ()" for number, name in enumerate(rows)
    )
    for nodes, known in UNKNOWN.items():
        lengths = lengths_of(f"{given} {nodes}")
        shown = [
            str(each.known or "".join(f"{name}{axis}" for name, axis in each.unknown))
            for each in lengths or ()
        ]
        assert (None if lengths is None else " ".join(shown)) == known, nodes


@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_lengths_are_those_of_a_run(nodes: str) -> None:
    model = parsed(f"g (float[N, 4, W] X, float[4, 1] b) => (Y) {{{nodes}}}")
    lengths = lengths_of(nodes) or ()
    assert {name for length in lengths for name, _ in length.unknown} == {"X"}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for X in (np.zeros((3, 4, 10), np.float32), np.zeros((6, 4, 5), np.float32)):
        (Y,) = session.run(None, {"X": X, "b": np.zeros((4, 1), np.float32)})
        assert Y.shape == tuple(
            each.number * math.prod(X.shape[axis] for _, axis in each.unknown) for each in lengths
        )
