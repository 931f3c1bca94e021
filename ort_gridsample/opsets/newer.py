"""Rewrite nodes whose meaning onnx's version converter changes on the way to a newer opset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import onnx
from onnx import helper

from ..graph.expressions import Expressions, Tensor
from ..graph.first_opsets import FIRST_OPSET_WITH_ALLOWZERO
from ..graph.new_names import Names
from ..graph.scope import Scope, domain_of
from ..inference.types import Inference
from ..spec import Shape, may_be_empty

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
    new_opset: int,
) -> set[str]:
    """Rewrite the flattening nodes in ``scopes``, whose meaning the converter would change.

    Args:
        inference: the types of the values in ``scopes``.
        names: the names of the model's values and nodes.
        new_opset: the opset to which the model is converted afterwards.

    Returns:
        The values that new Reshapes read, for :func:`set_allowzero`.
    """
    flat_values = set()
    # Inner graphs first: a list of nodes that was rewritten holds copies.
    for scope in reversed(scopes):
        replaced = {}
        for index, node in enumerate(scope.nodes):
            if _is_flattening(node):
                shape = inference.value_in_all_calls(scope, node.input[0]).shape
                nodes = _flattened(node, shape, names, new_opset)
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

    Without it, a Reshape to the shape of an empty tensor fails, or has another shape.
    """
    if new_opset < FIRST_OPSET_WITH_ALLOWZERO:
        return
    for node in nodes:
        if node.op_type == "Reshape" and node.input[0] in flat_values:
            node.attribute.append(helper.make_attribute("allowzero", 1))


def _is_flattening(node: onnx.NodeProto) -> bool:
    return node.op_type in _FLATTENING and not domain_of(node.domain)


def _flattened(
    node: onnx.NodeProto,
    shape: Shape | None,
    names: Names,
    new_opset: int,
) -> Sequence[onnx.NodeProto]:
    """Return nodes for ``node`` that mean the same before and since opset 13.

    In the new nodes the operator works on the last axis, where all opsets agree. In opset 13, a
    tensor of unknown rank must not be empty.

    Args:
        node: a flattening node; not changed.
        shape: the shape of its input, or None if it is unknown.
        names: the names of the model's values and nodes.
        new_opset: the opset to which the nodes are converted afterwards.
    """
    rank = None if shape is None else len(shape)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    if axis == -1 or axis + 1 == rank:
        copy.attribute.append(helper.make_attribute("axis", axis))
        return [copy]
    e = Expressions(node.output[0], new_opset, names=names)
    value = e.input(node.input[0])
    copy.input[0] = e.name_of(e.op("Flatten", value, axis=axis))
    copy.output[0] = names.new(f"{node.output[0]}_flat")
    copy.attribute.append(helper.make_attribute("axis", 1))
    flat = e.node(copy)
    if new_opset < FIRST_OPSET_WITH_ALLOWZERO and shape is not None and may_be_empty(shape):
        flat = _zero_lengths_if_empty(e, flat, len(shape))
    return e.finish(e.op("Reshape", flat, e.shape_of(value)), node.output[0])


def _zero_lengths_if_empty(e: Expressions, flat: Tensor, rank: int) -> Tensor:
    """Return a value of ``rank`` axes with the elements of ``flat``.

    If it is empty, all of its axes have the length 0. A Reshape without ``allowzero`` copies these
    lengths where its shape has a 0.
    """
    column = e.op("Reshape", flat, e.row(-1, *[1] * (rank - 1)))
    has_elements = e.op("Size", flat, type="int64").astype("bool")
    repeats = has_elements.astype("int64") * e.row(*[1] * rank)  # opset 7 has no Expand
    return e.op("Tile", column, repeats)
