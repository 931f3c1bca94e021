"""Rewrite nodes whose meaning onnx's version converter changes on the way to a newer opset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import onnx
from onnx import helper

from ..graph.first_opsets import FIRST_OPSET_WITH_ALLOWZERO
from ..graph.scope import Names, Nodes, Scope, domain_of
from ..inference.types import Inference

#: Operators that flatten the axes from ``axis`` on, in older opsets.
_FLATTENING = ("Softmax", "LogSoftmax", "Hardmax")
#: The first opset in which these operators do not flatten.
_FIRST_OPSET_WITHOUT_FLATTENING = 13


def has_flattening_nodes_to_rewrite(
    old_opset: int,
    new_opset: int,
    scopes: Sequence[Scope],
) -> bool:
    """Whether the converter would change the meaning of flattening nodes."""
    if not old_opset < _FIRST_OPSET_WITHOUT_FLATTENING <= new_opset:
        return False
    return any(_is_flattening(node) for scope in scopes for node in scope.nodes)


def rewrite_flattening_nodes(
    inference: Inference,
    scopes: Sequence[Scope],
    names: Names,
) -> set[str]:
    """Rewrite the flattening nodes in ``scopes``, whose meaning the converter would change.

    Returns:
        The values that new Reshapes read, for :func:`set_allowzero`.
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
        scope.replace_nodes(replaced)
    return flat_values


def set_allowzero(
    nodes: Iterable[onnx.NodeProto],
    new_opset: int,
    flat_values: Set[str],
) -> None:
    """Set ``allowzero`` of the Reshapes of ``flat_values`` if ``new_opset`` has the attribute.

    Without it, a Reshape to the shape of an empty tensor fails.
    """
    if new_opset < FIRST_OPSET_WITH_ALLOWZERO:
        return
    for node in nodes:
        if node.op_type == "Reshape" and node.input[0] in flat_values:
            node.attribute.append(helper.make_attribute("allowzero", 1))


def _is_flattening(node: onnx.NodeProto) -> bool:
    return node.op_type in _FLATTENING and not domain_of(node.domain)


def _flattened(node: onnx.NodeProto, rank: int | None, names: Names) -> Sequence[onnx.NodeProto]:
    """Return nodes for ``node`` that mean the same before and since opset 13.

    In the new nodes the operator works on the last axis, where all opsets agree.
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
