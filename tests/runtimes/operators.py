"""The basic operators that a lowering may be made of, one by one: which runtime has which, and in which opset.

Each is a model of one node, between Casts where it computes with integers or logic, as not every runtime takes these
as inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, np.ndarray]
OPSETS = (11, 13, 16, 20)
_TYPES = {
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
    "float32": TensorProto.FLOAT,
}


@dataclass(frozen=True)
class Operator:
    """An operator on some inputs.

    Attributes:
        op: the ONNX operator.
        expected: what it answers, given the inputs and then the constants, in this order.
        shapes: of its inputs, which are random and float32 outside.
        type: what its inputs are cast to.
        constants: what comes after the inputs.
        constants_first: whether it comes before them.
        attributes: the node's.
        opsets: the opsets in which it is written so.
        outputs: how many there are; the last one is looked at.
        note: what tells it from others of its name.
    """

    op: str
    expected: Callable[..., np.ndarray]
    shapes: tuple[tuple[int, ...], ...] = ((3, 4), (3, 4))
    type: str = "float32"
    constants: tuple[np.ndarray, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict, hash=False)
    opsets: range = range(1, 99)
    outputs: int = 1
    constants_first: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        """In a table."""
        return " ".join(filter(None, [self.op, self.type if self.type != "float32" else "", self.note]))

    def model(self, opset: int, dynamic: bool) -> tuple[onnx.ModelProto, Arrays, Arrays]:
        """The model, its inputs and its output."""
        rng = np.random.default_rng(0)
        feeds = {f"x{i}": (rng.integers(-9, 10, shape) / 2).astype(np.float32) for i, shape in enumerate(self.shapes)}
        if self.type != "float32":
            feeds = {name: np.abs(np.trunc(value)) for name, value in feeds.items()}
        if self.type == "bool":
            feeds = {name: (value % 2).astype(np.float32) for name, value in feeds.items()}
        nodes, names = [], list(feeds)
        if self.type != "float32":
            nodes = [helper.make_node("Cast", [n], [f"{n}_cast"], f"cast_{n}", to=_TYPES[self.type]) for n in names]
            names = [f"{name}_cast" for name in names]
        initializers = [numpy_helper.from_array(value, f"c{i}") for i, value in enumerate(self.constants)]
        held = [each.name for each in initializers]
        names = held + names if self.constants_first else names + held
        expected = self.expected(*(value.astype(self.type) for value in feeds.values()), *self.constants)
        plain = expected.dtype == np.float32
        outputs = [*(f"other{i}" for i in range(self.outputs - 1)), "y" if plain else "raw"]
        nodes.append(helper.make_node(self.op, names, outputs, "node", **self.attributes))
        if not plain:
            nodes.append(helper.make_node("Cast", ["raw"], ["y"], "cast", to=TensorProto.FLOAT))
        answer = {"y": expected.astype(np.float32)}
        values = [
            helper.make_tensor_value_info(
                name, TensorProto.FLOAT, [f"d{length}" for length in value.shape] if dynamic else value.shape
            )
            for name, value in {**feeds, **answer}.items()
        ]
        graph = helper.make_graph(nodes, "operator", values[:-1], values[-1:], initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
        onnx.checker.check_model(model, full_check=True)
        return model, feeds, answer


def _i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _f32(values: Sequence[object]) -> np.ndarray:
    return np.array(values, np.float32)


def _where(condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(condition, a, b)


def _operators() -> list[Operator]:
    one, three = ((3, 4),), ((2, 3, 4),)
    scalar = np.array(0.5, np.float32)
    found = [Operator(op, f) for op, f in (("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply))]
    found += [Operator(op, f) for op, f in (("Min", np.minimum), ("Max", np.maximum))]
    found += [Operator(op, f, type=t) for t in ("int32", "int64") for op, f in (("Add", np.add), ("Mul", np.multiply))]
    for t in ("int32", "int64"):
        found += [Operator(op, f, type=t, opsets=range(12, 99)) for op, f in (("Min", np.minimum), ("Max", np.maximum))]
    found += [
        Operator("Add", np.add, ((2, 1, 4), (3, 1)), note="broadcast"),
        Operator("Mul", np.multiply, ((2, 1, 4), (3, 1)), note="broadcast"),
        Operator("Mul", np.multiply, one, constants=(scalar,), note="by a scalar"),
        Operator("Min", np.minimum, one, constants=(scalar,), note="with a scalar"),
        Operator("Div", np.divide, one, constants=(_f32([[3]]),)),
        Operator("Div", lambda a, b: a // b, one, "int64", (_i64(3),)),
        Operator("Mod", np.fmod, one, constants=(_f32([3]),), attributes={"fmod": 1}, note="fmod"),
        Operator("Mod", np.mod, one, "int64", (_i64(3),)),
        *(Operator(op, f, one) for op, f in (("Floor", np.floor), ("Ceil", np.ceil), ("Abs", np.abs))),
        *(Operator(op, f, one) for op, f in (("Neg", np.negative), ("Sign", np.sign), ("Round", np.round))),
        Operator("Relu", lambda a: np.maximum(a, 0), one),
        Operator("Clip", np.clip, one, constants=(np.array(-1, np.float32), np.array(2, np.float32))),
        Operator("Clip", lambda a: np.clip(a, -1, 2), one, attributes={"min": -1.0, "max": 2.0}, opsets=range(6, 11)),
        Operator("Cast", lambda a: a.astype(np.int64), one, attributes={"to": TensorProto.INT64}, note="to int64"),
        Operator("Cast", lambda a: a.astype(np.int32), one, attributes={"to": TensorProto.INT32}, note="to int32"),
        Operator("Cast", lambda a: a.astype(bool), one, attributes={"to": TensorProto.BOOL}, note="to bool"),
    ]
    for op, f in (("Less", np.less), ("Greater", np.greater)):
        found += [Operator(op, f)]
    found += [
        Operator("Equal", np.equal, opsets=range(11, 99)),
        Operator("Equal", np.equal, type="int64"),
        Operator("LessOrEqual", np.less_equal, opsets=range(12, 99)),
        Operator("GreaterOrEqual", np.greater_equal, opsets=range(12, 99)),
        Operator("And", np.logical_and, type="bool"),
        Operator("Or", np.logical_or, type="bool"),
        Operator("Not", np.logical_not, one, "bool"),
        Operator(
            "Where",
            _where,
            one,
            "bool",
            (_f32([[2] * 4] * 3), _f32([[3] * 4] * 3)),
        ),
        Operator(
            "Where",
            _where,
            one,
            "bool",
            (_f32([2]), _f32([3])),
            note="broadcast values",
        ),
        Operator("Where", _where, one, "bool", (_i64(2), _i64(3)), note="of int64"),
    ]
    table = np.arange(30, dtype=np.float32).reshape(10, 3)
    for name in ("int64", "int32"):
        rows = np.array([2, 0, 1, 1, 2], name)
        found += [
            Operator("Gather", lambda a, i: a[i], one, constants=(rows,), note=f"rows, {name}"),
            Operator(
                "Gather", lambda a, i: a[:, i], one, constants=(rows,), attributes={"axis": 1}, note=f"axis 1, {name}"
            ),
            Operator(
                "Gather", lambda a, i: a[i], one, constants=(rows[:4].reshape(2, 2),), note=f"matrix of rows, {name}"
            ),
            Operator("Gather", lambda i, a: a[i], ((2, 3),), name, (table,), constants_first=True, note="computed"),
        ]
    elements = np.array([[0, 1, 2, 0], [2, 2, 1, 0]], np.int64)
    found += [
        Operator("GatherElements", lambda a, i: np.take_along_axis(a, i, 0), one, constants=(elements,)),
        Operator("GatherND", lambda a, i: a[i[:, 0], i[:, 1]], one, constants=(np.array([[0, 1], [2, 3]], np.int64),)),
        Operator("Reshape", lambda a, s: a.reshape(s), three, constants=(_i64(6, 4),)),
        Operator("Reshape", lambda a, s: a.reshape(s), three, constants=(_i64(-1, 2, 4),), note="with -1"),
        Operator("Reshape", lambda a, s: a.reshape(2, 3, 2, 2), three, constants=(_i64(0, 0, 2, 2),), note="with 0"),
        Operator("Reshape", lambda a, s: a.reshape(s), three, constants=(_i64(1, 2, 1, 3, 4),), note="to 5 axes"),
        Operator("Reshape", lambda a, s: a.reshape(s), three, constants=(_i64(1, 2, 1, 3, 2, 2),), note="to 6 axes"),
        Operator("Reshape", lambda a, s: a.reshape(s), three, "int64", (_i64(6, 4),)),
        Operator("Transpose", lambda a: a.transpose(2, 0, 1), three, attributes={"perm": [2, 0, 1]}),
        Operator("Transpose", lambda a: a.transpose(2, 0, 1), three, "int64", attributes={"perm": [2, 0, 1]}),
        Operator(
            "Transpose",
            lambda a: a.transpose(0, 4, 1, 2, 3),
            ((1, 2, 3, 2, 2),),
            attributes={"perm": [0, 4, 1, 2, 3]},
            note="of 5 axes",
        ),
        Operator("Unsqueeze", lambda a: a[:, None], one, attributes={"axes": [1]}, opsets=range(1, 13)),
        Operator("Unsqueeze", lambda a, x: a[:, None], one, constants=(_i64(1),), opsets=range(13, 99)),
        Operator("Squeeze", lambda a: a[:, 0], ((3, 1, 4),), attributes={"axes": [1]}, opsets=range(1, 13)),
        Operator("Squeeze", lambda a, x: a[:, 0], ((3, 1, 4),), constants=(_i64(1),), opsets=range(13, 99)),
        Operator("Concat", lambda a, b: np.concatenate([a, b]), attributes={"axis": 0}),
        Operator("Concat", lambda a, b: np.concatenate([a, b]), type="int64", attributes={"axis": 0}),
        Operator("Slice", lambda a, *_: a[1:3], one, constants=(_i64(1), _i64(3), _i64(0))),
        Operator("Slice", lambda a, *_: a[1:3], one, "int64", (_i64(1), _i64(3), _i64(0))),
        Operator("ReduceSum", lambda a: a.sum(0, keepdims=True), one, attributes={"axes": [0]}, opsets=range(1, 13)),
        Operator("ReduceSum", lambda a, x: a.sum(0, keepdims=True), one, constants=(_i64(0),), opsets=range(13, 99)),
        Operator(
            "ReduceSum",
            lambda a: a.sum(0),
            one,
            attributes={"axes": [0], "keepdims": 0},
            opsets=range(1, 13),
            note="keepdims 0",
        ),
        Operator(
            "ReduceSum",
            lambda a, x: a.sum(0),
            one,
            constants=(_i64(0),),
            attributes={"keepdims": 0},
            opsets=range(13, 99),
            note="keepdims 0",
        ),
        Operator("MatMul", lambda a, b: a @ b, ((2, 3, 4), (2, 4, 5))),
        Operator(
            "Einsum",
            lambda a, b: np.einsum("ij,ij->j", a, b),
            attributes={"equation": "ij,ij->j"},
            opsets=range(12, 99),
        ),
        Operator("Pad", lambda a, *_: np.pad(a, 1), one, constants=(_i64(1, 1, 1, 1), np.array(0, np.float32))),
        Operator("Pad", lambda a, *_: np.pad(a, 1), one, constants=(_i64(1, 1, 1, 1),), note="without a value"),
        Operator(
            "Pad",
            lambda a, *_: np.pad(a, ((0, 0), (1, 1), (2, 2))),
            three,
            constants=(_i64(0, 1, 2, 0, 1, 2),),
            note="of 3 axes",
        ),
        Operator(
            "Pad",
            lambda a, *_: np.pad(a, ((0, 0), (1, 1), (1, 1), (2, 2))),
            ((1, 2, 3, 4),),
            constants=(_i64(0, 1, 1, 2, 0, 1, 1, 2),),
            note="of 4 axes",
        ),
        Operator(
            "Pad",
            lambda a, *_: np.pad(a, ((0, 0), (1, 1), (1, 1), (2, 2), (0, 0))),
            ((1, 2, 3, 4, 2),),
            constants=(_i64(0, 1, 1, 2, 0, 0, 1, 1, 2, 0),),
            note="of 5 axes",
        ),
        Operator("Expand", lambda a, s: np.broadcast_to(a, s), ((3, 1),), constants=(_i64(2, 3, 4),)),
        Operator("Tile", lambda a, s: np.tile(a, s), one, constants=(_i64(2, 1),)),
        Operator("Shape", lambda a: _i64(*a.shape), one),
        Operator(
            "Range",
            lambda a, s, d: np.arange(int(a), 7, dtype=np.int64),
            ((),),
            "int64",
            (np.array(7, np.int64), np.array(1, np.int64)),
            note="computed",
        ),
        Operator("ConstantOfShape", lambda a: np.zeros(a.astype(int), np.float32), ((2,),), "int64", note="computed"),
        Operator("Sum", lambda a, b: a + b),
        Operator("Identity", lambda a: a, one),
        Operator("Flatten", lambda a: a.reshape(2, -1), three),
    ]
    for parts in (4, 8, 16):
        sizes: dict[str, Any] = {"split": [1] * parts}
        split = partial(Operator, "Split", lambda a, *_: a[-1:], ((parts, 4),), outputs=parts, note=f"into {parts}")
        found += [
            split(attributes={"axis": 0, **sizes}, opsets=range(2, 13)),
            split(attributes={"axis": 0}, constants=(_i64(*[1] * parts),), opsets=range(13, 99)),
        ]
        found.append(
            Operator(
                "Concat", lambda *a: np.concatenate(a), ((1, 4),) * parts, attributes={"axis": 0}, note=f"of {parts}"
            )
        )
    return found


_ALL = _operators()
#: By opset and name, those that are written so in that opset.
OPERATORS = {opset: {each.name: each for each in _ALL if opset in each.opsets} for opset in OPSETS}
#: The opset in which dynamic shapes are tried.
DYNAMIC = 13
