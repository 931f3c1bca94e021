"""Scopes: all graphs of a model, at any depth, and all model-local functions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import accumulate, chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..errors import where_node
from ..spec import Shape
from .placeholders import is_placeholder

if TYPE_CHECKING:  # a source hides values in scopes
    from .model_source import ModelSource

#: Another name of the ONNX domain, which is the empty string.
_ONNX_DOMAIN = "ai.onnx"
#: The opset of the ONNX domain for models that import other domains only. onnxruntime uses its
#: newest opset for them.
UNSTATED_OPSET = 20
#: The first IR version in which an initializer that is also an input is a default, which callers
#: may override.
_FIRST_IR_VERSION_WITH_DEFAULTS = 4
#: The index in :attr:`Scope.readers` of the caller of the graph, which reads its outputs.
OUTSIDE = -1
#: The maker of a value that no node makes: an index before all nodes.
NO_MAKER = -1

AttributeType = onnx.defs.OpSchema.AttrType
#: The types of attributes that hold graphs.
_GRAPH_ATTRIBUTES = (AttributeType.GRAPH, AttributeType.GRAPHS)
#: The types of attributes that hold tensors.
TENSOR_ATTRIBUTES = (
    AttributeType.TENSOR,
    AttributeType.TENSORS,
    AttributeType.SPARSE_TENSOR,
    AttributeType.SPARSE_TENSORS,
)
#: The dtypes of the attributes of a Constant that are numbers.
_CONSTANT_DTYPES: dict[str, Any] = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
}

#: The node or the initializer that defines a value. None if the caller of the graph defines it, or
#: if the initializer is sparse.
Definition = onnx.NodeProto | TensorProto | None
#: The domain, the name and the overload of a function, which its calls have.
FunctionKey = tuple[str, str, str]


def domain_of(name: str) -> str:
    """Return the domain ``name``; always the empty string for the ONNX domain."""
    return "" if name == _ONNX_DOMAIN else name


def function_key(node: onnx.NodeProto | onnx.FunctionProto) -> FunctionKey:
    """Return the key of a function, or of the function that a node calls."""
    name = node.name if isinstance(node, onnx.FunctionProto) else node.op_type
    return domain_of(node.domain), name, node.overload


def display_name(node: onnx.NodeProto) -> str:
    """Return the name of ``node``, or the names of its outputs in brackets if it has none."""
    return node.name or f"({', '.join(node.output)})"


def where_of(node: onnx.NodeProto) -> str:
    """Return the operator and the name of ``node``, as errors write them."""
    return where_node(node.op_type, display_name(node))


def used_domains(model: onnx.ModelProto, all_scopes: Iterable[Scope]) -> frozenset[str]:
    """Return the domains of the nodes that the functions of ``model`` do not define."""
    used = frozenset[str]().union(*(scope.domains for scope in all_scopes))
    return used - {domain_of(function.domain) for function in model.functions}


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the ONNX domain in the main graph of ``model``.

    It is :data:`UNSTATED_OPSET` if the model imports other domains only, and 0 if it imports none.
    """
    return _opsets(model.opset_import, UNSTATED_OPSET).get("", 0)


def _inputs_of(node: onnx.NodeProto) -> tuple[str, ...]:
    # A slice is twice as fast as iteration. Python's garbage collector soon stops visiting tuples
    # of strings.
    return tuple(node.input[:])


def _outputs_of(node: onnx.NodeProto) -> tuple[str, ...]:
    return tuple(node.output[:])


