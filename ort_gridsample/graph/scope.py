"""Walking a model: every graph in it, however deep, and every model-local function, once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain, count
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from .weights import NO_WEIGHTS, Weights

#: The empty name and this one are the same domain.
_ONNX_DOMAIN = "ai.onnx"
#: The opset of the ONNX domain for models that import other domains only, where onnxruntime takes its newest.
UNSTATED_OPSET = 20
#: From this IR version on, an initializer that is also an input is a default that may be overridden.
_OVERRIDABLE = 4
#: The reader of a graph's output.
OUTSIDE = -1
#: Types of attributes that hold graphs, and tensors.
_GRAPHS = (onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS)
TENSORS = (onnx.defs.OpSchema.AttrType.TENSOR, onnx.defs.OpSchema.AttrType.TENSORS)
#: What gives a name its value: a node, an initializer, or (None) what calls or feeds the graph.
Definition = onnx.NodeProto | onnx.TensorProto | None
#: What a function is called by: domain, name and overload.
Key = tuple[str, str, str]


def domain_of(name: str) -> str:
    """The domain ``name``, the ONNX domain always as the empty string."""
    return "" if name == _ONNX_DOMAIN else name


def function_key(node: onnx.NodeProto | onnx.FunctionProto) -> Key:
    """The key of a function, or of the one that a node calls."""
    name = node.name if isinstance(node, onnx.FunctionProto) else node.op_type
    return domain_of(node.domain), name, node.overload


def called(node: onnx.NodeProto) -> str:
    """The name of ``node``, or in brackets those of its outputs."""
    return node.name or f"({', '.join(node.output)})"


def opset_of(model: onnx.ModelProto) -> int:
    """The version of the ONNX domain that ``model`` imports; 0 where it imports other domains only."""
    return next((entry.version for entry in model.opset_import if domain_of(entry.domain) == ""), 0)


@dataclass
class Scope:
    """One list of nodes: the main graph, the body of an If, Loop or Scan, or a function."""

    path: str  #: where it is, in words ("" for the main graph)
    container: onnx.GraphProto | onnx.FunctionProto  #: the proto that holds the nodes
    opsets: dict[str, int]  #: domain -> version that its nodes are written in
    ir_version: int  #: the model's
    parent: Scope | None = None  #: the scope around it, whose names are visible here
    function: onnx.FunctionProto | None = None  #: the model-local function that it is in
    #: The position of a node -> the scopes of the graphs that it holds, in the order of its attributes.
    bodies: dict[int, list[Scope]] = field(default_factory=dict)
    weights: Weights = NO_WEIGHTS  #: those of its initializers that lie elsewhere

    def __iter__(self) -> Iterator[onnx.NodeProto]:
        return iter(self.container.node)

    @cached_property
    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes as they were when they were first asked for, as :attr:`inputs`, :attr:`outputs` and the like are.

        Read once: Python takes longer to read a node than onnxruntime to load it.
        """
        return list(self.container.node)

    @cached_property
    def op_types(self) -> list[str]:
        """The operator of each node."""
        return [node.op_type for node in self.nodes]

    @cached_property
    def domains(self) -> set[str]:
        """The domains that the nodes are in."""
        return {domain_of(name) for name in {node.domain for node in self.nodes}}

    @cached_property
    def inputs(self) -> list[tuple[str, ...]]:
        """The names that each node reads."""
        # A slice is many times as fast as to iterate, and Python's collector of garbage soon leaves tuples alone.
        return [tuple(node.input[:]) for node in self.nodes]

    @cached_property
    def outputs(self) -> list[tuple[str, ...]]:
        """The names that each node makes."""
        return [tuple(node.output[:]) for node in self.nodes]

    @cached_property
    def makers(self) -> Mapping[str, int]:
        """Value -> the position of the node that makes it."""
        return {name: index for index, names in enumerate(self.outputs) for name in names if name}

    @cached_property
    def readers(self) -> Mapping[str, set[int]]:
        """Value -> the positions of the nodes that read it, also in graphs that they hold, and :data:`OUTSIDE`."""
        found: dict[str, set[int]] = {}
        read = [*enumerate(self.inputs), (OUTSIDE, self.outcome)]
        for at, bodies in self.bodies.items():
            todo = [*bodies]
            for body in todo:  # grows while it is walked
                read += ((at, names) for names in (*body.inputs, body.outcome))
                todo += chain.from_iterable(body.bodies.values())
        for at, names in read:
            for name in names:
                found.setdefault(name, set()).add(at)
        return found

    @property
    def outcome(self) -> list[str]:
        """The names of the values that it hands out."""
        return [value if isinstance(value, str) else value.name for value in self.container.output]

    @cached_property
    def definitions(self) -> Mapping[str, Definition]:
        """The names that are given a value here, and what gives it to them."""
        found: dict[str, Definition] = {}
        if isinstance(self.container, onnx.FunctionProto):
            found.update(dict.fromkeys(self.container.input))
        else:
            inputs: dict[str, Definition] = dict.fromkeys(
                value.name for value in self.container.input
            )
            initializers = {tensor.name: tensor for tensor in self.container.initializer}
            found.update(
                dict.fromkeys(sparse.values.name for sparse in self.container.sparse_initializer)
            )
            found |= (
                initializers | inputs if self.ir_version >= _OVERRIDABLE else inputs | initializers
            )
        nodes = self.nodes
        found.update((name, nodes[index]) for name, index in self.makers.items())
        return found

    def holders(self, kinds: tuple[onnx.defs.OpSchema.AttrType, ...]) -> list[int]:
        """The positions of the nodes that may have attributes of these types."""
        op_types = {each for each in set(self.op_types) if may_hold(each, "", kinds)}
        if self.domains <= {""}:
            return [at for at, each in enumerate(self.op_types) if each in op_types]
        return [
            at
            for at, node in enumerate(self.nodes)
            if node.op_type in op_types or domain_of(node.domain)
        ]

    def declared_shape(self, name: str) -> tuple[int | str | None, ...] | None:
        """The shape that the graph itself states for the value ``name``; None where it states none."""
        if isinstance(self.container, onnx.FunctionProto):
            return None  # calls may differ in it
        for value in chain(self.container.output, self.container.value_info):
            if value.name == name and value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
        return None

    def replace(self, replaced: Mapping[int, Sequence[onnx.NodeProto]]) -> None:
        """Put other nodes, or none, in the places of those at these positions, and forget what was read of them all."""
        nodes, there = self.nodes, self.container.node
        for index in sorted(replaced, reverse=True):
            del there[index]
            for node in reversed(replaced[index]):
                there.insert(index, node)
            nodes[index : index + 1] = there[index : index + len(replaced[index])]
        grown = [(index, len(new) - 1) for index, new in replaced.items()]
        self.bodies = {
            at + sum(by for index, by in grown if index < at): held
            for at, held in self.bodies.items()
        }
        for read in (
            "op_types",
            "domains",
            "inputs",
            "outputs",
            "makers",
            "readers",
            "definitions",
        ):
            self.__dict__.pop(read, None)

    def home(self, name: str) -> Scope | None:
        """The scope that gives ``name``, as it is seen here, its value: this one or the nearest around it."""
        at: Scope | None = self
        while at is not None and name not in at.definitions:
            at = at.parent
        return at

    def held(self, name: str) -> onnx.TensorProto | None:
        """As :meth:`tensor`, maybe without values, which then are among the weights."""
        home = self.home(name)
        definition = home.definitions[name] if home is not None else None
        tensor = (
            _constant_tensor(definition) if isinstance(definition, onnx.NodeProto) else definition
        )
        if tensor is None or home is None or tensor.data_location != onnx.TensorProto.EXTERNAL:
            return tensor
        return tensor if tensor.name in home.weights else None

    def tensor(self, name: str) -> onnx.TensorProto | None:
        """The value of ``name``, as it is seen here, where the model itself holds it."""
        tensor, home = self.held(name), self.home(name)
        if tensor is None or home is None or tensor.data_location != onnx.TensorProto.EXTERNAL:
            return tensor
        return home.weights.whole(tensor)

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        """As :meth:`tensor`, as an array."""
        tensor = self.tensor(name)
        return None if tensor is None else numpy_helper.to_array(tensor)


