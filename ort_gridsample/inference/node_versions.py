"""The versions of ONNX operators: whether a node of one opset can be read in another one."""

from __future__ import annotations

from functools import lru_cache

import onnx
from onnx import defs, helper

from ..graph.scope import subgraphs

#: Operators with an input since opset 13 that was an attribute before. The value is the name of the
#: attribute.
_INPUT_SINCE_13 = {"ReduceSum": "axes", "Split": "split", "Squeeze": "axes", "Unsqueeze": "axes"}


def nodes_in_opset(node: onnx.NodeProto, opset: int, target: int) -> list[onnx.NodeProto] | None:
    """Return nodes of opset ``target`` that are equivalent to a node of ``opset``.

    Returns:
        The nodes, last first. None if no equivalent nodes are known.
    """
    if node.domain or _since_version(node.op_type, opset) == _since_version(node.op_type, target):
        return [node]
    # If, Loop and Scan have several versions only because these differ in the types that they
    # allow.
    has_graphs = any(True for _ in subgraphs(node))
    if has_graphs or _is_read_alike(node, opset, target):
        return [node]
    if opset < 13 <= target and node.op_type in _INPUT_SINCE_13:
        return _with_attribute_as_input(node, _INPUT_SINCE_13[node.op_type])
    return None


def _with_attribute_as_input(node: onnx.NodeProto, name: str) -> list[onnx.NodeProto]:
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
    constant = f"{node.output[0]} {name}"
    written.input.append(constant)
    return [written, helper.make_node("Constant", [], [constant], value_ints=integers)]


def _is_read_alike(node: onnx.NodeProto, opset: int, target: int) -> bool:
    """Whether ``node`` of ``opset`` has the same meaning in a newer opset.

    The operator may have more features there.
    """
    if opset > target or not _since_version(node.op_type, opset):
        return False
    old = defs.get_schema(node.op_type, opset, "")
    new = defs.get_schema(node.op_type, target, "")
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