@dataclass
class Scope:
    """One list of nodes: the main graph, the body of an If, Loop or Scan, or a function.

    The cached properties are read once, because Python takes longer to read a node than
    onnxruntime takes to load it. :meth:`replace_nodes` updates them, and the readers in the scopes
    around this one. They do not follow other changes.

    Attributes:
        path: where the scope is in the model, as errors write it; empty for the main graph.
        container: the graph or function that has the nodes.
        opsets: domain -> the version that the nodes are written in.
        ir_version: the IR version of the model.
        parent: the scope around this one, whose names are visible in it.
        function: the model-local function that the scope is in.
        bodies: the index of a node -> the scopes of its graphs, in the order of its attributes.
        source: the owner of values that the initializers of the graph lack, if there are any.
    """

    path: str
    container: onnx.GraphProto | onnx.FunctionProto
    opsets: dict[str, int]
    ir_version: int
    parent: Scope | None = None
    function: onnx.FunctionProto | None = None
    bodies: dict[int, list[Scope]] = field(default_factory=dict)
    source: ModelSource | None = None

    def __iter__(self) -> Iterator[onnx.NodeProto]:
        return iter(self.container.node)

    @cached_property
    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes."""
        return list(self.container.node)

    @cached_property
    def op_types(self) -> list[str]:
        """The operator of each node."""
        return [node.op_type for node in self.nodes]

    @cached_property
    def indices_by_type(self) -> Mapping[str, list[int]]:
        """Operator, in any domain -> the indices of its nodes, in order."""
        indices: dict[str, list[int]] = {}
        for index, op_type in enumerate(self.op_types):
            if op_type in indices:
                indices[op_type].append(index)
            else:
                indices[op_type] = [index]
        return indices

    def indices_of(self, op_types: Collection[str]) -> Sequence[int]:
        """Return the indices of the nodes of some operators, in any domain, in order."""
        indices_by_type = self.indices_by_type
        lists = [indices_by_type[op_type] for op_type in op_types if op_type in indices_by_type]
        return lists[0] if len(lists) == 1 else sorted(chain.from_iterable(lists))

    @cached_property
    def domains(self) -> set[str]:
        """The domains of all nodes."""
        return {domain_of(name) for name in {node.domain for node in self.nodes}}

    @cached_property
    def inputs(self) -> list[tuple[str, ...]]:
        """The names of the inputs of each node."""
        return [*map(_inputs_of, self.nodes)]

    @cached_property
    def outputs(self) -> list[tuple[str, ...]]:
        """The names of the outputs of each node."""
        return [*map(_outputs_of, self.nodes)]

    @cached_property
    def makers(self) -> Mapping[str, int]:
        """Value -> the index of the node that makes it."""
        return {name: index for index, names in enumerate(self.outputs) for name in names if name}

    @cached_property
    def readers(self) -> Mapping[str, set[int]]:
        """Value -> the indices of the nodes that read it.

        A node also reads what its graphs read. The reader of the scope's outputs is
        :data:`OUTSIDE`.
        """
        readers: dict[str, set[int]] = {}
        for index, names in self._reads():
            for name in names:
                if name in readers:
                    readers[name].add(index)
                else:
                    readers[name] = {index}
        readers.pop("", None)  # the name of an input that a node leaves out
        return readers

    def unread(self, names: Iterable[str]) -> set[str]:
        """Return those of ``names`` that have no readers. It takes less time than all readers."""
        unread = set(names)
        for _, read in self._reads():
            unread.difference_update(read)
        return unread

    def _reads(self) -> list[tuple[int, Sequence[str]]]:
        """Return the index of each reader with names that it reads."""
        reads: list[tuple[int, Sequence[str]]] = [*enumerate(self.inputs)]
        reads.append((OUTSIDE, self.output_names))
        for index, bodies in self.bodies.items():
            pending = [*bodies]
            for body in pending:  # grows while it is iterated
                reads += ((index, names) for names in (*body.inputs, body.output_names))
                pending += chain.from_iterable(body.bodies.values())
        return reads

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs of the graph or function."""
        return [value if isinstance(value, str) else value.name for value in self.container.output]

    @cached_property
    def definitions(self) -> Mapping[str, Definition]:
        """Name -> its definition in this scope."""
        definitions: dict[str, Definition] = {}
        if isinstance(self.container, onnx.FunctionProto):
            definitions.update(dict.fromkeys(self.container.input))
        else:
            sparse_tensors = self.container.sparse_initializer
            definitions.update(dict.fromkeys(sparse.values.name for sparse in sparse_tensors))
            inputs = dict.fromkeys(value.name for value in self.container.input)
            initializers = {tensor.name: tensor for tensor in self.container.initializer}
            if self.ir_version >= _FIRST_IR_VERSION_WITH_DEFAULTS:
                definitions |= initializers | inputs
            else:
                definitions |= inputs | initializers
        nodes = self.nodes
        definitions |= {name: nodes[index] for name, index in self.makers.items()}
        return definitions

    def attribute_holders(self, attribute_types: tuple[AttributeType, ...]) -> Sequence[int]:
        """Return the indices of the nodes that may have attributes of these types."""
        holding_types = [
            op_type
            for op_type in self.indices_by_type
            if may_have_attributes(op_type, "", attribute_types)
        ]
        holders = self.indices_of(holding_types)
        if self.domains <= {""}:
            return holders
        others = [index for index, node in enumerate(self.nodes) if domain_of(node.domain)]
        return sorted({*holders, *others})

    def declared_shape(self, name: str) -> Shape | None:
        """Return the shape that the graph declares for the value ``name``, if any.

        A function declares none, because its calls may differ.
        """
        if isinstance(self.container, onnx.FunctionProto):
            return None
        for value in chain(self.container.output, self.container.value_info):
            if value.name == name and value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
        return None

    def replace_nodes(self, replacements: Mapping[int, Sequence[onnx.NodeProto]]) -> None:
        """Replace nodes in place.

        The model gets copies of new nodes. The graphs of a new node have new scopes, also if the
        node was among the replaced nodes.

        Args:
            replacements: the index of a node -> the nodes that replace it, which may be none.
        """
        cached = self.__dict__
        per_node = [(cached[name], read) for name, read in _PER_NODE if name in cached]
        nodes = self.nodes
        proto_nodes = self.container.node
        for index in sorted(replacements, reverse=True):
            new_nodes = replacements[index]
            del proto_nodes[index]
            if not new_nodes:
                del nodes[index]
                for values, _ in per_node:
                    del values[index]
                continue
            for node in reversed(new_nodes):
                proto_nodes.insert(index, node)
            inserted = proto_nodes[index : index + len(new_nodes)]
            nodes[index : index + 1] = inserted
            for values, read in per_node:
                values[index : index + 1] = map(read, inserted)
        for name in _DERIVED:
            cached.pop(name, None)
        self._replace_bodies(replacements)
        # Nodes around this scope read what its nodes read.
        parent = self.parent
        while parent is not None:
            parent.__dict__.pop("readers", None)
            parent = parent.parent

    def _replace_bodies(self, replacements: Mapping[int, Sequence[onnx.NodeProto]]) -> None:
        """Move the bodies of nodes that stay, and read those of new nodes."""
        replaced = sorted(replacements)
        growth = [len(replacements[index]) - 1 for index in replaced]
        # The numbers of nodes that are added before each replaced node, and in all.
        n_nodes_added = [*accumulate(growth, initial=0)]

        def index_after(index: int) -> int:
            return index + n_nodes_added[bisect_left(replaced, index)]

        old_bodies = self.bodies
        self.bodies = {}
        for index, bodies in old_bodies.items():
            if index not in replacements:
                self.bodies[index_after(index)] = bodies
        for index, new_nodes in replacements.items():
            if not any(may_have_graphs(node) for node in new_nodes):
                continue
            start = index_after(index)
            for new_index in range(start, start + len(new_nodes)):
                bodies = _bodies_of(self, new_index)
                if bodies:
                    self.bodies[new_index] = bodies
                for body in bodies:
                    _attach_bodies(body)

    def defining_scope(self, name: str) -> Scope | None:
        """Return the scope that defines ``name`` as this scope sees it.

        It is this scope or the nearest one around it; None if no scope defines the name.
        """
        scope: Scope | None = self
        while scope is not None and name not in scope.definitions:
            scope = scope.parent
        return scope

    def find_constant(self, name: str) -> TensorProto | None:
        """Return the tensor of the constant ``name``, as this scope sees it.

        The tensor may be a placeholder, whose values the source has.

        Returns:
            The initializer or the value of the Constant node. None if ``name`` is not a constant,
            or if its values are external data.
        """
        scope = self.defining_scope(name)
        if scope is None:
            return None
        definition = scope.definitions[name]
        if isinstance(definition, onnx.NodeProto):
            tensor = constant_tensor(definition)
            source = None  # even if the tensor has the name of a weight
        else:
            tensor = definition
            source = scope.source
        is_known = tensor is None or not is_placeholder(tensor)
        return tensor if is_known or (source is not None and name in source) else None

    def load_constant(self, name: str) -> TensorProto | None:
        """Return the tensor of the constant ``name`` with its values.

        Return None where :meth:`find_constant` does.
        """
        tensor = self.find_constant(name)
        if tensor is None or not is_placeholder(tensor):
            return tensor
        scope = self.defining_scope(name)
        assert scope is not None  # it defines the constant
        assert scope.source is not None  # it has the values
        return scope.source.with_values(tensor)

    def constant_value(self, name: str) -> npt.NDArray[Any] | None:
        """Return the values of the constant ``name``.

        Return None where :meth:`find_constant` does.
        """
        tensor = self.load_constant(name)
        return None if tensor is None else numpy_helper.to_array(tensor)