def scopes(model: onnx.ModelProto, weights: Weights = NO_WEIGHTS) -> list[Scope]:
    """Every scope of ``model``, parents before their children; the main graph, whose ``weights`` these are, first."""
    main = Scope(
        "",
        model.graph,
        _opsets(model.opset_import, UNSTATED_OPSET),
        model.ir_version,
        weights=weights,
    )
    roots = [main]
    for f in model.functions:
        opsets = _opsets(f.opset_import, main.opsets.get("", UNSTATED_OPSET))
        roots.append(
            Scope(f"function {f.domain}::{f.name}", f, opsets, model.ir_version, function=f)
        )
    found = list[Scope]()
    for inside in ([root] for root in roots):
        for scope in inside:  # grows while it is walked: no recursion, whatever the depth
            for index in scope.holders(_GRAPHS):
                node = scope.nodes[index]
                for attribute, graph in subgraphs(node):
                    here = f"{node.op_type} {node.name or f'#{index}'} {attribute.name}"
                    path = f"{scope.path}/{here}" if scope.path else here
                    body = Scope(path, graph, scope.opsets, scope.ir_version, scope, scope.function)
                    scope.bodies.setdefault(index, []).append(body)
            inside += chain.from_iterable(scope.bodies.values())
        found += inside
    return found


def subgraphs(node: onnx.NodeProto) -> Iterator[tuple[onnx.AttributeProto, onnx.GraphProto]]:
    """The graphs that ``node`` holds as attributes (bodies of If, Loop and Scan)."""
    for attribute in node.attribute if may_hold(node.op_type, node.domain, _GRAPHS) else ():
        if attribute.HasField("g"):
            yield attribute, attribute.g
        for graph in attribute.graphs:
            yield attribute, graph


