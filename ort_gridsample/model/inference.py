"""Element types and shapes of a model's values, as far as onnx's shape inference finds them.

It runs on a skeleton of the model, the same nodes without the weights, so that a model of any size fits; and on the
body of each model-local function once for every signature that it is called with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper, shape_inference

from .. import spec
from .dialects import dialect_of
from .graphs import Scope, function_key, scopes, subgraphs

#: Tensors up to this size may be shapes, which the inference needs the values of; weights are larger.
SMALL_BYTES = 1 << 12

#: No shape is longer than this, nor anything that is computed on the way to one.
LONGEST_ROW = 1 << 16


@dataclass(frozen=True)
class Value:
    """What is known of a value: its type's name in :data:`ort_gridsample.spec.TYPES`, and its shape."""

    type: str | None = None
    shape: tuple[int | str | None, ...] | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)


#: Functions that stand for the operators, whatever opset a model is written in.
_STAND_IN = "ort_gridsample.model.inference"
_STAND_INS = [
    helper.make_function(
        _STAND_IN,
        operator,
        inputs := list(versions[max(versions)].types),
        ["Y"],
        [helper.make_node(operator, inputs, ["Y"])],
        [helper.make_opsetid("", max(versions))],
    )
    for operator, versions in spec.OPERATORS.items()
]


class Inference:
    """What is known of the values of ``model``, whose scopes are ``found``."""

    def __init__(self, model: onnx.ModelProto, found: Sequence[Scope]) -> None:
        self._known: dict[int, dict[str, dict[Value, None]]] = {id(scope.container): {} for scope in found}
        functions = {function_key(scope.container): scope for scope in found if scope.container is scope.function}
        bare_functions = [_bare_function(f) for f in model.functions]

        main = _model(_bare_graph(model.graph), model, model.opset_import, bare_functions)
        pending = [(found[0], main)]
        seen = set()
        while pending:
            root, skeleton = pending.pop()
            typed_root = scopes(_annotated(skeleton))[0]
            known: dict[int, dict[str, Value]] = {}
            for scope, typed in zip(root.family(), typed_root.family(), strict=True):
                known[id(scope)] = _known_in(typed.container)
                for name, value in known[id(scope)].items():
                    self._known[id(scope.container)].setdefault(name, {})[value] = None
                for node in scope:
                    callee = functions.get(function_key(node))
                    if callee is None:
                        continue
                    arguments = tuple(_visible(known, scope, name) for name in node.input)
                    call = (function_key(node), arguments, *(a.SerializeToString() for a in node.attribute))
                    if call not in seen:
                        seen.add(call)
                        function = callee.container
                        assert isinstance(function, onnx.FunctionProto)
                        body = _call(function, node, arguments)
                        pending.append((callee, _model(body, model, function.opset_import, bare_functions)))

    def alternatives(self, scope: Scope, name: str) -> list[Value]:
        """What is known of ``name`` as ``scope`` sees it: several values where a function is called with several."""
        at: Scope | None = scope
        while at is not None:
            known = self._known[id(at.container)].get(name)
            if known:
                return list(known)
            at = at.parent
        return []


def value_of(proto: onnx.TypeProto) -> Value:
    """What a ``TypeProto`` says."""
    if not proto.HasField("tensor_type"):
        return Value()
    tensor = proto.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(map(_dim, tensor.shape.dim))
    return Value(_type_name(tensor.elem_type), shape)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    # What is not UTF-8 comes as bytes.
    return dim.dim_param if dim.dim_param and isinstance(dim.dim_param, str) else None


def _type_name(elem_type: int) -> str | None:
    if elem_type == onnx.TensorProto.UNDEFINED or elem_type not in onnx.TensorProto.DataType.values():
        return None
    onnx_name = onnx.TensorProto.DataType.Name(elem_type).lower()
    known = spec.TYPES_BY_ONNX.get(onnx_name)
    return known.name if known else onnx_name


def _known_in(container: onnx.GraphProto | onnx.FunctionProto) -> dict[str, Value]:
    known: dict[str, Value] = {}
    for values in (container.value_info, container.input, container.output):
        known.update((v.name, value_of(v.type)) for v in values if not isinstance(v, str))
    if isinstance(container, onnx.GraphProto):
        known.update((t.name, Value(_type_name(t.data_type), tuple(t.dims))) for t in container.initializer)
    return {name: value for name, value in known.items() if value != Value()}


def _visible(known: Mapping[int, Mapping[str, Value]], scope: Scope | None, name: str) -> Value:
    while scope is not None and id(scope) in known:
        if name in known[id(scope)]:
            return known[id(scope)][name]
        scope = scope.parent
    return Value()


