"""Read an OrtGraph, which ONNX Runtime passes to GetCapability, as a model of onnx."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
)

from ..compiled_ops import c_api
from .ep_api import (
    FLOAT_ATTRIBUTE,
    FLOATS_ATTRIBUTE,
    INT_ATTRIBUTE,
    INTS_ATTRIBUTE,
    STRING_ATTRIBUTE,
)

#: The domain and the type of a node whose operator is not read.
_UNREAD_DOMAIN = "ort_gridsample.unread"
_UNREAD_TYPE = "Unread"
#: Constants with more elements are not read.
_MAX_ELEMENTS = 64
#: The size of the memory for an attribute, in bytes. A longer attribute is read again.
_ATTRIBUTE_SIZE = 4096
#: The bits of a C enum or int, and those of a bool, in a register.
_INT_BITS = 0xFFFFFFFF
_BOOL_BITS = 0xFF
#: The types of the constants that are read, and the size of an element in bytes.
_ELEMENT_SIZES: dict[int, int] = {
    TensorProto.FLOAT: 4,
    TensorProto.DOUBLE: 8,
    TensorProto.FLOAT16: 2,
    TensorProto.BFLOAT16: 2,
    TensorProto.INT32: 4,
    TensorProto.INT64: 8,
}
#: OrtOpAttrType -> the type of the numbers, or None for a string.
_ATTRIBUTE_DTYPES: dict[int, Any] = {
    INT_ATTRIBUTE: np.int64,
    INTS_ATTRIBUTE: np.int64,
    FLOAT_ATTRIBUTE: np.float32,
    FLOATS_ATTRIBUTE: np.float32,
    STRING_ATTRIBUTE: None,
}


class OrtApi:
    """The functions of an OrtApi, for Python.

    Args:
        address: the address of the OrtApi.
    """

    def __init__(self, address: int) -> None:
        self.address = address

    def call(self, name: str, *arguments: int) -> int:
        """Call a function: see :func:`.c_api.call`."""
        return c_api.call(self.address, name, *arguments)

    def get(self, name: str, *arguments: int) -> int:
        """Return the result of a function: see :func:`.c_api.get`."""
        return c_api.get(self.address, name, *arguments)

    def check(self, status: int) -> None:
        """Raise RuntimeError with the message of an OrtStatus*, unless it is null."""
        c_api.check(self.address, status)

    def text(self, name: str, *arguments: int) -> str:
        """As :meth:`get`, for a function whose result is a text."""
        address = self.get(name, *arguments)
        return ctypes.string_at(address).decode() if address else ""

    def list(self, count_name: str, name: str, owner: int) -> list[int]:
        """Return the addresses in a list of ``owner``.

        Args:
            count_name: the function that returns the length of the list.
            name: the function that copies the list.
            owner: the first argument of both functions.
        """
        count = self.get(count_name, owner)
        if count == 0:  # most nodes have no implicit inputs
            return []
        addresses = (c_api.word * count)()
        self.check(self.call(name, owner, ctypes.addressof(addresses), count))
        return list(addresses)


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of an OrtGraph.

    Attributes:
        address: the OrtNode.
        op_type: the type of the node.
        domain: its domain.
        inputs: the names of its inputs. An input that the node omits has the name "".
        implicit_inputs: the names of the other values that the bodies of the node read.
        outputs: the names of its outputs.
    """

    address: int
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    implicit_inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Graph:
    """An OrtGraph. It may be the body of a node, and then reads values of the graphs around it.

    Args:
        api: the functions of ONNX Runtime.
        address: the OrtGraph.
    """

    def __init__(self, api: OrtApi, address: int) -> None:
        self._api = api
        self._address = address
        #: The address of an OrtValueInfo -> the name of the value.
        self._names: dict[int, str] = {}
        #: The name of a value -> the address of its OrtValueInfo.
        self._values: dict[str, int] = {}

    @property
    def is_body(self) -> bool:
        """Whether the graph is the body of a node."""
        return bool(self._api.get("Graph_GetParentNode", self._address))

    @cached_property
    def nodes(self) -> list[Node]:
        """The nodes, in the order of ONNX Runtime."""
        addresses = self._api.list("Graph_GetNumNodes", "Graph_GetNodes", self._address)
        return [self.node(address) for address in addresses]

    def node(self, address: int) -> Node:
        """Return the node at ``address``, an OrtNode of this graph."""
        api = self._api
        return Node(
            address=address,
            op_type=api.text("Node_GetOperatorType", address),
            domain=api.text("Node_GetDomain", address),
            inputs=self._value_names("Node", "Inputs", address),
            implicit_inputs=self._value_names("Node", "ImplicitInputs", address),
            outputs=self._value_names("Node", "Outputs", address),
        )

    def _value_names(self, owner_type: str, list_name: str, owner: int) -> tuple[str, ...]:
        """Return the names of values that belong to a node or to the graph.

        Args:
            list_name: the list of the values, such as "Inputs".
            owner: the address of the OrtNode or the OrtGraph.
        """
        count_name = f"{owner_type}_GetNum{list_name}"
        values = self._api.list(count_name, f"{owner_type}_Get{list_name}", owner)
        return tuple(self._name(value) for value in values)

    def _name(self, value: int) -> str:
        """Return the name of an OrtValueInfo; "" for null."""
        if not value:
            return ""
        if value not in self._names:
            name = self._api.text("GetValueInfoName", value)
            self._names[value] = name
            self._values[name] = value
        return self._names[value]

    def is_assigned(self, node: Node) -> bool:
        """Whether another provider runs ``node``."""
        return bool(self._api.text("Node_GetEpName", node.address))

    def knows_last_axis(self, name: str) -> bool:
        """Whether onnxruntime knows the length of the last axis of a value, or that it has none."""
        type_proto = self._type(name)
        if type_proto is None or not type_proto.tensor_type.HasField("shape"):
            return False
        dims = type_proto.tensor_type.shape.dim
        return not dims or dims[-1].HasField("dim_value")

    def is_shape(self, name: str) -> bool:
        """Whether a value may be a shape, or a length: int64 of at most one axis."""
        type_proto = self._type(name)
        if type_proto is None or type_proto.tensor_type.elem_type != TensorProto.INT64:
            return False
        tensor = type_proto.tensor_type
        return not tensor.HasField("shape") or len(tensor.shape.dim) <= 1

    def outline(self) -> ModelProto:
        """Return a model with the nodes and values of the graph, without attributes and types."""
        graph = GraphProto()
        for node in self.nodes:
            graph.node.add(
                op_type=node.op_type,
                domain=node.domain,
                input=(*node.inputs, *node.implicit_inputs),
                output=node.outputs,
            )
        return self._model(graph)

    def model(self, values: Set[str]) -> ModelProto:
        """Return a model of the nodes that compute ``values``, with their attributes and types.

        Each other node is replaced by a node of an unknown operator without outputs, so that the
        positions of the nodes, and the readers of all values, are those of the graph. The values
        that the replaced nodes compute are inputs of the model.
        """
        graph = GraphProto()
        computed = set[str]()
        names: dict[str, None] = {}
        for node in self.nodes:
            if values.isdisjoint(node.outputs):
                graph.node.add(
                    op_type=_UNREAD_TYPE,
                    domain=_UNREAD_DOMAIN,
                    input=(*node.inputs, *node.implicit_inputs),
                )
                continue
            computed.update(node.outputs)
            names |= dict.fromkeys((*node.inputs, *node.outputs))
            graph.node.add(
                name=self._api.text("Node_GetName", node.address),
                op_type=node.op_type,
                domain=node.domain,
                input=node.inputs,
                output=node.outputs,
                attribute=self._attributes(node),
            )
        names.pop("", None)
        for name in names:
            self._declare(graph, name, name in computed)
        return self._model(graph)

    def _declare(self, graph: GraphProto, name: str, is_computed: bool) -> None:
        """Add the type of a value to ``graph``, or its elements if it is a small constant."""
        type_proto = self._type(name)
        if type_proto is None:
            return
        if not is_computed:
            constant = self._constant(name, type_proto)
            if constant is not None:
                graph.initializer.append(constant)
                return
        values = graph.value_info if is_computed else graph.input
        values.append(ValueInfoProto(name=name, type=type_proto))

    def _model(self, graph: GraphProto) -> ModelProto:
        """Return a model of ``graph``, whose outputs become those of this graph."""
        api = self._api
        graph.name = "graph"
        outputs = self._value_names("Graph", "Outputs", self._address)
        graph.output.extend(ValueInfoProto(name=name) for name in outputs)
        opsets = [helper.make_opsetid(*opset) for opset in self._opsets()]
        opsets.append(helper.make_opsetid(_UNREAD_DOMAIN, 1))
        ir_version = api.get("Graph_GetOnnxIRVersion", self._address)
        return ModelProto(ir_version=ir_version, opset_import=opsets, graph=graph)

    def _opsets(self) -> list[tuple[str, int]]:
        """Return the domains and their versions."""
        api = self._api
        count = api.get("Graph_GetNumOperatorSets", self._address)
        domains = (ctypes.c_char_p * count)()
        versions = (c_api.word * count)()
        addresses = ctypes.addressof(domains), ctypes.addressof(versions)
        api.check(api.call("Graph_GetOperatorSets", self._address, *addresses, count))
        pairs = zip(domains, versions, strict=True)
        return [((domain or b"").decode(), version) for domain, version in pairs]

    def _type(self, name: str) -> TypeProto | None:
        """Return the type of a value; None if it is not a tensor."""
        api = self._api
        # ONNX Runtime owns both.
        type_info = api.get("GetValueInfoTypeInfo", self._values[name])
        tensor_info = api.get("CastTypeInfoToTensorInfo", type_info) if type_info else 0
        if not tensor_info:
            return None
        type_proto = TypeProto()
        tensor = type_proto.tensor_type
        tensor.elem_type = api.get("GetTensorElementType", tensor_info) & _INT_BITS
        if not api.call("TensorTypeAndShape_HasShape", tensor_info) & _BOOL_BITS:
            return type_proto
        count = api.get("GetDimensionsCount", tensor_info)
        lengths = (c_api.word * count)()
        names = (ctypes.c_char_p * count)()
        api.check(api.call("GetDimensions", tensor_info, ctypes.addressof(lengths), count))
        api.check(api.call("GetSymbolicDimensions", tensor_info, ctypes.addressof(names), count))
        shape = tensor.shape  # a tensor without axes has a shape, too
        shape.SetInParent()
        for length, length_name in zip(lengths, names, strict=True):
            dim = shape.dim.add()
            if length >= 0:
                dim.dim_value = length
            elif length_name:
                dim.dim_param = length_name.decode()
        return type_proto

    def _constant(self, name: str, type_proto: TypeProto) -> TensorProto | None:
        """Return a small constant; None if the value is another one."""
        api = self._api
        tensor = type_proto.tensor_type
        lengths = [dim.dim_value for dim in tensor.shape.dim if dim.HasField("dim_value")]
        is_known = tensor.HasField("shape") and len(lengths) == len(tensor.shape.dim)
        if not is_known or prod(lengths) > _MAX_ELEMENTS or tensor.elem_type not in _ELEMENT_SIZES:
            return None
        value_info = self._values[name]
        if not api.get("ValueInfo_IsConstantInitializer", value_info):
            return None
        value = api.get("ValueInfo_GetInitializerValue", value_info)
        if not value:
            return None
        size = _ELEMENT_SIZES[tensor.elem_type] * prod(lengths)
        data = ctypes.string_at(api.get("GetTensorMutableData", value), size)
        return TensorProto(name=name, dims=lengths, data_type=tensor.elem_type, raw_data=data)

    def _attributes(self, node: Node) -> Iterator[AttributeProto]:
        """Yield the attributes of ``node`` that are numbers or strings."""
        api = self._api
        for address in api.list("Node_GetNumAttributes", "Node_GetAttributes", node.address):
            attribute_type = api.get("OpAttr_GetType", address) & _INT_BITS
            if attribute_type not in _ATTRIBUTE_DTYPES:
                continue
            name = api.text("OpAttr_GetName", address)
            yield _attribute(name, attribute_type, self._attribute_data(address, attribute_type))

    def _attribute_data(self, address: int, attribute_type: int) -> bytes:
        """Return the value that ReadOpAttr writes for the OrtOpAttr at ``address``."""
        api = self._api
        size = c_api.word(_ATTRIBUTE_SIZE)
        while True:
            memory_size = size.value
            memory = ctypes.create_string_buffer(memory_size)
            arguments = ctypes.addressof(memory), memory_size, ctypes.addressof(size)
            status = api.call("ReadOpAttr", address, attribute_type, *arguments)
            if status == 0:
                return memory.raw[: size.value]
            if size.value <= memory_size:  # the memory is large enough
                api.check(status)
            api.call("ReleaseStatus", status)


def _attribute(name: str, attribute_type: int, data: bytes) -> AttributeProto:
    """Return an attribute whose value ReadOpAttr wrote as ``data``."""
    dtype = _ATTRIBUTE_DTYPES[attribute_type]
    if dtype is None:
        return helper.make_attribute(name, data.rstrip(b"\0"))
    values = np.frombuffer(data, dtype).tolist()
    if attribute_type in (INT_ATTRIBUTE, FLOAT_ATTRIBUTE):
        return helper.make_attribute(name, values[0])
    list_type = AttributeProto.FLOATS if attribute_type == FLOATS_ATTRIBUTE else AttributeProto.INTS
    return helper.make_attribute(name, values, attr_type=list_type)