@cache
def may_hold(op_type: str, domain: str, kinds: tuple[onnx.defs.OpSchema.AttrType, ...]) -> bool:
    """Whether nodes of an operator may have attributes of these types: ONNX's own have what their schema says."""
    if domain_of(domain) or not isinstance(op_type, str) or not onnx.defs.has(op_type):
        return True  # what is not UTF-8 comes as bytes
    return any(each.type in kinds for each in onnx.defs.get_schema(op_type).attributes.values())


def constants(found: Sequence[Scope]) -> set[str]:
    """The names of the initializers that the graphs ``found`` hold themselves, and of what Constants make there."""
    graphs = (scope for scope in found if isinstance(scope.container, onnx.GraphProto))
    return {name for scope in graphs for name in scope.definitions if scope.held(name) is not None}


@contextmanager
def unread(found: Sequence[Scope], names: Collection[str]) -> Iterator[None]:
    """Let the ``names`` among :func:`constants` be unknown meanwhile, as external data is: a session has others.

    Constants become initializers, as in onnxruntime.
    """

    def locate(location: onnx.TensorProto.DataLocation) -> None:
        for scope in reversed(found) if names else ():  # inner graphs first, as nodes are dropped
            graph = scope.container
            if isinstance(graph, onnx.GraphProto):
                dropped: dict[int, tuple[()]] = {}
                for index, node in enumerate(scope.nodes):
                    if (tensor := _constant_tensor(node)) is not None and node.output[0] in names:
                        graph.initializer.add().CopyFrom(tensor)
                        graph.initializer[-1].name = node.output[0]
                        dropped[index] = ()
                scope.replace(dropped)
                for tensor in graph.initializer:
                    if tensor.name in names and not tensor.external_data:
                        tensor.data_location = location

    locate(onnx.TensorProto.EXTERNAL)
    try:
        yield
    finally:
        locate(onnx.TensorProto.DEFAULT)


class Names:
    """The names of the values and nodes of ``model``, whose scopes are ``found``, and new ones, none of them."""

    def __init__(self, model: onnx.ModelProto, found: Sequence[Scope] = ()) -> None:
        self._model, self._found = model, found

    @cached_property
    def _taken(self) -> set[str]:
        taken = set[str]()
        for scope in self._found or scopes(self._model):
            taken.update(
                [node.name for node in scope.nodes], *scope.inputs, scope.definitions, scope.outcome
            )
            taken.update(value.name for value in scope.container.value_info)
        return taken

    def new(self, name: str) -> str:
        """``name``, or ``name`` and a number where it is taken; taken from now on."""
        numbered = (f"{name}_{number}" for number in count(2))
        candidate = next(each for each in chain([name], numbered) if each not in self._taken)
        self._taken.add(candidate)
        return candidate

    def take_all(self, wanted: Collection[str]) -> bool:
        """Take all of the names ``wanted``, unless one of them is taken; whether that was done."""
        if not self._taken.isdisjoint(wanted):
            return False
        self._taken.update(wanted)
        return True


class Nodes(list[onnx.NodeProto]):
    """Nodes that are written one by one; the ``names`` of the values that they make begin with ``prefix``."""

    def __init__(self, names: Names, prefix: str) -> None:
        self._names, self._prefix = names, prefix

    def add(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Write a node; the name of its output."""
        name = self._names.new(f"{self._prefix}_{op_type.lower()}")  # nodes of one name are refused
        self.append(helper.make_node(op_type, inputs, [output or name], name, **attributes))
        return output or name

    def rename_last(self, name: str) -> None:
        """Give the node that was written last this ``name``, or ``name`` and a number where it is taken."""
        self[-1].name = self._names.new(name)

    def constant(self, value: npt.ArrayLike) -> str:
        """Write a Constant; the name of its value."""
        return self.add("Constant", value=numpy_helper.from_array(np.asarray(value)))

    def row(self, *numbers: int) -> str:
        """Write a Constant that is a row of integers; the name of its value."""
        return self.constant(np.array(numbers, np.int64))


def _opsets(imports: Collection[onnx.OperatorSetIdProto], unstated: int) -> dict[str, int]:
    """Domain -> version, with the version ``unstated`` of the ONNX domain where only others are imported."""
    opsets = {"": unstated} if imports else {}
    return opsets | {domain_of(entry.domain): entry.version for entry in imports}


def _constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """What a Constant node says; None where it is another node, or what its function's caller says."""
    if node.op_type != "Constant" or domain_of(node.domain) or len(node.attribute) != 1:
        return None
    (attribute,) = node.attribute
    if attribute.name == "value" and not attribute.ref_attr_name:
        return attribute.t
    dtypes = {
        "value_int": np.int64,
        "value_ints": np.int64,
        "value_float": np.float32,
        "value_floats": np.float32,
    }
    if attribute.ref_attr_name or attribute.name not in dtypes:
        return None
    return numpy_helper.from_array(
        np.array(helper.get_attribute_value(attribute), dtypes[attribute.name])
    )
