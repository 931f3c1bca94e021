"""The backward slice of a model: the part that leads to the sampling nodes, as one small graph.

Type inference runs on the slice. In it, model-local functions are inlined, weights are inputs of
their types, and sampling nodes are calls of :mod:`.stand_ins`. Every value has a unique name, even
if names in the model hide each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import onnx
from onnx import helper

from ..dialects.registry import dialect_of, operator_types
from ..dialects.spelling import Dialect
from ..dialects.table import ATTENTION
from ..graph.placeholders import is_placeholder
from ..graph.scope import (
    TENSOR_ATTRIBUTES,
    Scope,
    domain_of,
    function_key,
    with_bodies,
)
from . import computed_operands
from .computed_operands import nodes_for_inference, pads_of_stacked_values
from .instances import Instance, InstanceNode
from .light_attributes import (
    SMALL_BYTES,
    constant_type,
    resolved_attributes,
    without_data,
)
from .node_versions import is_same_version, nodes_in_opset
from .slice_declarations import (
    SliceDeclarations,
    add_body_constants,
    add_body_input,
    add_body_output,
    declared_types,
)
from .slice_scopes import functions_of, relevant_scope_ids
from .stand_ins import STAND_IN, STAND_INS, stand_in_name

#: The maximum number of nodes of inlined functions.
MAX_INLINED_NODES = 1 << 16
#: The maximum depth of graphs in graphs. protobuf does not parse much deeper ones.
MAX_GRAPH_DEPTH = 30
#: The oldest opset of a slice. In older opsets, onnx does not infer the rank of the output of a
#: Reshape to a computed shape.
MIN_SLICE_OPSET = 14

#: The number of bytes per node of a slice up to which it has no long descriptions.
_USUAL_NODE_BYTES = 256

#: Names of values, by the id of their scope.
NamesByScope = Mapping[int, Collection[str]]


class InlinedCall(NamedTuple):
    """A call of a function that is inlined.

    Attributes:
        instance: the instance of the function.
        identities: Identity nodes for outputs of the call.
    """

    instance: Instance
    identities: Sequence[onnx.NodeProto]


class BackwardSlice:
    """The backward slice of a model.

    Args:
        model: the model to slice; not changed, but the slice shares its nodes.
        scopes: the scopes of ``model``, the main graph first.
        requested_names: names of values that the slice includes besides the inputs of sampling
            nodes.
        other_names: names of further values that it includes.

    Attributes:
        model: the slice as a model.
        instances: the instances of each scope by its id.
        requested: the names in the slice of the inputs of sampling nodes and of
            ``requested_names``.
        others: the names in the slice of ``other_names``.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        scopes: Sequence[Scope],
        requested_names: NamesByScope | None = None,
        other_names: NamesByScope | None = None,
    ) -> None:
        self.instances: dict[int, list[Instance]] = {}
        self.requested: dict[str, None] = {}
        self.others: dict[str, None] = {}
        main = scopes[0]
        self._functions = functions_of(scopes)
        self._requested_names = requested_names or {}
        self._other_names = other_names or {}
        named_scopes = self._requested_names.keys() | self._other_names.keys()
        self._relevant_scope_ids = relevant_scope_ids(scopes, self._functions, named_scopes)
        self._needed: set[str] = set()
        self._inlining_budget = MAX_INLINED_NODES
        self._instance_count = 0
        self._stand_ins: set[str] = set()  # the functions that nodes of the slice call
        self._scopes = scopes
        opsets = _slice_opsets(main)
        self._slice_opset = opsets.get("", 0)
        self.model = _empty_model(model.ir_version, _imports(scopes, opsets))
        self._build(main)

    def _build(self, main: Scope) -> None:
        """Fill the slice, from the main graph of the model."""
        # Slicing first: it fills ``_needed``, which the declarations and initializers read.
        main_instance = self._add_instance(Instance(main))
        self.model.graph.node.extend(self._slice_instance(main_instance))
        self._drop_descriptions()
        stand_ins = (name for name in STAND_INS if name in self._stand_ins)
        self.model.functions.extend(STAND_INS[name] for name in stand_ins)
        declarations = SliceDeclarations(self.model.graph, self._needed)
        declarations.add_inputs(main_instance)
        for instance in chain.from_iterable(self.instances.values()):
            declarations.add_initializers(instance)

    def _drop_descriptions(self) -> None:
        """Drop the descriptions of nodes if they are long, such as PyTorch's stack traces.

        With 1.5 kB for each of 3,000 nodes, opening a model takes twice as long.
        """
        graph = self.model.graph
        if graph.ByteSize() <= _USUAL_NODE_BYTES * len(graph.node):
            return
        for sliced_graph in self.graphs:
            for node in sliced_graph.node:
                node.ClearField("doc_string")
                node.ClearField("metadata_props")

    @cached_property
    def declared_types(self) -> Mapping[str, onnx.TypeProto]:
        """The types that the model declares for computed values, by their names in the slice.

        The slice does not contain these types. A run need not have their shapes.
        """
        instances = chain.from_iterable(self.instances.values())
        return declared_types(instances, self._needed)

    @cached_property
    def _separator(self) -> str:
        """Spaces that are in no name of the model: names with these and a prefix are new."""
        separator = " "
        names = [name for scope in self._scopes for name in scope.definitions]
        while any(separator in name for name in names):
            separator += " "
        return separator

    def _new_name(self, name: str, suffix: str) -> str:
        """Return a name that no value of the model has."""
        return f"{name}{self._separator}{suffix}"

    def _unknown_integers(self) -> str:
        """Return the name of a 1-D input of the slice whose elements are unknown."""
        name = self._new_name("unknown", "integers")
        if name not in self._needed:
            self._needed.add(name)
            unknown_type = helper.make_tensor_type_proto(onnx.TensorProto.INT64, [None])
            self.model.graph.input.add(name=name, type=unknown_type)
        return name

    @property
    def is_nested(self) -> bool:
        """Whether nodes of the slice hold graphs."""
        instances = chain.from_iterable(self.instances.values())
        return any(instance.graph_depth > 0 for instance in instances)

    @property
    def graphs(self) -> Sequence[onnx.GraphProto]:
        """The main graph of the slice, and the graphs in it."""
        main = self.model.graph
        return with_bodies(main) if self.is_nested else [main]

    def reads_any(self, names: Collection[str]) -> bool:
        """Whether one of these values is requested, or read by a node of the slice."""
        return not self._needed.isdisjoint(names)

    def declare_types(self, types: Mapping[str, onnx.TypeProto]) -> None:
        """Declare the types of values in the slice, by their names in it."""
        for graph in self.graphs:
            for value in graph.output:
                if value.name in types:
                    value.type.CopyFrom(types[value.name])
        for name, type_proto in types.items():
            self.model.graph.value_info.append(onnx.ValueInfoProto(name=name, type=type_proto))

    def _add_instance(self, instance: Instance) -> Instance:
        """Return ``instance``, with a prefix if it needs one, as one of its scope."""
        if self._instance_count > 0 and not self._keeps_names(instance):
            instance = replace(instance, prefix=f"{self._instance_count}{self._separator}")
        self._instance_count += 1
        self.instances.setdefault(id(instance.scope), []).append(instance)
        return instance

    def _keeps_names(self, instance: Instance) -> bool:
        """Whether the values of ``instance`` keep their names in the slice.

        Its nodes then need no copies. In an invalid model, a name that is not visible may get the
        type of another body's value.
        """
        parent = instance.parent
        if parent is None or parent.prefix:
            return False
        return id(instance.scope) in self._scope_ids_of_unique_names

    @cached_property
    def _scope_ids_of_unique_names(self) -> set[int]:
        """The ids of the scopes all of whose values have names that no other scope defines."""
        n_definitions = Counter(chain.from_iterable(scope.definitions for scope in self._scopes))
        return {
            id(scope)
            for scope in self._scopes
            if all(n_definitions[name] == 1 for name in scope.definitions)
        }

    def _slice_instance(self, instance: Instance) -> list[onnx.NodeProto]:
        """Return the nodes of ``instance`` that lead to a sampling node or a requested value.

        Functions are inlined. Inlining and slicing are one pass, because whether a call is inlined
        depends on its readers. Nodes are visited last first, so that the readers of a value come
        before its maker.
        """
        last_first: list[onnx.NodeProto] = []
        # One iterator for each call of the current chain. There is no recursion: a chain may be
        # long.
        frames = [self._visit_needed_nodes(instance, last_first)]
        while frames:
            node = next(frames[-1], None)
            if node is None:
                frames.pop()
            elif node.dialect is not None:
                last_first.append(self._slice_sampling_node(node, node.dialect))
            elif node.callee is not None and self._take_from_inlining_budget(node, node.callee):
                inlined = self._inline_call(node, node.callee)
                last_first += inlined.identities
                frames.append(self._visit_needed_nodes(inlined.instance, last_first))
            else:
                last_first += self._slice_node(node)
        return last_first[::-1]

    def _visit_needed_nodes(
        self, instance: Instance, last_first: list[onnx.NodeProto]
    ) -> Iterator[InstanceNode]:
        """Visit the nodes of ``instance`` that the slice needs, last first.

        They are the sampling nodes, nodes with bodies or functions that contain one, and nodes with
        an output in ``_needed``. Most of them are in the slice as they are. The iterator adds these
        to ``last_first``, and yields the others. The caller must pass the inputs of such a node to
        :meth:`_need` before it requests the next node, because the iterator reads ``_needed`` when
        it reaches a node.
        """
        scope = instance.scope
        requested_names = self._requested_names.get(id(scope), ())
        self._request([instance.name_in_slice(name) for name in requested_names])
        others = map(instance.name_in_slice, self._other_names.get(id(scope), ()))
        others_by_name = dict.fromkeys(filter(None, others))
        self.others.update(others_by_name)
        self._needed.update(others_by_name)
        tensor_holders = set(scope.attribute_holders(TENSOR_ATTRIBUTES))
        functions = self._functions
        needed = self._needed
        sampling_types = operator_types()
        special_types = self._special_types(scope, sampling_types)
        for index in reversed(range(len(scope.nodes))):
            op_type = scope.op_types[index]
            inputs: Sequence[str] = scope.inputs[index]
            outputs: Sequence[str] = scope.outputs[index]
            if op_type not in special_types and not instance.prefix:
                if needed.isdisjoint(outputs):
                    continue
                if _can_share(scope.nodes[index], index in tensor_holders):
                    needed.update(inputs)
                    needed.discard("")
                    last_first.append(scope.nodes[index])
                    continue
            if instance.prefix:
                inputs = [instance.name_in_slice(name) for name in inputs]
                outputs = [instance.name_in_slice(name) for name in outputs]
            callee = functions.get(function_key(scope.nodes[index])) if functions else None
            dialect = None
            if callee is None and op_type in sampling_types:
                dialect = dialect_of(scope.nodes[index], {})
            if (
                dialect is not None
                or not needed.isdisjoint(outputs)
                or self._has_relevant_scope(scope, index, callee)
            ):
                holds_tensors = index in tensor_holders
                yield InstanceNode(instance, index, inputs, outputs, callee, dialect, holds_tensors)

    def _special_types(self, scope: Scope, sampling_types: Collection[str]) -> set[str]:
        """Return the operators of ``scope`` whose nodes may have another form in the slice."""
        opset = scope.opsets.get("", 0)
        function_names = {name for _, name, _ in self._functions}
        special_types = {scope.op_types[index] for index in scope.bodies}
        for op_type in scope.indices_by_type:
            if (
                op_type in sampling_types
                or op_type in computed_operands.OPERATORS
                or op_type in function_names
                or not is_same_version(op_type, opset, self._slice_opset)
            ):
                special_types.add(op_type)
        return special_types

    def _has_relevant_scope(self, scope: Scope, index: int, callee: Scope | None) -> bool:
        """Whether a node of ``scope`` calls or holds a scope that leads to a sampling node."""
        inner_scopes = scope.bodies.get(index, ()) if callee is None else (callee,)
        return not self._relevant_scope_ids.isdisjoint(map(id, inner_scopes))

    def _request(self, names: Sequence[str]) -> None:
        """Need these values, and list them as requested. Empty names are ignored."""
        self._need(names)
        self.requested.update(dict.fromkeys(filter(None, names)))

    def _need(self, names: Sequence[str]) -> None:
        """Record that the slice needs these values. Empty names are ignored."""
        self._needed.update(names)
        self._needed.discard("")

    def _slice_sampling_node(self, node: InstanceNode, dialect: Dialect) -> onnx.NodeProto:
        """Return the stand-in for a sampling node, and request its inputs."""
        X_and_grid = node.inputs[:2]
        read = node.inputs if dialect.operator == ATTENTION else X_and_grid
        self._request(read)
        function = stand_in_name(dialect)
        self._stand_ins.add(function)
        return helper.make_node(function, X_and_grid, node.outputs[:1], domain=STAND_IN)

    def _take_from_inlining_budget(self, node: InstanceNode, callee: Scope) -> bool:
        """Take the nodes of a called function from the budget; return whether it may be inlined.

        It may not be inlined in a cycle of functions that call each other, or after
        :data:`MAX_INLINED_NODES` nodes.
        """
        self._inlining_budget -= len(callee.container.node)
        return self._inlining_budget >= 0 and node.instance.call_depth < len(self._functions)

    def _inline_call(self, node: InstanceNode, callee: Scope) -> InlinedCall:
        """Add the instance of the function that ``node`` calls.

        An output needs an Identity node if the function's value already has another name in the
        slice: it is an input of the function, or an output twice.
        """
        caller = node.instance
        function = callee.container
        assert isinstance(function, onnx.FunctionProto)
        aliases = dict.fromkeys(function.input, "")
        aliases.update(zip(function.input, node.inputs, strict=False))
        identities = []
        for name, output in zip(function.output, node.outputs, strict=False):
            if not output:
                continue
            if name in aliases:
                identities.append(helper.make_node("Identity", [aliases[name]], [output]))
                self._need([aliases[name]])
            else:
                aliases[name] = output
        call_attributes = {attribute.name: attribute for attribute in function.attribute_proto}
        for attribute in resolved_attributes(node.proto, caller.call_attributes):
            call_attributes[attribute.name] = attribute
        instance = Instance(
            callee,
            call_attributes=call_attributes,
            aliases=aliases,
            caller=caller,
            arguments=dict(zip(function.input, node.proto.input, strict=False)),
            call_depth=caller.call_depth + 1,
            graph_depth=caller.graph_depth,
        )
        return InlinedCall(self._add_instance(instance), identities)

    def _slice_node(self, node: InstanceNode) -> Sequence[onnx.NodeProto]:
        """Return nodes of the slice for ``node``, last first. The slice then needs its inputs.

        Copying takes time, so a node whose values keep their names and that has neither weights nor
        graphs is used as it is.
        """
        scope = node.instance.scope
        proto = scope.nodes[node.node_index]
        domain = proto.domain
        if scope.op_types[node.node_index] in computed_operands.OPERATORS and not domain_of(domain):
            others = nodes_for_inference(node, self._unknown_integers, self._new_name)
            if others:
                made = {name for other in others for name in other.output}
                self._need([name for other in others for name in other.input if name not in made])
                return [*chain.from_iterable(self._in_opset(node.opset, proto) for proto in others)]
        is_renamed = bool(node.instance.prefix)
        has_bodies = node.node_index in scope.bodies
        if is_renamed or has_bodies or not _can_share(proto, node.may_have_tensor_attributes):
            return self._write_light_copy(node)
        self._need(node.inputs)
        return self._in_opset(node.opset, proto)

    def _write_light_copy(self, node: InstanceNode) -> Sequence[onnx.NodeProto]:
        """Return new nodes for ``node``, last first, without weights and with slices of its graphs.

        A Constant of a weight becomes an input of the slice, and a node whose graphs are too deep
        is left out.
        """
        if node.bodies and node.instance.graph_depth == MAX_GRAPH_DEPTH:
            return []
        proto = node.proto
        written = onnx.NodeProto(
            op_type=proto.op_type,
            domain=domain_of(proto.domain),
            overload=proto.overload,
        )
        written.input.extend(node.inputs)
        written.output.extend(node.outputs)
        self._need(node.inputs)
        for attribute in resolved_attributes(proto, node.instance.call_attributes):
            if attribute.ByteSize() <= SMALL_BYTES and not is_placeholder(attribute.t):
                written.attribute.append(attribute)
            elif (written.op_type, written.domain) == ("Constant", ""):
                self.model.graph.input.add(name=node.outputs[0], type=constant_type(attribute))
                return []
            else:
                written.attribute.append(without_data(attribute))
        self._add_bodies(written, node)
        pads: Sequence[onnx.NodeProto] = ()
        if (written.op_type, written.domain) == ("Loop", ""):
            pads = pads_of_stacked_values(node, written, self._unknown_integers, self._new_name)
        return [*pads, *self._in_opset(node.opset, written)]

    def _add_bodies(self, written: onnx.NodeProto, node: InstanceNode) -> None:
        """Add the slices of the graphs of ``node`` to ``written``."""
        bodies = iter(node.bodies)
        for attribute in node.proto.attribute:
            if attribute.HasField("g") or attribute.graphs:
                sliced = written.attribute.add(name=attribute.name, type=attribute.type)
                if attribute.HasField("g"):
                    self._slice_body(sliced.g, node.instance, next(bodies))
                for _ in attribute.graphs:
                    self._slice_body(sliced.graphs.add(), node.instance, next(bodies))

    def _slice_body(self, graph: onnx.GraphProto, parent: Instance, scope: Scope) -> None:
        """Fill the empty ``graph`` with the slice of ``scope``, a body of a node in ``parent``."""
        body = Instance(
            scope,
            parent=parent,
            call_attributes=parent.call_attributes,
            call_depth=parent.call_depth,
            graph_depth=parent.graph_depth + 1,
        )
        instance = self._add_instance(body)
        graph.name = "body"
        assert isinstance(scope.container, onnx.GraphProto)
        for value in scope.container.output:
            add_body_output(graph.output, instance, value)
        self._need([value.name for value in graph.output])
        graph.node.extend(self._slice_instance(instance))
        for value in scope.container.input:
            if scope.definitions[value.name] is None:
                add_body_input(graph.input, instance, value)
        add_body_constants(graph, instance, self._needed)

    def _in_opset(self, opset: int, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return nodes in the slice's opset for a node of ``opset``, last first.

        If there are none, return a call of a function that consists of the node.
        """
        if opset == self._slice_opset:
            return [node]
        nodes = nodes_in_opset(
            node,
            old_opset=opset,
            new_opset=self._slice_opset,
            new_name=self._new_name,
        )
        if nodes is not None:
            return nodes
        inputs = [name for name in dict.fromkeys(node.input) if name]
        outputs = [name for name in dict.fromkeys(node.output) if name]
        name = f"node {len(self.model.functions)}"
        imports = [helper.make_opsetid("", opset)]
        self.model.functions.append(
            helper.make_function(STAND_IN, name, inputs, outputs, [node], imports),
        )
        return [helper.make_node(name, inputs, outputs, domain=STAND_IN)]


def _can_share(node: onnx.NodeProto, may_have_tensor_attributes: bool) -> bool:
    """Whether the slice can have a node as it is, if its values keep their names.

    Its domain must not need another spelling, and it must not have weights.
    """
    if domain_of(node.domain) != node.domain or node.ByteSize() > SMALL_BYTES:
        return False
    if may_have_tensor_attributes:
        for attribute in node.attribute:
            if is_placeholder(attribute.t):
                return False
    return True


def _slice_opsets(main: Scope) -> Mapping[str, int]:
    """Return the opsets of the slice of a model, given the model's main graph."""
    if 0 < main.opsets.get("", 0) < MIN_SLICE_OPSET:
        return {**main.opsets, "": MIN_SLICE_OPSET}
    return main.opsets


def _imports(scopes: Sequence[Scope], slice_opsets: Mapping[str, int]) -> dict[str, int]:
    """Return the versions that the slice imports: ``slice_opsets``, and those of other domains."""
    imports: dict[str, int] = {}
    for scope in reversed(scopes):
        imports |= scope.opsets
    return imports | {STAND_IN: 1, **slice_opsets}


def _empty_model(ir_version: int, imports: Mapping[str, int]) -> onnx.ModelProto:
    """Return a model without nodes."""
    model = onnx.ModelProto(
        ir_version=max(8, ir_version),
        opset_import=[helper.make_opsetid(*entry) for entry in imports.items()],
    )
    model.graph.name = "slice"
    return model
