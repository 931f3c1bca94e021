"""Walking a model: every graph in it, however deep, and every model-local function, once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

#: The empty name and this one are the same domain.
_ONNX_DOMAIN = "ai.onnx"


def domain_of(name: str) -> str:
    """The domain ``name``, the ONNX domain always as the empty string."""
    return "" if name == _ONNX_DOMAIN else name


def function_key(node: onnx.NodeProto | onnx.FunctionProto) -> tuple[str, str, str]:
    """What a function is called by: domain, name and overload, of the function or of a node that calls it."""
    name = node.name if isinstance(node, onnx.FunctionProto) else node.op_type
    return domain_of(node.domain), name, node.overload


@dataclass
class Scope:
    """One list of nodes: the main graph, the body of an If, Loop or Scan, or a function.

    Attributes:
        path: where it is, in words ("" for the main graph).
        container: the proto that holds the nodes.
        opsets: domain -> version that its nodes are written in.
        parent: the scope around it, whose names are visible here.
        function: the model-local function that it is in.
    """

    path: str
    container: onnx.GraphProto | onnx.FunctionProto
    opsets: dict[str, int]
    parent: Scope | None = None
    function: onnx.FunctionProto | None = None
    children: list[Scope] = field(default_factory=list)

    def __iter__(self) -> Iterator[onnx.NodeProto]:
        return iter(self.container.node)

    def family(self) -> list[Scope]:
        """The scope and all inside it, parents before their children."""
        found = [self]
        for scope in found:  # grows while it is walked: no recursion, whatever the depth
            found += scope.children
        return found


def scopes(model: onnx.ModelProto) -> list[Scope]:
    """Every scope of ``model``, parents before their children; the main graph is the first."""
    roots = [Scope("", model.graph, _opsets(model.opset_import))]
    roots += [Scope(f"function {f.domain}::{f.name}", f, _opsets(f.opset_import), function=f) for f in model.functions]
    return [scope for root in roots for scope in _grow(root)]


def _grow(root: Scope) -> list[Scope]:
    found = [root]
    for scope in found:
        for index, node in enumerate(scope):
            for attribute, graph in subgraphs(node):
                here = f"{node.op_type} {node.name or f'#{index}'} {attribute.name}"
                path = f"{scope.path}/{here}" if scope.path else here
                scope.children.append(Scope(path, graph, scope.opsets, scope, scope.function))
        found += scope.children
    return found


def subgraphs(node: onnx.NodeProto) -> Iterator[tuple[onnx.AttributeProto, onnx.GraphProto]]:
    """The graphs that ``node`` holds as attributes (bodies of If, Loop and Scan)."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute, attribute.g
        for graph in attribute.graphs:
            yield attribute, graph


class Names:
    """The names of a model's values and nodes, and new ones that are none of them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._taken: set[str] = set()
        for scope in scopes(model):
            for node in scope:
                self._taken.update((node.name, *node.input, *node.output))
            if isinstance(scope.container, onnx.FunctionProto):
                self._taken.update((*scope.container.input, *scope.container.output))
            else:
                for values in (scope.container.input, scope.container.output, scope.container.initializer):
                    self._taken.update(value.name for value in values)
                self._taken.update(sparse.values.name for sparse in scope.container.sparse_initializer)

    def new(self, name: str) -> str:
        """``name``, or ``name`` and a number where it is taken; taken from now on."""
        candidate, number = name, 1
        while candidate in self._taken:
            number += 1
            candidate = f"{name}_{number}"
        self._taken.add(candidate)
        return candidate

    def take_all(self, wanted: Collection[str]) -> bool:
        """Take all of the names ``wanted``, unless one of them is taken; whether that was done."""
        if not self._taken.isdisjoint(wanted):
            return False
        self._taken.update(wanted)
        return True


def _opsets(imports: list[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {domain_of(entry.domain): entry.version for entry in imports}


class Constants:
    """The constant values of a model's scopes: initializers that are in the file, and Constant nodes."""

    def __init__(self) -> None:
        self._tensors: dict[int, dict[str, onnx.TensorProto]] = {}

    def value(self, scope: Scope, name: str) -> npt.NDArray[Any] | None:
        """The value of ``name`` as ``scope`` sees it, where it is constant."""
        at: Scope | None = scope
        while at is not None:
            if id(at) not in self._tensors:
                self._tensors[id(at)] = _constant_tensors(at)
            if name in self._tensors[id(at)]:
                return numpy_helper.to_array(self._tensors[id(at)][name])
            at = at.parent
        return None


def _constant_tensors(scope: Scope) -> dict[str, onnx.TensorProto]:
    tensors: dict[str, onnx.TensorProto] = {}
    if isinstance(scope.container, onnx.GraphProto):
        fed = {value.name for value in scope.container.input}
        tensors.update((t.name, t) for t in scope.container.initializer if t.name not in fed)
    for node in scope:
        if node.op_type == "Constant" and node.domain == "" and len(node.attribute) == 1:
            tensor = _as_tensor(node.attribute[0])
            if tensor is not None:
                tensors[node.output[0]] = tensor
    return {name: t for name, t in tensors.items() if t.data_location != onnx.TensorProto.EXTERNAL}


def _as_tensor(attribute: onnx.AttributeProto) -> onnx.TensorProto | None:
    if attribute.name == "value":
        return attribute.t
    dtypes = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    if attribute.name not in dtypes or attribute.ref_attr_name:
        return None
    return numpy_helper.from_array(np.array(helper.get_attribute_value(attribute), dtypes[attribute.name]))
