"""The part of a model that leads to the nodes concerned, as one small graph that types can be inferred in.

In it, calls of model-local functions are replaced by what they call, weights by inputs of their types, and the nodes
concerned, however they are spelled, by calls of functions that stand for their operators. Every value has a name of its
own, whichever names hide one another in the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import onnx
from onnx import defs, helper, parser

from .. import spec
from ..dialects.registry import dialect_of, operator_types
from ..dialects.spelling import Dialect
from ..dialects.table import ATTENTION
from ..graph.element_types import elem_type
from ..graph.scope import TENSORS, Key, Scope, domain_of, function_key, scopes, subgraphs

#: Tensors up to this size may be shapes, which the inference needs the values of; weights are larger.
SMALL_BYTES = 1 << 12

_FLOATS, _EXTERNAL = tuple(map(elem_type, spec.FLOATS)), onnx.TensorProto.EXTERNAL
#: So many nodes of functions are followed, and graphs in graphs to this depth: protobuf reads none that is much deeper.
MOST_NODES, DEEPEST = 1 << 16, 30
#: The domain of the functions that stand for nodes which inference does not know, or not in the main graph's opset.
STAND_IN = "ort_gridsample.inference.backward_slice"
#: The oldest opset of a slice: before it, onnx infers no rank behind a Reshape to a computed shape.
RANKS_OF_RESHAPES = 14
#: Operators that have had an input since opset 13 for what was an attribute before: the attribute's name.
_ATTRIBUTE_OF_13 = {"ReduceSum": "axes", "Split": "split", "Squeeze": "axes", "Unsqueeze": "axes"}

_STAND_INS = [
    parser.parse_function(
        f'<domain: "{STAND_IN}", opset_import: ["": {max(versions)}]> {op} ({names}) => (Y) {{ Y = {op} ({names}) }}'
    )
    for op, versions in spec.OPERATORS.items()
    for names in [", ".join(versions[max(versions)].types)]
]
#: The stand-ins for samplers whose grids are planes: the number of spatial axes -> the name of the function.
_PLANAR = {axes: f"GridSample of {axes} planes" for axes in (2, 3)}
for _axes, _name in _PLANAR.items():
    _perm = [0, *range(2, _axes + 2), 1]
    _STAND_INS.append(
        parser.parse_function(
            f'<domain: "{STAND_IN}", opset_import: ["": {max(spec.OPERATORS["GridSample"])}]> planar (X, grid) => (Y)'
            f" {{ G = Transpose <perm = {_perm}> (grid) Y = GridSample (X, G) }}"
        )
    )
    _STAND_INS[-1].name = _name


#: Names of values, by the id of their scope.
Values = Mapping[int, Collection[str]]


@dataclass(frozen=True, eq=False)
class Instance:
    """A scope as one chain of calls comes to it."""

    scope: Scope
    #: What the names of its values begin with in the slice, as no others do; empty for the main graph.
    prefix: str = ""
    around: Instance | None = None  #: the instance of the scope around it
    given: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)  #: the function's attributes in this call
    #: The function's inputs and outputs -> what its caller's values are called in the slice.
    aliases: Mapping[str, str] = field(default_factory=dict)
    calls: int = 0  #: how many calls led to it
    depth: int = 0  #: how many graphs it is in

    def name(self, name: str) -> str:
        """What the value that is called ``name`` here is called in the slice; empty where there is none."""
        if not self.prefix:
            return name
        home = self.scope.home(name)
        if home is None:
            return name and f"undefined {name}"
        at = self
        while at.scope is not home:
            assert at.around is not None  # as ``home`` is around
            at = at.around
        return at.aliases.get(name, at.prefix + name)


class BackwardSlice:
    """The backward slice of ``model``, whose scopes are ``found``; it leads to ``values`` as well.

    Attributes:
        model: the slice itself.
        instances: the id of a scope -> its instances.
        sampled: the values that the nodes concerned read.
        ranks: the ranks that the model declares for its values, which no run is held to, by their names in the slice.
    """

    def __init__(self, model: onnx.ModelProto, found: Sequence[Scope], values: Values | None = None) -> None:
        self.instances: dict[int, list[Instance]] = {}
        self.sampled: dict[str, None] = {}
        self.ranks: dict[str, int] = {}
        self._functions = {function_key(s.container): s for s in found if s.container is s.function}
        self._values = values or {}
        self._leading = _leading(found, self._functions, self._values)
        self._opsets = found[0].opsets
        self._wanted: set[str] = set()
        self._left, self._count, self._apart = MOST_NODES, 0, " "
        while len(found) > 1 and any(self._apart in name for name in found[0].definitions):
            self._apart += " "

        imports = {domain: version for scope in reversed(found) for domain, version in scope.opsets.items()}
        if 0 < self._opsets.get("", 0) < RANKS_OF_RESHAPES:
            self._opsets = {**self._opsets, "": RANKS_OF_RESHAPES}
        imports |= {STAND_IN: 1, **self._opsets}
        entries = [helper.make_opsetid(*entry) for entry in imports.items()]
        version = max(8, model.ir_version)
        self.model = onnx.ModelProto(ir_version=version, opset_import=entries, functions=_STAND_INS)
        graph = self.model.graph
        graph.name = "slice"
        graph.node.extend(self._nodes(self._instance(found[0])))
        for instance in (i for instances in self.instances.values() for i in instances):
            self._declare(instance, graph)

    @property
    def is_nested(self) -> bool:
        """Whether nodes of it hold graphs."""
        return any(instance.depth for instances in self.instances.values() for instance in instances)

    def state(self, types: Mapping[str, onnx.TypeProto]) -> None:
        """Let the slice say what the types of these of its values are."""
        for scope in scopes(self.model):
            for value in scope.container.output if isinstance(scope.container, onnx.GraphProto) else ():
                if value.name in types:
                    value.type.CopyFrom(types[value.name])
        self.model.graph.value_info.extend(onnx.ValueInfoProto(name=name, type=types[name]) for name in types)

    def _instance(self, scope: Scope, **what: object) -> Instance:
        prefix = f"{self._count}{self._apart}" if self._count else ""
        instance = Instance(scope, prefix, **what)  # type: ignore[arg-type]
        self._count += 1
        self.instances.setdefault(id(scope), []).append(instance)
        return instance

    def _nodes(self, instance: Instance) -> list[onnx.NodeProto]:
        """The nodes of ``instance``, and of what it calls, that lead to a node concerned."""
        last_first, op_types = [], operator_types()
        running = [self._enter(instance)]
        while running:  # no recursion, however long the chain of calls
            here, positions, with_tensors = running[-1]
            scope = here.scope
            for index in positions:
                node, inputs, outputs = scope.nodes[index], scope.inputs[index], scope.outputs[index]
                if here.prefix:
                    inputs, outputs = tuple(map(here.name, inputs)), tuple(map(here.name, outputs))
                callee = self._functions.get(function_key(node)) if self._functions else None
                bodies = scope.bodies.get(index, ())
                is_spelled = callee is None and scope.op_types[index] in op_types
                dialect = dialect_of(node, {}) if is_spelled else None
                if dialect is not None:
                    last_first.append(helper.make_node(_stand_in(dialect), inputs[:2], outputs[:1], domain=STAND_IN))
                    read = inputs if dialect.operator == ATTENTION else inputs[:2]
                    self._want([name for name in read if name])
                    continue
                inner = bodies if callee is None else [callee]
                if self._wanted.isdisjoint(outputs) and not any(id(each) in self._leading for each in inner):
                    continue
                self._left -= 0 if callee is None else len(callee.container.node)
                # No call is followed where functions call one another in a circle, nor without end.
                if callee is not None and self._left >= 0 and here.calls < len(self._functions):
                    called, passed = self._call(here, node, callee, outputs)
                    last_first += passed
                    running.append(self._enter(called))
                    break
                tensors = (each.t for each in node.attribute) if index in with_tensors else ()
                is_large = node.ByteSize() > SMALL_BYTES or any(t.data_location == _EXTERNAL for t in tensors)
                if bodies or here.prefix or is_large or domain_of(node.domain) != node.domain:
                    last_first += self._bare(here, index, inputs, outputs)
                else:
                    self._wanted.update(inputs)
                    last_first += self._in_opset(scope.opsets.get("", 0), node)
            else:
                running.pop()
        return last_first[::-1]

    def _enter(self, instance: Instance) -> tuple[Instance, Iterator[int], set[int]]:
        """``instance``, the positions of its nodes, the last first, and of those that may hold tensors."""
        self._want([instance.name(name) for name in self._values.get(id(instance.scope), ())])
        return instance, iter(range(len(instance.scope.nodes) - 1, -1, -1)), set(instance.scope.holders(TENSORS))

    def _want(self, names: Sequence[str]) -> None:
        """Let the slice lead to these values, which are asked for."""
        self._wanted.update(names)
        self.sampled.update(dict.fromkeys(names))

    def _call(
        self, here: Instance, node: onnx.NodeProto, callee: Scope, outputs: Sequence[str]
    ) -> tuple[Instance, list[onnx.NodeProto]]:
        """What ``node`` calls, and nodes for the outputs of the function that have another name in it already."""
        function = callee.container
        assert isinstance(function, onnx.FunctionProto)
        aliases = dict.fromkeys(function.input, "")
        aliases |= {name: here.name(given) for name, given in zip(function.input, node.input, strict=False)}
        passed = []
        for name, output in zip(function.output, outputs, strict=False):
            if name in aliases and output:
                passed.append(helper.make_node("Identity", [aliases[name]], [output]))
                self._wanted.add(aliases[name])
            elif output:
                aliases[name] = output
        given = {a.name: a for a in (*function.attribute_proto, *_bound(node, here.given))}
        return self._instance(callee, given=given, aliases=aliases, calls=here.calls + 1, depth=here.depth), passed

    def _bare(self, here: Instance, at: int, inputs: Sequence[str], outputs: Sequence[str]) -> Iterator[onnx.NodeProto]:
        """The node at this position without weights, or what stands in its place."""
        node, bodies = here.scope.nodes[at], here.scope.bodies.get(at, ())
        if bodies and here.depth == DEEPEST:
            return
        bare = onnx.NodeProto(op_type=node.op_type, domain=domain_of(node.domain), overload=node.overload)
        bare.input.extend(inputs)
        bare.output.extend(outputs)
        self._wanted.update(inputs)
        for attribute in _bound(node, here.given):
            large = attribute.ByteSize() > SMALL_BYTES or attribute.t.data_location == _EXTERNAL
            if large and (bare.op_type, bare.domain) == ("Constant", ""):
                self.model.graph.input.add(name=outputs[0], type=_constant_type(attribute))
                return
            bare.attribute.append(_without_data(attribute) if large else attribute)
        graphs = (self._body(here, body) for body in bodies)
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs:
                held = bare.attribute.add(name=attribute.name, type=attribute.type)
                if attribute.HasField("g"):
                    held.g.CopyFrom(next(graphs))
                held.graphs.extend(next(graphs) for _ in attribute.graphs)
        yield from self._in_opset(here.scope.opsets.get("", 0), bare)

    def _body(self, here: Instance, scope: Scope) -> onnx.GraphProto:
        body = self._instance(scope, around=here, given=here.given, calls=here.calls, depth=here.depth + 1)
        graph = onnx.GraphProto(name="body")
        assert isinstance(scope.container, onnx.GraphProto)
        for value in scope.container.output:
            self._add_guess(graph.output, value, body.name(value.name))
        self._wanted.update(value.name for value in graph.output)
        graph.node.extend(self._nodes(body))
        for value in scope.container.input:
            if scope.definitions[value.name] is None:
                self._add_guess(graph.input, value, body.name(value.name))
        return graph

    def _in_opset(self, opset: int, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Nodes for ``node``, last first, in the slice's opset.

        Where that has another operator, they are a call of a function of the one node.
        """
        here = self._opsets.get("", 0)
        is_same = node.domain or _since(node.op_type, opset) == _since(node.op_type, here)
        if is_same or any(True for _ in subgraphs(node)):  # If, Loop and Scan differ in the types that they allow
            return [node]
        if _is_read_alike(node, opset, here):
            return [node]
        if opset < 13 <= here and node.op_type in _ATTRIBUTE_OF_13:
            return _with_input(node, _ATTRIBUTE_OF_13[node.op_type])
        inputs, outputs = ([name for name in dict.fromkeys(names) if name] for names in (node.input, node.output))
        name, imports = f"node {len(self.model.functions)}", [helper.make_opsetid("", opset)]
        function = helper.make_function(STAND_IN, name, inputs, outputs, [node], imports)
        self.model.functions.append(function)
        return [helper.make_node(function.name, inputs, outputs, domain=STAND_IN)]

    def _add_guess(self, values: Any, value: onnx.ValueInfoProto, name: str) -> None:
        """Add ``value`` under this ``name`` to ``values``, a field of a graph, without its shape.

        onnxruntime holds no run to the shape, which may be left over from another model.
        """
        tensor = _add(values, value, name).type.tensor_type
        if tensor.HasField("shape"):
            self.ranks[name] = len(tensor.shape.dim)
            tensor.ClearField("shape")

    def _declare(self, instance: Instance, graph: onnx.GraphProto) -> None:
        """Put what the model says of the values of ``instance`` into ``graph``, and its initializers."""
        scope, container = instance.scope, instance.scope.container
        for value in container.value_info:
            name = instance.name(value.name)
            if name in self._wanted and value.name in scope.definitions:
                self._add_guess(graph.value_info, value, name)
        if isinstance(container, onnx.FunctionProto):
            return
        if scope.parent is None:
            for value in container.output:
                self._add_guess(graph.value_info, value, instance.name(value.name))
            for value in container.input:
                if scope.definitions[value.name] is None and instance.name(value.name) in self._wanted:
                    _add(graph.input, value, instance.name(value.name))
        for tensor in container.initializer:
            name, dims = instance.name(tensor.name), tensor.dims[:]
            if name not in self._wanted or scope.definitions[tensor.name] is None:
                continue
            # No inference reads the numbers of a matrix of floats.
            is_weight = len(dims) > 1 and tensor.data_type in _FLOATS
            if is_weight or tensor.ByteSize() > SMALL_BYTES or tensor.data_location == _EXTERNAL:
                graph.input.add(name=name, type=_weight_type(tensor.data_type, *dims))
            else:
                graph.initializer.append(tensor)
                if instance.prefix:
                    graph.initializer[-1].name = name
        for sparse in container.sparse_initializer:
            name = instance.name(sparse.values.name)
            if name in self._wanted:
                graph.input.add(name=name, type=_weight_type(sparse.values.data_type, *sparse.dims))


