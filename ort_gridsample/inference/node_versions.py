"""The versions of ONNX operators: whether a node of one opset can be read in another one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from ..graph.scope import graphs_of

#: Operators with an input since opset 13 that was an attribute before. The value is the name of the
#: attribute.
_INPUT_SINCE_13 = {"ReduceSum": "axes", "Split": "split", "Squeeze": "axes", "Unsqueeze": "axes"}


def nodes_in_opset(
    node: onnx.NodeProto,
    old_opset: int,
    new_opset: int,
    new_name: Callable[[str, str], str],
) -> list[onnx.NodeProto] | None:
    """Return nodes of ``new_opset`` that are equivalent to a node of ``old_opset``.

    Args:
        node: the node, which is not changed. It may be one of the nodes that are returned.
        old_opset: the opset of the node.
        new_opset: the opset of the nodes to return.
        new_name: returns a name that the graph does not have, made of a name and a suffix.

    Returns:
        The nodes, last first. None if no equivalent nodes are known.
    """
    if node.domain:
        return [node]
    if is_same_version(node.op_type, old_opset, new_opset):
        return [node]
    # If, Loop and Scan have several versions only because these differ in the types that they
    # allow.
    has_graphs = any(True for _ in graphs_of(node))
    if has_graphs or _means_the_same_in_newer(node, old_opset, new_opset):
        return [node]
    if old_opset < 13 <= new_opset and node.op_type in _INPUT_SINCE_13:
        return _with_attribute_as_input(node, _INPUT_SINCE_13[node.op_type], new_name)
    return None


def is_same_version(op_type: str, opset: int, other_opset: int) -> bool:
    """Whether an ONNX operator has not changed between two opsets."""
    return opset == other_opset or (
        _since_version(op_type, opset) == _since_version(op_type, other_opset)
    )


def _with_attribute_as_input(
    node: onnx.NodeProto,
    name: str,
    new_name: Callable[[str, str], str],
) -> list[onnx.NodeProto]:
    """Return ``node`` and, if it has the attribute ``name``, a Constant of it as second input."""
    written = onnx.NodeProto()
    written.CopyFrom(node)
    del written.attribute[:]
    del written.input[1:]
    integers: list[int] | None = None
    for attribute in node.attribute:
        if attribute.name != name:
            written.attribute.append(attribute)
        elif integers is None:
            integers = list(attribute.ints)
    if integers is None:
        return [written]
    constant = new_name(node.output[0], name)
    written.input.append(constant)
    value = numpy_helper.from_array(np.array(integers, np.int64))
    return [written, helper.make_node("Constant", [], [constant], value=value)]


def _means_the_same_in_newer(node: onnx.NodeProto, old_opset: int, new_opset: int) -> bool:
    """Whether ``node`` of ``old_opset`` has the same meaning in ``new_opset``, a newer one.

    The operator may have more features there.
    """
    if old_opset > new_opset or not _since_version(node.op_type, old_opset):
        return False
    old = defs.get_schema(node.op_type, old_opset, "")
    new = defs.get_schema(node.op_type, new_opset, "")
    if len(node.output) > new.max_output or len(node.input) > new.max_input:
        return False
    new_inputs = new.inputs[: len(old.inputs)]
    if [formal.option for formal in old.inputs] != [formal.option for formal in new_inputs]:
        return False
    return all(
        name in new.attributes
        and attribute.type == new.attributes[name].type
        and attribute.default_value == new.attributes[name].default_value
        for name, attribute in old.attributes.items()
    )


@lru_cache
def _since_version(op_type: str, opset: int) -> int:
    """Return the opset of the newest change of an ONNX operator up to ``opset``. 0: it has none."""
    try:
        return int(defs.get_schema(op_type, opset, "").since_version)
    except (defs.SchemaError, TypeError):  # TypeError: the name is not UTF-8
        return 0