def _annotated(skeleton: onnx.ModelProto) -> onnx.ModelProto:
    try:
        annotated = shape_inference.infer_shapes(skeleton)
        # Following the numbers in 1-D tensors finds the ranks behind Reshape; it takes room for each of them.
        rows = (v.shape for s in scopes(annotated) for v in _known_in(s.container).values() if v.rank == 1)
        if all(not isinstance(length, int) or length <= LONGEST_ROW for (length,) in filter(None, rows)):
            annotated = shape_inference.infer_shapes(annotated, data_prop=True)
        return annotated
    except Exception:  # of a model that is not valid: what it says itself is still known
        return skeleton


def _model(
    graph: onnx.GraphProto,
    model: onnx.ModelProto,
    opsets: Iterable[onnx.OperatorSetIdProto],
    functions: Iterable[onnx.FunctionProto],
) -> onnx.ModelProto:
    bare = onnx.ModelProto(ir_version=max(8, model.ir_version), graph=graph, opset_import=opsets, functions=functions)
    bare.functions.extend(_STAND_INS)
    bare.opset_import.append(helper.make_opsetid(_STAND_IN, 1))
    return bare


def _bare_function(function: onnx.FunctionProto) -> onnx.FunctionProto:
    bare = onnx.FunctionProto()
    bare.CopyFrom(function)
    del bare.node[:]
    _add_bare_nodes(bare, function.node)
    bare.opset_import.append(helper.make_opsetid(_STAND_IN, 1))
    return bare


def _bare_graph(graph: onnx.GraphProto) -> onnx.GraphProto:
    bare = onnx.GraphProto(name=graph.name, input=graph.input, output=graph.output, value_info=graph.value_info)
    _add_bare_nodes(bare, graph.node)
    for tensor in graph.initializer:
        if _is_weight(tensor):
            bare.value_info.append(_weight_info(tensor.name, tensor))
        else:
            bare.initializer.append(tensor)
    return bare


def _add_bare_nodes(bare: onnx.GraphProto | onnx.FunctionProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """The ``nodes``, with the types of the weights in the place of the weights."""
    for node in nodes:
        weights = [a.t for a in node.attribute if node.op_type == "Constant" and _is_weight(a.t)]
        if weights:
            bare.value_info.append(_weight_info(node.output[0], weights[0]))
        else:
            bare.node.append(_bare_node(node))


def _is_weight(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.ByteSize() > SMALL_BYTES


def _weight_info(name: str, tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    # The length of a row of weights is left open, so that none counts as a row of numbers to follow.
    shape = tensor.dims if len(tensor.dims) > 1 else [None] * len(tensor.dims)
    return helper.make_tensor_value_info(name, tensor.data_type, shape)


def _bare_node(node: onnx.NodeProto) -> onnx.NodeProto:
    bare = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=node.input, output=node.output)
    bare.name, bare.overload = node.name, node.overload
    dialect = dialect_of(node, {})
    if dialect is not None:
        # Inference knows nothing of other spellings, nor of the standard's own in an opset before the first.
        bare.op_type, bare.domain = dialect.operator, _STAND_IN
        del bare.input[2:], bare.output[1:]
        return bare
    graphs = {attribute.name for attribute, _ in subgraphs(node)}
    for attribute in node.attribute:
        if attribute.name in graphs:
            copy = bare.attribute.add(name=attribute.name, type=attribute.type)
            if attribute.HasField("g"):
                copy.g.CopyFrom(_bare_graph(attribute.g))
            copy.graphs.extend(_bare_graph(graph) for graph in attribute.graphs)
        else:
            bare.attribute.append(attribute)
    return bare


def _call(function: onnx.FunctionProto, node: onnx.NodeProto, arguments: Sequence[Value]) -> onnx.GraphProto:
    """The body of ``function`` as the graph that the call ``node`` makes of it."""
    given = {a.name: a for a in (*function.attribute_proto, *node.attribute)}
    graph = onnx.GraphProto(name=function.name)
    _add_bare_nodes(graph, function.node)
    for inner in graph.node:
        _bind(inner, given)
    for name, value in zip(function.input, arguments, strict=False):
        if value.type is not None:
            elem_type = onnx.TensorProto.DataType.Value(_onnx_name(value.type))
            graph.input.append(helper.make_tensor_value_info(name, elem_type, value.shape))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in function.output)
    return graph


def _onnx_name(type_name: str) -> str:
    return (spec.TYPES[type_name].onnx if type_name in spec.TYPES else type_name).upper()


def _bind(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> None:
    """Replace ``node``'s references to the function's attributes by what is ``given`` for them."""
    attributes = list(node.attribute)
    del node.attribute[:]
    for attribute in attributes:
        if not attribute.ref_attr_name:
            node.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            bound = node.attribute.add()
            bound.CopyFrom(given[attribute.ref_attr_name])
            bound.name = attribute.name
    for _, graph in subgraphs(node):
        for inner in graph.node:
            _bind(inner, given)
