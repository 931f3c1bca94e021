"""The use-def chains of a scope: which node makes a value, and which nodes read it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx

from .scope import Scope, domain_of


class UseDef:
    """The use-def chains of ``scope``: which node makes a value, and which nodes read it."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.nodes = scope.nodes
        self.makers = scope.makers
        self._op_types = scope.op_types
        self._inputs = scope.inputs
        self._outputs = scope.outputs
        self._has_other_domains = scope.domains != {""}

    def is_op(self, index: int, op_types: Collection[str]) -> bool:
        """Whether the node at an index is one of ONNX's operators ``op_types``.

        If it is, it has an output and, unless it is a Constant, an input.
        """
        op_type = self._op_types[index]
        if op_type not in op_types:
            return False
        if self._has_other_domains and domain_of(self.nodes[index].domain):
            return False
        outputs = self._outputs[index]
        if not outputs or not outputs[0]:
            return False
        inputs = self._inputs[index]
        return op_type == "Constant" or bool(inputs and inputs[0])

    def backward_closure(
        self,
        names: Iterable[str],
        op_types: Collection[str],
        any_domain_types: Collection[str] = (),
    ) -> Iterator[str]:
        """Yield ``names``, and all values that they may be computed from.

        Args:
            op_types: the ONNX operators that are followed.
            any_domain_types: the types of nodes, in any domain, that are followed as well.
        """
        pending = list(dict.fromkeys(names))
        seen = set(pending)
        for name in pending:  # grows while it is iterated
            yield name
            maker = self.makers.get(name)
            if maker is None:
                continue
            if self._op_types[maker] in any_domain_types or self.is_op(maker, op_types):
                for value in (*self._inputs[maker], *self._outputs[maker]):
                    if value and value not in seen:
                        pending.append(value)
                        seen.add(value)


def unread_nodes(
    use_def: UseDef,
    replaced: Collection[int],
    read: Collection[str],
    candidates: Collection[int],
) -> set[int]:
    """Return the nodes that are not read after others are replaced.

    Args:
        replaced: the indices of the nodes that are replaced.
        read: the values that their replacements read.
        candidates: the indices of the nodes to return, if they are not read.
    """
    gone = set(replaced)
    for index in sorted(set(candidates) - gone, reverse=True):
        outputs = [name for name in use_def.scope.outputs[index] if name]
        readers = use_def.scope.readers
        if all(name not in read and readers.get(name, set()) <= gone for name in outputs):
            gone.add(index)
    return gone - set(replaced)


def constants_among(scope: Scope, names: Iterable[str]) -> Iterator[tuple[Scope, str]]:
    """Yield the ``names`` that are constants, with the scopes that define them.

    Args:
        scope: the scope whose nodes read ``names``.
        names: the names of values.
    """
    for name in names:
        definer = scope.defining_scope(name)
        if definer is not None and _defines_constant(definer, name):
            yield definer, name


def _defines_constant(scope: Scope, name: str) -> bool:
    """Whether the value ``name``, which ``scope`` defines, is an initializer or a Constant."""
    definition = scope.definitions[name]
    if isinstance(definition, onnx.NodeProto):
        return is_constant(definition)
    if definition is not None:
        return True
    container = scope.container
    sparse = container.sparse_initializer if isinstance(container, onnx.GraphProto) else ()
    return any(tensor.values.name == name for tensor in sparse)


def is_constant(node: onnx.NodeProto) -> bool:
    """Whether ``node`` is a Constant."""
    return node.op_type == "Constant" and not domain_of(node.domain)


def drop_unread_constants(constants: Iterable[tuple[Scope, str]]) -> None:
    """Drop those of ``constants`` that are not read, except initializers that can be fed.

    Args:
        constants: scopes and the names of initializers or Constants that they define.
    """
    names_by_scope: dict[int, tuple[Scope, set[str]]] = {}
    for scope, name in constants:
        names_by_scope.setdefault(id(scope), (scope, set()))[1].add(name)
    for scope, names in names_by_scope.values():
        unread = scope.unread(names)
        if not unread:
            continue
        drop_initializers(scope, unread)
        dropped: dict[int, tuple[()]] = {}
        for index in scope.indices_of(("Constant",)):
            if is_constant(scope.nodes[index]) and not unread.isdisjoint(scope.outputs[index]):
                dropped[index] = ()
        if dropped:
            scope.replace_nodes(dropped)


def drop_initializers(scope: Scope, names: Collection[str]) -> None:
    """Drop initializers of ``scope`` that are not read, except those that can be fed.

    Args:
        names: the names of values that are not read.
    """
    if not names or not isinstance(scope.container, onnx.GraphProto):
        return
    graph = scope.container
    unread = set(names) - {value.name for value in graph.input}
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name in unread:
            del graph.initializer[index]
    for index in reversed(range(len(graph.sparse_initializer))):
        if graph.sparse_initializer[index].values.name in unread:
            del graph.sparse_initializer[index]
