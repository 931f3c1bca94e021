"""The scopes of a model that its backward slice visits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..dialects.registry import dialect_of, operator_types
from ..graph.scope import FunctionKey, Scope, function_key


def functions_of(scopes: Sequence[Scope]) -> dict[FunctionKey, Scope]:
    """Return the scopes of the model's functions, without those of their bodies."""
    functions = {}
    for scope in scopes:
        if scope.function is not None and scope.container is scope.function:
            functions[function_key(scope.function)] = scope
    return functions


def relevant_scope_ids(
    scopes: Sequence[Scope],
    functions: Mapping[FunctionKey, Scope],
    requested_scopes: Collection[int],
) -> set[int]:
    """Return the ids of the scopes that lead to a sampling node, or to a requested scope.

    They contain it themselves, in a graph of a node, or in a function that they call.
    """
    op_types = operator_types()
    pending = [scope for scope in scopes if id(scope) in requested_scopes]
    users: dict[int, list[Scope]] = {}
    for scope in scopes:
        if scope.parent is not None:
            users.setdefault(id(scope), []).append(scope.parent)
        for node in scope.nodes if functions else ():
            callee = functions.get(function_key(node))
            if callee is not None:
                users.setdefault(id(callee), []).append(scope)
        candidates = (scope.nodes[index] for index in scope.indices_of(op_types))
        if any(dialect_of(node, {}, functions) is not None for node in candidates):
            pending.append(scope)
    relevant = set[int]()
    while pending:
        scope = pending.pop()
        if id(scope) not in relevant:
            relevant.add(id(scope))
            pending += users.get(id(scope), [])
    return relevant
