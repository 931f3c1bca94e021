"""A model without its large values, and the owner of these values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import onnx
from onnx import TensorProto

from .placeholders import is_placeholder, make_placeholder, remove_mark
from .scope import Scope, constant_tensor
from .weights import NO_WEIGHTS, LoadedWeights, SeparateWeights, Weights


class ModelSource:
    """A model, and the owner of the values that are not in it.

    The initializers whose values the model lacks are placeholders (:mod:`.placeholders`). A session
    passes the values to onnxruntime (:meth:`load`), or puts them back into the model
    (:meth:`restore`). External data in files belongs to the files, not to this object.

    Attributes:
        model: the model, which the methods change.
        names: the names of the initializers of the main graph that lack their values.
    """

    def __init__(self, model: onnx.ModelProto, weights: Weights = NO_WEIGHTS) -> None:
        self.model = model
        self.names = set(weights.names)
        self.weights = weights

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def copy(self) -> ModelSource:
        """Return another model with the same values."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        copy = ModelSource(model, self.weights)
        copy.names = set(self.names)
        return copy

    def unread_names(self, scopes: Sequence[Scope]) -> set[str]:
        """Return the names of initializers that lack their values and that no node reads."""
        if not self.names:
            return set()
        return self.names.difference(*(names for scope in scopes for names in scope.inputs))

    def load(self) -> LoadedWeights:
        """Read all values, and state in the placeholders where these are in memory.

        Raises:
            GridSampleError: the bytes of a weight are not those of an array of its shape.
            OSError: the file cannot be read.
        """
        initializers = self.model.graph.initializer
        return self.weights.load([tensor for tensor in initializers if tensor.name in self.names])

    def with_values(self, tensor: TensorProto) -> TensorProto:
        """Return a copy of a placeholder of this source, with its values.

        Raises:
            GridSampleError: the bytes of a weight are not those of an array of its shape.
            OSError: the file cannot be read.
        """
        copy = deepcopy(tensor)
        array = self.weights.load([copy]).arrays[copy.name]
        remove_mark(copy)
        copy.raw_data = array.tobytes()
        return copy

    def restore(self, names: Collection[str] | None = None) -> None:
        """Put the values of initializers back into the model.

        Args:
            names: the names of the initializers; by default all that lack values. Other names are
                ignored.

        Raises:
            GridSampleError: the bytes of a weight are not those of an array of its shape.
            OSError: the file cannot be read.
        """
        restored = self.names if names is None else self.names.intersection(names)
        if not restored:
            return
        for tensor in self.model.graph.initializer:
            if tensor.name in restored and is_placeholder(tensor):
                tensor.CopyFrom(self.with_values(tensor))
        self.names = self.names - restored

    def drop(self, names: Collection[str]) -> None:
        """Remove initializers that lack their values from the model."""
        initializers = self.model.graph.initializer
        kept = [tensor for tensor in initializers if tensor.name not in names]
        del initializers[:]
        initializers.extend(kept)
        self.names = self.names.difference(names)

    def snapshot(self, loaded: LoadedWeights) -> Weights:
        """Return the values as they are now, because the caller may change what has them.

        Args:
            loaded: the values that are in memory already, which are not copied.

        Raises:
            GridSampleError: the bytes of a weight are not those of an array of its shape.
            OSError: the file cannot be read.
        """
        values = {}
        for tensor in self.model.graph.initializer:
            if tensor.name in loaded.arrays:
                array = loaded.arrays[tensor.name]
                values[tensor.name] = array.reshape(-1).view(np.uint8)
            elif tensor.name in self.names:
                content = self.with_values(tensor).raw_data
                values[tensor.name] = np.frombuffer(content, np.uint8)
        return SeparateWeights(values)

    @contextmanager
    def hide(self, names: Collection[str], scopes: Sequence[Scope]) -> Iterator[None]:
        """Make constants of the model placeholders of unknown values within a ``with`` statement.

        A session uses other values for them. Constant nodes become initializers, as in onnxruntime.

        Args:
            names: names among :func:`constant_names`.
            scopes: the scopes of the model, which are changed.

        Raises:
            GridSampleError: the bytes of a weight are not those of an array of its shape.
            OSError: the file cannot be read.
        """
        if not names:
            yield
            return
        self.restore(names)
        # Inner graphs first: a list of nodes that was rewritten holds copies.
        for scope in reversed(scopes):
            _constants_to_initializers(scope, names)
        for tensor in _initializers(scopes, names):
            make_placeholder(tensor)
        try:
            yield
        finally:
            for tensor in _initializers(scopes, names):
                remove_mark(tensor)


def constant_names(scopes: Sequence[Scope]) -> set[str]:
    """Return the names of the constants of all graphs of ``scopes``, but not of functions."""
    graphs = [scope for scope in scopes if isinstance(scope.container, onnx.GraphProto)]
    return {
        name
        for scope in graphs
        for name in scope.definitions
        if scope.find_constant(name) is not None
    }


def _constants_to_initializers(scope: Scope, names: Collection[str]) -> None:
    """Replace the Constant nodes of a graph that make one of ``names`` by initializers."""
    graph = scope.container
    if not isinstance(graph, onnx.GraphProto):
        return
    dropped: dict[int, tuple[()]] = {}
    for index in scope.indices_of(("Constant",)):
        node = scope.nodes[index]
        tensor = constant_tensor(node)
        if tensor is not None and node.output[0] in names:
            initializer = graph.initializer.add()
            initializer.CopyFrom(tensor)
            initializer.name = node.output[0]
            dropped[index] = ()
    scope.replace_nodes(dropped)


def _initializers(scopes: Sequence[Scope], names: Collection[str]) -> Iterator[TensorProto]:
    """Yield the initializers ``names`` of all graphs that are not external data."""
    for scope in scopes:
        if isinstance(scope.container, onnx.GraphProto):
            for tensor in scope.container.initializer:
                if tensor.name in names and not tensor.external_data:
                    yield tensor