#: The cached properties with a value for each node, and the functions that read the value.
#: :meth:`Scope.replace_nodes` updates these lists, and ``nodes``.
_PER_NODE: tuple[tuple[str, Callable[[onnx.NodeProto], Any]], ...] = (
    ("op_types", attrgetter("op_type")),
    ("inputs", _inputs_of),
    ("outputs", _outputs_of),
)
#: The other cached properties, which :meth:`Scope.replace_nodes` deletes.
_DERIVED = tuple(
    name
    for name, member in vars(Scope).items()
    if isinstance(member, cached_property) and name not in ("nodes", *dict(_PER_NODE))
)


def scopes_of(model: onnx.ModelProto, source: ModelSource | None = None) -> list[Scope]:
    """Return every scope of ``model``: the main graph first, and parents before their children.

    Args:
        source: the source of the model if it owns values that the model lacks.
    """
    return [*chain.from_iterable(map(_attach_bodies, _root_scopes(model, source)))]


def _attach_bodies(root: Scope) -> list[Scope]:
    """Read the scopes of all graphs in ``root``.

    Add them to the ``bodies`` of their parents, and return them all, ``root`` first.
    """
    nested = [root]
    for scope in nested:  # grows while it is iterated, because recursion has a limited depth
        for index in scope.attribute_holders(_GRAPH_ATTRIBUTES):
            bodies = _bodies_of(scope, index)
            if bodies:
                scope.bodies[index] = bodies
                nested += bodies
    return nested


