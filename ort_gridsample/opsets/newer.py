"""Rewrite nodes whose meaning onnx's version converter changes on the way to a newer opset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import onnx
from onnx import helper

from ..graph.scope import Names, Nodes, Scope, domain_of
from ..inference.types import Inference

#: Operators that flatten the axes from ``axis`` on, in older opsets.
_FLATTENING = ("Softmax", "LogSoftmax", "Hardmax")
#: The first opset in which these operators do not flatten.
_FIRST_OPSET_WITHOUT_FLATTENING = 13
#: The first opset in which a Reshape can write lengths of 0.
_FIRST_OPSET_WITH_ALLOWZERO = 14


def changes_meaning(version: int, before: int, scopes: Sequence[Scope]) -> bool:
    """Whether the converter would change nodes on the way from opset ``before`` to ``version``."""
    if not before < _FIRST_OPSET_WITHOUT_FLATTENING <= version:
        return False
    return any(_is_flattening(node) for scope in scopes for node in scope.nodes)


def keep_meaning(inference: Inference, scopes: Sequence[Scope], names: Names) -> set[str]:
    """Rewrite the nodes in ``scopes`` that the converter would change.

    Returns:
        The values that new Reshapes read, for :func:`allow_empty`.
    """
    flat_values = set()
    # Inner graphs first: a list of nodes that was rewritten holds copies.
    for scope in reversed(scopes):
        replaced = {}
        for index, node in enumerate(scope.nodes):
            if _is_flattening(node):
                rank = inference.value_in_all_calls(scope, node.input[0]).rank
                nodes = _flattened(node, rank, names)
                replaced[index] = nodes
                if nodes[-1].op_type == "Reshape":
                    flat_values.add(nodes[-1].input[0])
        scope.replace(replaced)
    return flat_values


def allow_empty(nodes: Iterable[onnx.NodeProto], version: int, flat_values: Set[str]) -> None:
    """Set ``allowzero`` of the Reshapes of ``flat_values`` where ``version`` has the attribute.

    Without it, a Reshape to the shape of an empty tensor fails.
    """
    if version < _FIRST_OPSET_WITH_ALLOWZERO:
        return
    for node in nodes:
        if node.op_type == "Reshape" and node.input[0] in flat_values:
            node.attribute.append(helper.make_attribute("allowzero", 1))


def _is_flattening(node: onnx.NodeProto) -> bool:
    return node.op_type in _FLATTENING and not domain_of(node.domain)


def _flattened(node: onnx.NodeProto, rank: int | None, names: Names) -> Sequence[onnx.NodeProto]:
    """Return nodes for ``node`` that mean the same before and since opset 13.

    The axis of the operator is the last.
    """
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    if axis == -1 or axis + 1 == rank:
        copy.attribute.append(helper.make_attribute("axis", axis))
        return [copy]
    nodes = Nodes(names, node.output[0])
    shape = nodes.add("Shape", node.input[0])
    copy.input[0] = nodes.add("Flatten", node.input[0], axis=axis)
    copy.output[0] = names.new(f"{node.output[0]}_flat")
    copy.attribute.append(helper.make_attribute("axis", 1))
    nodes.append(copy)
    nodes.add("Reshape", copy.output[0], shape, output=node.output[0])
    return nodes
