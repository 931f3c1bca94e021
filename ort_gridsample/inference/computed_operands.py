"""Nodes whose shapes, or whose elements as lengths, onnx infers wrongly.

The slice contains such nodes in a form that lets onnx infer less, and nothing wrong:

- onnx treats axes and steps of unknown type or rank as if the node omitted them. A Slice of other
  axes then cuts the first ones. In arithmetic on lengths, an unknown start of a Slice is 0.
- onnx assumes that a Cast keeps lengths, which is false for bool and for short integers.
- Squeeze with an empty list of axes removes all axes of length 1 in onnxruntime, and none in onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import TensorProto, helper

from .instances import InstanceNode
from .light_attributes import resolved_attributes

#: A Cast to one of these types keeps a length, and the -1 of a Reshape.
LENGTH_TYPES = (TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE)
#: Operators -> the operands from which onnx infers a shape, by their index, if the node has them.
_SHAPE_OPERANDS = {"Pad": (1, 3), "Slice": (1, 2, 3, 4), "Squeeze": (1,)}
#: The number of operands after the first one that these nodes need.
_N_REQUIRED = {"Pad": 1, "Slice": 2, "Squeeze": 1}
#: The operators whose nodes may need another form.
OPERATORS = _SHAPE_OPERANDS.keys() | {"Cast"}


def nodes_for_inference(
    node: InstanceNode, unknown_integers: Callable[[], str], new_name: Callable[[str, str], str]
) -> Sequence[onnx.NodeProto]:
    """Return the nodes of the slice for ``node``, last first; none if it needs no other form.

    Args:
        node: a node of one of :data:`OPERATORS`.
        unknown_integers: returns the name of a 1-D value whose elements are unknown.
        new_name: returns a name that the slice does not have, made of a name and a suffix.
    """
    if node.proto.op_type == "Cast":
        return _cast_without_elements(node, new_name)
    shape_node = _node_of_known_operands(node, unknown_integers)
    return () if shape_node is None else [shape_node]


def _cast_without_elements(
    node: InstanceNode, new_name: Callable[[str, str], str]
) -> Sequence[onnx.NodeProto]:
    """Return a Cast of a Neg for a Cast that may change lengths.

    onnx follows the elements of a shape through a Cast, and not through a Neg.
    """
    attributes = [*resolved_attributes(node.proto, node.instance.call_attributes)]
    if any(attribute.name == "to" and attribute.i in LENGTH_TYPES for attribute in attributes):
        return ()
    negative = new_name(node.outputs[0], "negative")
    cast = helper.make_node("Cast", [negative], node.outputs)
    cast.attribute.extend(attributes)
    return [cast, helper.make_node("Neg", node.inputs, [negative])]


def _node_of_known_operands(
    node: InstanceNode, unknown_integers: Callable[[], str]
) -> onnx.NodeProto | None:
    """Return the node of the slice for a Pad, Slice or Squeeze; None if it needs no other form."""
    op_type = node.proto.op_type
    inputs = node.proto.input
    operands = [
        inputs[index] for index in _SHAPE_OPERANDS[op_type] if index < len(inputs) and inputs[index]
    ]
    constants = [node.instance.find_constant(name) for name in operands]
    if None in constants:
        unknown = [unknown_integers()] * _N_REQUIRED[op_type]
        return helper.make_node(op_type, [*node.inputs[:1], *unknown], node.outputs)
    if op_type == "Squeeze" and _has_empty_axes(node, constants):
        return helper.make_node(op_type, node.inputs[:1], node.outputs)
    return None


def _has_empty_axes(node: InstanceNode, constants: Sequence[TensorProto | None]) -> bool:
    """Whether the list of axes of a Squeeze, a constant or an attribute, is empty."""
    if constants:
        return any(tensor is not None and 0 in tensor.dims for tensor in constants)
    attributes = resolved_attributes(node.proto, node.instance.call_attributes)
    return any(attribute.name == "axes" and not attribute.ints for attribute in attributes)
