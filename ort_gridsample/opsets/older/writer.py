"""Convert the nodes of a model to an older opset."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import onnx
from onnx import defs

from ...errors import GridSampleError, nested_name, where_node
from ...graph.new_names import Names
from ...graph.scope import Scope, display_name, domain_of
from ...inference.types import Inference
from ..schema_functions import NodesInOpset, body_of, has_body, schema_of
from .obstacles import ObstacleError, combined_error
from .rules import CONVERSION_RULES
from .signature_fit import fit_to_older_signature
from .step import Context, VersionStep
from .value_types import nodes_with_forbidden_types

#: The oldest opset that can be written.
OLDEST = 11

#: A node or a value, by the id of its scope and its name: other scopes may have the name, too.
NameInScope = tuple[int, str]


def write_older(
    model: onnx.ModelProto,
    new_opset: int,
    inference: Inference,
    scopes: Sequence[Scope],
) -> None:
    """Write the nodes of the ONNX domain in an older opset, in place.

    Args:
        model: a model without functions.
        new_opset: the opset, at least :data:`OLDEST`.
        inference: the types of all values of ``model``.
        scopes: the scopes of ``model``, parents before their children.

    Raises:
        GridSampleError: nodes cannot be written in this opset; the error lists all of them.
    """
    conversion = _Conversion(Names(model, scopes), inference, new_opset)
    # Inner graphs first: a list of nodes that was rewritten holds copies.
    for scope in reversed(scopes):
        conversion.convert_scope(scope)
    for entry in model.opset_import:
        if domain_of(entry.domain) == "":
            entry.version = min(entry.version, new_opset)
    obstacles = conversion.obstacles
    obstacles.update(conversion.type_obstacles(model, scopes))
    if obstacles:
        raise _error(obstacles, scopes)


def _error(obstacles: dict[NameInScope, ObstacleError], scopes: Sequence[Scope]) -> GridSampleError:
    """Return an error that lists ``obstacles`` in the order of the model."""
    model_order = [_node_key(scope, node) for scope in scopes for node in scope]
    keys = [key for key in dict.fromkeys([*model_order, *obstacles]) if key in obstacles]
    return combined_error([(label, obstacles[scope_id, label]) for scope_id, label in keys])


def _node_key(scope: Scope, node: onnx.NodeProto) -> NameInScope:
    """Return the key of a node of ``scope``, with its name as errors write it."""
    name = nested_name(display_name(node), scope.path)
    return id(scope), where_node(node.op_type, name)


class _Conversion:
    """A conversion of all scopes of a model.

    Attributes:
        obstacles: the key of a node -> why it is not converted.
    """

    def __init__(self, names: Names, inference: Inference, new_opset: int) -> None:
        self.obstacles: dict[NameInScope, ObstacleError] = {}
        self._names = names
        self._inference = inference
        self._new_opset = new_opset
        self._origins: dict[NameInScope, NameInScope] = {}  # output -> the original node
        self._unconverted: set[NameInScope] = set()  # outputs of nodes that are obstacles

    def convert_scope(self, scope: Scope) -> None:
        """Replace the nodes of ``scope`` by older ones, and record obstacles."""
        old_opset = scope.opsets.get("", self._new_opset)
        if old_opset <= self._new_opset:
            return
        replaced: dict[int, Sequence[onnx.NodeProto]] = {}
        for index, node in enumerate(scope.nodes):
            if domain_of(node.domain):
                continue
            key = _node_key(scope, node)
            context = Context(scope, self._inference, self._names, self._new_opset)
            try:
                older = _convert_node(context, node, old_opset)
            except ObstacleError as obstacle:
                self.obstacles[key] = obstacle
                self._unconverted.update((id(scope), name) for name in node.output)
                continue
            outputs = [name for new in older for name in new.output]
            self._origins.update(((id(scope), name), key) for name in outputs)
            if len(older) != 1 or older[0] != node:
                replaced[index] = older
        scope.replace_nodes(replaced)

    def type_obstacles(
        self,
        model: onnx.ModelProto,
        scopes: Sequence[Scope],
    ) -> dict[NameInScope, ObstacleError]:
        """Return the obstacles that the types of the new nodes are, by their original nodes."""
        obstacles = {}
        forbidden = nodes_with_forbidden_types(
            model,
            self._inference,
            scopes,
            new_opset=self._new_opset,
            unconverted=self._unconverted,
        )
        for scope, node, obstacle in forbidden:
            outputs = [(id(scope), name) for name in node.output]
            origins = [self._origins[output] for output in outputs if output in self._origins]
            obstacles[origins[0] if origins else _node_key(scope, node)] = obstacle
        return obstacles


def _convert_node(context: Context, node: onnx.NodeProto, old_opset: int) -> list[onnx.NodeProto]:
    """Return the nodes that compute ``node``, of ``old_opset``, in the new opset.

    Raises:
        ObstacleError: there are no such nodes.
    """
    converted: list[onnx.NodeProto] = []
    pending = [(node, old_opset)]
    while pending:
        node, opset = pending.pop()
        schema = None if domain_of(node.domain) else schema_of(node.op_type, opset)
        if schema is None or schema.since_version <= context.new_opset:
            context.record_constant(node)
            converted.append(node)
            continue
        older = _one_version_down(context, node, schema)
        for older_node in older.nodes:
            context.record_constant(older_node)
        pending += [(older_node, older.opset) for older_node in reversed(older.nodes)]
    return converted


def _one_version_down(
    context: Context,
    node: onnx.NodeProto,
    schema: defs.OpSchema,
) -> NodesInOpset:
    """Return nodes of an older opset that compute ``node``.

    Raises:
        ObstacleError: there are no such nodes.
    """
    since = schema.since_version
    step = VersionStep(context, deepcopy(node), since)
    rule = CONVERSION_RULES.get((node.op_type, since))
    try:
        older_nodes = fit_to_older_signature(step) if rule is None else rule(step)
        return NodesInOpset(_labeled(older_nodes, node), since - 1)
    except ObstacleError:
        if not has_body(schema):
            raise
        inference = context.inference
        types = [
            inference.value_in_all_calls(context.scope, name) if name else None
            for name in node.input
        ]
        body = body_of(node, schema, types, context.names)
        if body is None:
            raise
        return NodesInOpset(_labeled(body.nodes, node), body.opset)


def _labeled(
    nodes: Sequence[onnx.NodeProto],
    original: onnx.NodeProto,
) -> Sequence[onnx.NodeProto]:
    """Give the last node that makes an output of ``original`` its name, text and metadata."""
    outputs = {name for name in original.output if name}
    for node in nodes:
        if node.name == original.name:
            node.name = ""  # onnxruntime refuses two nodes of one name
    for node in reversed(nodes):
        if not outputs.isdisjoint(node.output):
            node.name = original.name
            node.doc_string = original.doc_string
            del node.metadata_props[:]
            node.metadata_props.extend(original.metadata_props)
            break
    return nodes
