"""Insert the replacements of nodes in a model, and drop the nodes that are not read any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx

from ..detection.match import Match
from ..graph.scope import Scope
from ..graph.use_def import UseDef, constants_among, drop_unread_constants, unread_nodes
from .targets import Replacement


def insert_replacements(
    all_scopes: Sequence[Scope], replacements: Mapping[Match, Replacement]
) -> None:
    """Put each replacement at the index of its match.

    The types and the defaults of attributes that replacements have are added. Nodes and constants
    that only replaced nodes read are dropped: onnxruntime warns of each constant without a reader.

    Args:
        all_scopes: the scopes of the model, parents before their children.
        replacements: a match in one of these scopes -> its replacement.
    """
    by_scope = defaultdict[int, list[Match]](list)
    for match in replacements:
        by_scope[id(match.scope)].append(match)
    constants = list[tuple[Scope, str]]()
    # Inner graphs first: a list of nodes that was rewritten holds copies.
    for scope in reversed(all_scopes):
        matches = by_scope[id(scope)]
        if matches:
            constants += _replace_in_scope(scope, {match: replacements[match] for match in matches})
    drop_unread_constants(constants)


def _replace_in_scope(
    scope: Scope, replacements: Mapping[Match, Replacement]
) -> list[tuple[Scope, str]]:
    """Like :func:`insert_replacements`, but for the matches in one scope, and without constants.

    Returns:
        The constants that the nodes read that are not in the scope any more, with the scopes that
        define them.
    """
    new_nodes = dict[int, list[onnx.NodeProto]]()
    helpers_after = set[int]()
    superseded = set[int]()  # dropped unless other nodes read them
    for match, replacement in replacements.items():
        new_nodes[match.index] = [*match.preparing_nodes, *replacement.nodes]
        # Another tool may have merged equal Casts of the inputs of several nodes.
        helpers_before = {index for index in match.helpers if index < match.index}
        helpers_after.update(match.helpers - helpers_before)
        superseded.update(match.decomposed_nodes, replacement.superseded, helpers_before)
    read = {name for nodes in new_nodes.values() for node in nodes for name in node.input}
    replaced = {*new_nodes, *helpers_after}
    dropped = helpers_after | unread_nodes(UseDef(scope), replaced, read, superseded)
    read_before = {name for index in {*dropped, *new_nodes} for name in scope.inputs[index] if name}
    constants = [*constants_among(scope, read_before - read)]
    scope.replace_nodes({**dict.fromkeys(dropped, ()), **new_nodes})
    _add_value_info(
        scope, [value for replacement in replacements.values() for value in replacement.value_info]
    )
    for replacement in replacements.values():
        _add_attribute_defaults(scope.function, replacement.attribute_defaults)
    return constants


def _add_value_info(scope: Scope, value_info: Collection[onnx.ValueInfoProto]) -> None:
    """State the types of values that have none in ``scope``."""
    if not value_info:
        return
    container = scope.container
    stated = {value.name for value in container.value_info}
    if isinstance(container, onnx.GraphProto):
        stated.update(value.name for value in container.output)
    unstated = {value.name: value for value in value_info if value.name not in stated}
    container.value_info.extend(unstated.values())


def _add_attribute_defaults(
    function: onnx.FunctionProto | None,
    defaults: Iterable[onnx.AttributeProto],
) -> None:
    """Give attributes of a function their defaults, unless they have one."""
    for default in defaults:
        if function is not None and default.name in function.attribute:
            function.attribute.remove(default.name)
            function.attribute_proto.append(default)


def values_around(
    all_scopes: Sequence[Scope],
    replacements: Mapping[Match, Replacement],
) -> dict[int, set[str]]:
    """Return the values that lead to replaced nodes or come from them, by the id of their scope.

    onnxruntime may trust the shapes that value_info states for these values, even where a run has
    others.
    """
    if not any(scope.container.value_info for scope in all_scopes):
        return {}
    if len(all_scopes) > 1:  # values cross the borders of graphs and functions: return all
        return {
            id(scope): {value.name for value in scope.container.value_info} for scope in all_scopes
        }
    (main,) = all_scopes
    edges = [*zip(main.inputs, main.outputs, strict=True)]
    descendants = {match.record.output for match in replacements}
    for inputs, outputs in edges:
        if not descendants.isdisjoint(inputs):
            descendants.update(outputs)
    ancestors = {name for match in replacements for name in main.inputs[match.index]}
    for inputs, outputs in reversed(edges):
        if not ancestors.isdisjoint(outputs):
            ancestors.update(inputs)
    return {id(main): descendants | ancestors}
