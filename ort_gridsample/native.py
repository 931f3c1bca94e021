"""What the installed onnxruntime runs by itself: asked of it, by trying."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from . import spec

#: A silent logger: a refusal is an answer here.
_SILENT = 4


def refusal(operator: str, opset: int, types: Mapping[str, str], rank: int, attributes: Mapping[str, object]) -> str:
    """Why onnxruntime does not run one node of ``operator``, in its own words; empty where it does.

    Args:
        operator: a key of :data:`ort_gridsample.spec.OPERATORS`.
        opset: the model's opset.
        types: the element type of each input.
        rank: the number of spatial axes.
        attributes: the node's attributes.
    """
    return _refusal(operator, opset, tuple(types.items()), rank, tuple(sorted(attributes.items())))


@cache
def _refusal(
    operator: str, opset: int, types: tuple[tuple[str, str], ...], rank: int, attributes: tuple[tuple[str, object], ...]
) -> str:
    if operator == "GridSample":
        arrays = [np.zeros((1, 1, *[2] * rank)), np.zeros((1, *[2] * rank, rank))]
    else:
        arrays = [np.zeros((1, rank, rank + 1)), np.array([1, 1, *[2] * rank])]
    try:
        model = _one_node(operator, opset, types, [a.ndim for a in arrays], dict(attributes))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _SILENT
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        feeds = {name: a.astype(_fed(type_name)) for (name, type_name), a in zip(types, arrays, strict=True)}
        session.run(None, feeds)
    except Exception as error:
        return " ".join(str(error).split())
    return ""


def _one_node(
    operator: str, opset: int, types: tuple[tuple[str, str], ...], ranks: list[int], attributes: dict[str, Any]
) -> bytes:
    inputs, casts, names = [], [], []
    for (name, type_name), rank in zip(types, ranks, strict=True):
        fed = _fed(type_name)
        inputs.append(helper.make_tensor_value_info(name, _elem_type(fed), [None] * rank))
        names.append(name)
        if fed != type_name:
            names[-1] = f"{name} as {type_name}"
            casts.append(helper.make_node("Cast", [name], names[-1:], to=_elem_type(type_name)))
    node = helper.make_node(operator, names, ["Y"], **attributes)
    first = types[0][1]
    output = "Y"
    after = []
    if first == "bfloat16":
        output = "Y as float32"
        after = [helper.make_node("Cast", ["Y"], [output], to=onnx.TensorProto.FLOAT)]
    outputs = [helper.make_tensor_value_info(output, _elem_type("float32" if after else first), None)]
    graph = helper.make_graph([*casts, node, *after], "one node", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = min(model.ir_version, 10)
    return model.SerializeToString()


def _fed(type_name: str) -> str:
    """The type that a tensor of ``type_name`` is fed as: numpy itself has no bfloat16."""
    return "float32" if type_name == "bfloat16" else type_name


def _elem_type(type_name: str) -> int:
    return int(onnx.TensorProto.DataType.Value(spec.TYPES[type_name].onnx.upper()))