def _root_scopes(model: onnx.ModelProto, source: ModelSource | None) -> list[Scope]:
    """Return the scopes of the main graph and of the functions."""
    opsets = _opsets(model.opset_import, UNSTATED_OPSET)
    main = Scope("", model.graph, opsets, model.ir_version, source=source)
    main_opset = opsets.get("", UNSTATED_OPSET)
    roots = [main]
    for function in model.functions:
        path = f"function {function.domain}::{function.name}"
        if function.overload:
            path += f":{function.overload}"
        opsets = _opsets(function.opset_import, main_opset)
        roots.append(Scope(path, function, opsets, model.ir_version, function=function))
    return roots


def _opsets(imports: Collection[onnx.OperatorSetIdProto], unstated: int) -> dict[str, int]:
    """Return domain -> version.

    The ONNX domain has the version ``unstated`` if there are imports of other domains only.
    """
    opsets = {"": unstated} if imports else {}
    return opsets | {domain_of(entry.domain): entry.version for entry in imports}


def _bodies_of(scope: Scope, index: int) -> list[Scope]:
    """Return new scopes of the graphs that a node of ``scope`` holds."""
    node = scope.nodes[index]
    bodies = []
    for attribute, graph in graphs_of(node):
        path = f"{node.op_type} {node.name or f'#{index}'} {attribute.name}"
        if scope.path:
            path = f"{scope.path}/{path}"
        body = Scope(path, graph, scope.opsets, scope.ir_version, scope, scope.function)
        bodies.append(body)
    return bodies


def graphs_of(node: onnx.NodeProto) -> Iterator[tuple[onnx.AttributeProto, onnx.GraphProto]]:
    """Yield the graphs of ``node`` (the bodies of an If, Loop or Scan) and their attributes."""
    if not may_have_graphs(node):
        return
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute, attribute.g
        for graph in attribute.graphs:
            yield attribute, graph


def with_bodies(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """Return ``graph`` and the graphs in it, at any depth, parents before their children.

    Use it where no :class:`Scope` is needed, because reading one takes longer.
    """
    graphs = [graph]
    for parent in graphs:  # grows while it is iterated
        graphs += (body for node in parent.node for _, body in graphs_of(node))
    return graphs


def may_have_graphs(node: onnx.NodeProto) -> bool:
    """Whether ``node`` may hold graphs, by the schema of its operator."""
    return may_have_attributes(node.op_type, node.domain, _GRAPH_ATTRIBUTES)


@cache
def may_have_attributes(
    op_type: str,
    domain: str,
    attribute_types: tuple[AttributeType, ...],
) -> bool:
    """Whether nodes of an operator may have attributes of these types, by its schema.

    Operators without a schema may have any attributes.
    """
    is_text = isinstance(op_type, str)  # protobuf returns bytes if it is not UTF-8
    if domain_of(domain) or not is_text or not onnx.defs.has(op_type):
        return True
    attributes = onnx.defs.get_schema(op_type).attributes.values()
    return any(attribute.type in attribute_types for attribute in attributes)


def constant_tensor(node: onnx.NodeProto) -> TensorProto | None:
    """Return the value of a Constant node.

    Returns:
        The tensor. None if ``node`` is not a Constant, or if its value is sparse or comes from the
        call of its function.
    """
    if node.op_type != "Constant" or domain_of(node.domain) or len(node.attribute) != 1:
        return None
    (attribute,) = node.attribute
    if attribute.ref_attr_name:
        return None
    if attribute.name == "value":
        return attribute.t
    value = helper.get_attribute_value(attribute)
    if attribute.name in _CONSTANT_DTYPES:
        return numpy_helper.from_array(np.array(value, _CONSTANT_DTYPES[attribute.name]))
    if attribute.name == "value_string":
        return TensorProto(data_type=TensorProto.STRING, dims=[], string_data=[value])
    if attribute.name == "value_strings":
        return TensorProto(data_type=TensorProto.STRING, dims=[len(value)], string_data=value)
    return None


def attribute_named(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    """Return an attribute of ``node``, or None if it is missing."""
    for attribute in node.attribute:
        if attribute.name == name:
            return attribute
    return None


def has_attribute_references(node: onnx.NodeProto) -> bool:
    """Whether the caller of the node's function sets an attribute of the node."""
    for attribute in node.attribute:  # noqa: SIM110 - in half the time of any()
        if attribute.ref_attr_name:
            return True
    return False