def _stand_in(dialect: Dialect) -> str:
    """The name of the function that stands for a node of ``dialect``."""
    return _PLANAR[dialect.axes[0]] if dialect.plane_scale and dialect.axes else dialect.operator


def _leading(found: Sequence[Scope], functions: Mapping[Key, Scope], values: Collection[int]) -> set[int]:
    """The ids of the scopes that hold a node concerned or one of ``values``, or a graph or a call that leads to one."""
    leading, op_types = set[int](), operator_types()
    pending = [scope for scope in found if id(scope) in values]
    holders: dict[int, list[Scope]] = {}
    for scope in found:
        if scope.parent is not None:
            holders.setdefault(id(scope), []).append(scope.parent)
        for node, op_type in zip(scope.nodes, scope.op_types, strict=True):
            callee = functions.get(function_key(node)) if functions else None
            if callee is not None:
                holders.setdefault(id(callee), []).append(scope)
            elif op_type in op_types and dialect_of(node, {}) is not None:
                pending.append(scope)
    while pending:
        scope = pending.pop()
        if id(scope) not in leading:
            leading.add(id(scope))
            pending += holders.get(id(scope), [])
    return leading


def _bound(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> Iterator[onnx.AttributeProto]:
    """The attributes of ``node`` but graphs, what its function passes on being what is ``given`` to that."""
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            if not (attribute.HasField("g") or attribute.graphs):
                yield attribute
        elif attribute.ref_attr_name in given:
            bound = onnx.AttributeProto()
            bound.CopyFrom(given[attribute.ref_attr_name])
            bound.name = attribute.name
            yield bound


def _without_data(attribute: onnx.AttributeProto) -> onnx.AttributeProto:
    """A large attribute with the type of its tensor, where it has one, in the place of its value."""
    bare = onnx.AttributeProto(name=attribute.name, type=attribute.type)
    if attribute.HasField("t"):
        bare.t.data_type, bare.t.data_location = attribute.t.data_type, _EXTERNAL
        bare.t.dims.extend(attribute.t.dims)
    return bare


def _constant_type(attribute: onnx.AttributeProto) -> onnx.TypeProto:
    """The type of a Constant that has this one, large attribute."""
    if attribute.HasField("t"):
        return _weight_type(attribute.t.data_type, *attribute.t.dims)
    if attribute.HasField("sparse_tensor"):
        return _weight_type(attribute.sparse_tensor.values.data_type, *attribute.sparse_tensor.dims)
    kinds = {"value_floats": onnx.TensorProto.FLOAT, "value_ints": onnx.TensorProto.INT64}
    return _weight_type(kinds.get(attribute.name, onnx.TensorProto.STRING), 0)


@lru_cache
def _weight_type(elem_type: int, *dims: int) -> onnx.TypeProto:
    # The length of a row of weights is left open, so that none counts as a row of numbers to follow.
    return helper.make_tensor_type_proto(elem_type, dims if len(dims) > 1 else [None] * len(dims))


def _add(values: Any, value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """Add ``value`` under this ``name`` to ``values``, a field of a graph."""
    added: onnx.ValueInfoProto = values.add()
    added.CopyFrom(value)
    added.name = name
    return added


def _with_input(node: onnx.NodeProto, name: str) -> list[onnx.NodeProto]:
    """``node`` and, where it has the attribute ``name``, a Constant of it that becomes its second input."""
    numbers = [list(attribute.ints) for attribute in node.attribute if attribute.name == name]
    written = onnx.NodeProto()
    written.CopyFrom(node)
    del written.attribute[:], written.input[1:]
    written.attribute.extend(attribute for attribute in node.attribute if attribute.name != name)
    if not numbers:
        return [written]
    constant = f"{node.output[0]} {name}"
    written.input.append(constant)
    return [written, helper.make_node("Constant", [], [constant], value_ints=numbers[0])]


def _is_read_alike(node: onnx.NodeProto, opset: int, other: int) -> bool:
    """Whether ``node`` of ``opset`` means the same in a newer one, ``other``, which may have added something to it."""
    if opset > other or not _since(node.op_type, opset):
        return False
    old, new = (defs.get_schema(node.op_type, each, "") for each in (opset, other))
    if len(node.output) > new.max_output or len(node.input) > new.max_input:
        return False
    if [each.option for each in old.inputs] != [each.option for each in new.inputs[: len(old.inputs)]]:
        return False
    return all(
        name in new.attributes
        and attribute.type == new.attributes[name].type
        and attribute.default_value == new.attributes[name].default_value
        for name, attribute in old.attributes.items()
    )


@lru_cache
def _since(op_type: str, opset: int) -> int:
    """The opset that brought the version of an ONNX operator which ``opset`` has; 0 where it has none."""
    try:
        return int(defs.get_schema(op_type, opset, "").since_version)
    except (defs.SchemaError, TypeError):  # TypeError: of a name that is not UTF-8
        return 0
