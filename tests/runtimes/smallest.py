"""The smallest part of a model that a runtime fails on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from .trials import Arrays, Task

Fails = Callable[[Task], bool]


def smallest(task: Task, fails: Fails) -> Task:
    """A part of the task's model that fails as well: one node if one alone does, else what leads to the first failure.

    Args:
        task: one that fails, and that onnxruntime can run.
        fails: whether a runtime's answer is not right.
    """
    parts = _Parts(task)
    low, high = 0, len(parts.nodes)  # of the nodes in their order, so many are right, and so many are not
    if not fails(parts.part(parts.nodes)):
        return task  # what fails is how the outputs are put together
    while high - low > 1:
        middle = (low + high) // 2
        if fails(parts.part(parts.nodes[:middle])):
            high = middle
        else:
            low = middle
    last = parts.nodes[high - 1]
    for nodes in ([last], parts.behind(last), parts.nodes[:high]):
        part = parts.part(nodes, only=last)
        if fails(part):
            return part
    return parts.part(parts.nodes[:high])


class _Parts:
    """Some of a model's nodes as a model, fed with what the others compute."""

    def __init__(self, task: Task) -> None:
        self.task, graph = task, task.model.graph
        self.nodes = [node for node in graph.node if node.op_type != "Constant"]
        self.constants = {node.output[0]: node for node in graph.node if node.op_type == "Constant"}
        self.values: Arrays = {**task.feeds[0], **_computed(task)}
        self.initializers = {each.name: each for each in graph.initializer}

    def behind(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The node and all that it depends on, in order."""
        wanted, kept = set(_reads(node)), [node]
        for other in reversed(self.nodes[: self.nodes.index(node)]):
            if wanted.intersection(other.output):
                wanted.update(_reads(other))
                kept.insert(0, other)
        return kept

    def part(self, nodes: Sequence[onnx.NodeProto], only: onnx.NodeProto | None = None) -> Task:
        """The nodes as a model that answers what no other of them reads, or what ``only`` one does."""
        made = {name for node in nodes for name in node.output if name}
        read = [name for node in nodes for name in _reads(node)]
        answers = only.output if only else [name for node in nodes for name in node.output if name not in read]
        answers = [name for name in answers if name in self.values]
        held = [self.constants[name] for name in dict.fromkeys(read) if name in self.constants]
        known = made | self.initializers.keys() | self.constants.keys()
        inputs = [name for name in dict.fromkeys(read) if name not in known]
        constants = [self.initializers[name] for name in dict.fromkeys(read) if name in self.initializers]
        before, after, feeds, expected = [], [], {}, {}
        renamed = {}
        for name in inputs:
            value = self.values[name]
            if value.dtype == np.float32 or name in self.task.feeds[0]:
                feeds[name] = value
                continue
            feeds[f"{name}_float"] = value.astype(np.float32)  # few runtimes take other inputs
            before.append(helper.make_node("Cast", [f"{name}_float"], [name], f"{name}_cast", to=_type(value)))
        for name in answers:
            value = self.values[name]
            if value.dtype != np.float32:
                renamed[name] = f"{name}_float"
                after.append(
                    helper.make_node("Cast", [name], [renamed[name]], f"{name}_cast_out", to=TensorProto.FLOAT)
                )
            expected[renamed.get(name, name)] = value.astype(np.float32)
        declared = {value.name: value for value in self.task.model.graph.input}
        graph = helper.make_graph(
            [*held, *before, *nodes, *after],
            "part",
            [declared.get(name) or _info(name, value) for name, value in feeds.items()],
            [_info(name, value) for name, value in expected.items()],
            constants,
        )
        model = helper.make_model(
            graph,
            opset_imports=self.task.model.opset_import,
            ir_version=self.task.model.ir_version,
            functions=self.task.model.functions,
        )
        return Task(model, (feeds,), (expected,))


def _computed(task: Task) -> Arrays:
    """Everything that the model computes on its way."""
    model = onnx.ModelProto()
    model.CopyFrom(task.model)
    names = [name for node in model.graph.node for name in node.output if name]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, task.feeds[0]), strict=True))


def _reads(node: onnx.NodeProto) -> Iterable[str]:
    """What a node reads, its bodies included."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else []:
            inside = {value.name for value in (*graph.input, *graph.initializer)}
            for inner in graph.node:
                yield from (name for name in _reads(inner) if name not in inside)
                inside.update(inner.output)
            yield from (value.name for value in graph.output if value.name not in inside)


def _type(value: np.ndarray) -> int:
    return helper.np_dtype_to_tensor_dtype(value.dtype)


def _info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _type(value), value.shape)
