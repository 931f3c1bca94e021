"""Hide the values of constants that a session replaces."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import onnx
from onnx import TensorProto

from .scope import Scope, constant_tensor


def constant_names(scopes: Sequence[Scope]) -> set[str]:
    """Return the names of the constants of all graphs of ``scopes``, but not of functions."""
    graphs = [scope for scope in scopes if isinstance(scope.container, onnx.GraphProto)]
    return {
        name
        for scope in graphs
        for name in scope.definitions
        if scope.find_constant(name) is not None
    }


@contextmanager
def hide_values(scopes: Sequence[Scope], names: Collection[str]) -> Iterator[None]:
    """Make the values of constants unknown within a ``with`` statement, like external data.

    A session uses other values for them. Constant nodes become initializers, as in onnxruntime.

    Args:
        scopes: the scopes of a model, which are changed.
        names: names among :func:`constant_names`.
    """
    if not names:
        yield
        return
    # Inner graphs first: a list of nodes that was rewritten holds copies.
    for scope in reversed(scopes):
        _constants_to_initializers(scope, names)
    _set_data_location(scopes, names, TensorProto.EXTERNAL)
    try:
        yield
    finally:
        _set_data_location(scopes, names, TensorProto.DEFAULT)


def _constants_to_initializers(scope: Scope, names: Collection[str]) -> None:
    """Replace the Constant nodes of a graph that make one of ``names`` by initializers."""
    graph = scope.container
    if not isinstance(graph, onnx.GraphProto):
        return
    dropped: dict[int, tuple[()]] = {}
    for index, node in enumerate(scope.nodes):
        tensor = constant_tensor(node)
        if tensor is not None and node.output[0] in names:
            initializer = graph.initializer.add()
            initializer.CopyFrom(tensor)
            initializer.name = node.output[0]
            dropped[index] = ()
    scope.replace_nodes(dropped)


def _set_data_location(
    scopes: Sequence[Scope],
    names: Collection[str],
    location: TensorProto.DataLocation,
) -> None:
    """Set the data location of the initializers ``names`` that are not external data."""
    for scope in scopes:
        if isinstance(scope.container, onnx.GraphProto):
            for tensor in scope.container.initializer:
                if tensor.name in names and not tensor.external_data:
                    tensor.data_location = location
