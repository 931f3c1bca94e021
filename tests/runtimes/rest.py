"""A model without what is judged: does a runtime run the rest of it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import onnx
import onnxruntime
from onnx import helper, inliner, shape_inference

from .trials import Task

Known: TypeAlias = Mapping[str, tuple[int, int]]  #: by value


def rest_of(task: Task) -> Task:
    """The task with means in the place of each GridSample and AffineGrid, of the same shape, type and inputs.

    Model-local functions are inlined, as lowering does. What is right then is what onnxruntime answers.

    Raises:
        Exception: onnxruntime's, where it cannot run that.
    """
    model = onnx.ModelProto()
    model.CopyFrom(inliner.inline_local_functions(task.model))
    opset = next(each.version for each in model.opset_import if not each.domain)
    _replace(model.graph, opset, dict(_known(shape_inference.infer_shapes(model, data_prop=True).graph)))
    names = [output.name for output in model.graph.output]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = tuple(dict(zip(names, session.run(names, feed), strict=True)) for feed in task.feeds)
    return Task(model, task.feeds, expected)


def _known(graph: onnx.GraphProto) -> Iterator[tuple[str, tuple[int, int]]]:
    """Of each value the element type and the rank."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.HasField("shape"):
            yield value.name, (value.type.tensor_type.elem_type, len(value.type.tensor_type.shape.dim))
    for tensor in graph.initializer:
        yield tensor.name, (tensor.data_type, len(tensor.dims))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _known(attribute.g)


def _replace(graph: onnx.GraphProto, opset: int, known: Known) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _replace(attribute.g, opset, known)
        nodes += _standing_for(node, opset, known) if node.op_type in ("GridSample", "AffineGrid") else [node]
    del graph.node[:]
    graph.node.extend(nodes)


def _standing_for(node: onnx.NodeProto, opset: int, known: Known) -> list[onnx.NodeProto]:
    """Means of the node's first input and, broadcast, its second one, or at the lengths that this says."""
    (first, second), (result,) = node.input, node.output
    nodes: list[onnx.NodeProto] = []

    def add(op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"{result}/rest_{len(nodes)}"
        nodes.append(helper.make_node(op_type, inputs, [name], f"{name}/node", **attributes))
        return name

    def numbers(*values: int) -> str:
        return add("Constant", value=helper.make_tensor("", onnx.TensorProto.INT64, [len(values)], values))

    def along(op_type: str, x: str, axes: tuple[int, ...], since: int, **attributes: Any) -> str:
        """Along these axes: until opset ``since`` an attribute says them."""
        if opset < since:
            return add(op_type, x, axes=axes, **attributes)
        return add(op_type, x, numbers(*axes), **attributes)

    if node.op_type == "GridSample":
        ranks = {known[name][1] - 2 for name in (first, second) if name in known}
        rank = ranks.pop() if ranks else 2
        spatial = tuple(range(2, rank + 2))
        means = along("ReduceMean", first, spatial, 18, keepdims=1)  # (N, C, 1, …)
        positions = along("ReduceMean", second, (rank + 1,), 18, keepdims=0)
        if len({known[name][0] for name in (first, second) if name in known}) == 2:
            positions = add("Cast", positions, to=known[first][0])
        add("Add", means, along("Unsqueeze", positions, (1,), 13), output=result)
    else:
        rank = known[result][1] - 2 if result in known else 2
        shifts = along("ReduceMean", first, (2,), 18, keepdims=0)
        lengths = add("Slice", second, numbers(2), numbers(rank + 2))
        target = add("Concat", numbers(1), lengths, numbers(1), axis=0)
        add("Expand", along("Unsqueeze", shifts, tuple(range(1, rank + 1)), 13), target, output=result)
    return nodes
