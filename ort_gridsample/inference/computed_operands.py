"""Nodes whose shapes, or whose elements as lengths, onnx infers wrongly.

The slice contains such nodes in a form that lets onnx infer less, and nothing wrong:

- onnx treats axes and steps of unknown type or rank as if the node omitted them. A Slice of other
  axes then cuts the first ones. In arithmetic on lengths, an unknown start of a Slice is 0.
- onnx assumes that a Cast keeps lengths, which is false for bool and for short integers.
- Squeeze with an empty list of axes removes all axes of length 1 in onnxruntime, and none in onnx.
- onnxruntime reads the greatest int32 and int64 as the end of a Slice in the direction of its step,
  onnx as a number.
- The two round the lengths of some pools and transposed convolutions differently, and onnx drops
  the axes of a ConvTranspose to an ``output_shape`` that is shorter than the input.
- onnxruntime multiplies lengths with the scales of a Resize in float32, onnx in higher precision.
- The values that a Loop stacks have lengths of 0 in onnxruntime, and not in onnx, if it does not
  iterate.
- NonZero of a scalar returns one row in onnxruntime, and none in onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..graph.placeholders import is_placeholder
from .instances import InstanceNode
from .light_attributes import resolved_attributes
from .views import OPEN_ENDS

#: A Cast to one of these types keeps a length, and the -1 of a Reshape.
LENGTH_TYPES = (TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE)
#: Operators -> the operands from which onnx infers a shape, by their index, if the node has them.
_SHAPE_OPERANDS = {"Pad": (1, 3), "Slice": (1, 2, 3, 4), "Squeeze": (1,)}
#: The number of operands after the first one that these nodes need.
_N_REQUIRED = {"Pad": 1, "Slice": 2, "Squeeze": 1}


def nodes_for_inference(
    node: InstanceNode, unknown_integers: Callable[[], str], new_name: Callable[[str, str], str]
) -> Sequence[onnx.NodeProto]:
    """Return the nodes of the slice for ``node``, last first; none if it needs no other form.

    Args:
        node: a node of one of :data:`OPERATORS`.
        unknown_integers: returns the name of a 1-D value whose elements are unknown.
        new_name: returns a name that the slice does not have, made of a name and a suffix.
    """
    rewrite = _REWRITES.get(node.proto.op_type)
    if rewrite is not None:
        return rewrite(node, unknown_integers, new_name)
    shape_node = _node_of_known_operands(node, unknown_integers)
    return () if shape_node is None else [shape_node]


def pads_of_stacked_values(
    node: InstanceNode,
    written: onnx.NodeProto,
    unknown_integers: Callable[[], str],
    new_name: Callable[[str, str], str],
) -> Sequence[onnx.NodeProto]:
    """Return Pads of the values that a Loop stacks, unless it certainly iterates.

    Args:
        node: a Loop.
        written: its node in the slice, whose outputs get other names.
        unknown_integers: as above.
        new_name: as above.
    """
    constants = [node.instance.find_constant(name) for name in node.proto.input[:2]]
    iterates = [
        not name or (tensor is not None and any(number > 0 for number in _integers(tensor)))
        for name, tensor in zip(node.proto.input[:2], constants, strict=True)
    ]
    pads: list[onnx.NodeProto] = []
    n_carried = len(node.proto.input) - 2
    for index, name in enumerate(node.outputs):
        if name and index >= n_carried and not all(iterates):
            stacked = written.output[index] = new_name(name, "stacked")
            pads.append(helper.make_node("Pad", [stacked, unknown_integers()], [name]))
    return pads


def _cast_without_elements(
    node: InstanceNode, unknown_integers: Callable[[], str], new_name: Callable[[str, str], str]
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
    if op_type == "Slice" and _has_open_end_backwards(constants):
        unknown = [unknown_integers()] * 2
        return helper.make_node(op_type, [*node.inputs[:1], *unknown], node.outputs)
    return None


def _has_open_end_backwards(constants: Sequence[TensorProto | None]) -> bool:
    """Whether a Slice has a negative step and an end of :data:`OPEN_ENDS`.

    Args:
        constants: its operands: the starts, the ends, and the axes, the steps or both.
    """
    if len(constants) < 3:
        return False
    ends, steps = (_integers(tensor) for tensor in (constants[1], constants[-1]))
    return min(steps, default=1) < 0 and not OPEN_ENDS.isdisjoint(ends)


def _integers(tensor: TensorProto | None) -> list[int]:
    """Return the elements of a tensor whose data is in the model."""
    if tensor is None or is_placeholder(tensor):
        return []
    return [int(element) for element in numpy_helper.to_array(tensor).ravel()]


def _has_empty_axes(node: InstanceNode, constants: Sequence[TensorProto | None]) -> bool:
    """Whether the list of axes of a Squeeze, a constant or an attribute, is empty."""
    if constants:
        return any(tensor is not None and 0 in tensor.dims for tensor in constants)
    attributes = resolved_attributes(node.proto, node.instance.call_attributes)
    return any(attribute.name == "axes" and not attribute.ints for attribute in attributes)


def _pool_of_unknown_lengths(
    node: InstanceNode, unknown_integers: Callable[[], str], new_name: Callable[[str, str], str]
) -> Sequence[onnx.NodeProto]:
    """Return a pool behind a Pad if onnx may infer other lengths than a run has.

    With ceil_mode, onnxruntime drops a window that begins in the end padding. With SAME paddings,
    some of its kernels do not dilate windows.
    """
    attributes = {
        attribute.name: attribute
        for attribute in resolved_attributes(node.proto, node.instance.call_attributes)
    }
    auto_pad = attributes["auto_pad"].s if "auto_pad" in attributes else b"NOTSET"
    dilates = "dilations" in attributes and any(d != 1 for d in attributes["dilations"].ints)
    rounds_up = "ceil_mode" in attributes and attributes["ceil_mode"].i != 0
    if not rounds_up and not (dilates and auto_pad.startswith(b"SAME")):
        return ()
    return _behind_pad(node, [*attributes.values()], unknown_integers, new_name)


def _transposed_conv_of_unknown_lengths(
    node: InstanceNode, unknown_integers: Callable[[], str], new_name: Callable[[str, str], str]
) -> Sequence[onnx.NodeProto]:
    """Return a ConvTranspose behind a Pad if onnx may infer another shape than a run has."""
    attributes = [*resolved_attributes(node.proto, node.instance.call_attributes)]
    is_other = any(
        attribute.name == "output_shape"
        or (attribute.name == "auto_pad" and attribute.s.startswith(b"SAME"))
        for attribute in attributes
    )
    if not is_other:
        return ()
    kept = [attribute for attribute in attributes if attribute.name != "output_shape"]
    return _behind_pad(node, kept, unknown_integers, new_name)


def _resize_of_unknown_lengths(
    node: InstanceNode, unknown_integers: Callable[[], str], new_name: Callable[[str, str], str]
) -> Sequence[onnx.NodeProto]:
    """Return a Pad, whose output has the rank of the input, for a Resize by inexact scales."""
    constants = [node.instance.find_constant(name) for name in node.proto.input[1:] if name]
    scales = [
        tensor
        for tensor in constants
        if tensor is not None
        and tensor.data_type == TensorProto.FLOAT
        and not is_placeholder(tensor)
    ]
    if all(map(_are_exact, scales)):
        return ()
    return [helper.make_node("Pad", [*node.inputs[:1], unknown_integers()], node.outputs)]


def _are_exact(scales: TensorProto) -> bool:
    """Whether the products of ``scales`` and lengths up to 65536 are exact in float32."""
    mantissas, _ = np.frexp(numpy_helper.to_array(scales))
    return bool(np.all(mantissas * 256 % 1 == 0))


def _behind_pad(
    node: InstanceNode,
    attributes: Sequence[onnx.AttributeProto],
    unknown_integers: Callable[[], str],
    new_name: Callable[[str, str], str],
) -> Sequence[onnx.NodeProto]:
    """Return ``node`` with these attributes, whose first input has the same rank, and new lengths.

    onnx infers the rank of the output, and the channels of a ConvTranspose.
    """
    padded = new_name(node.outputs[0], "padded")
    written = helper.make_node(node.proto.op_type, [padded, *node.inputs[1:]], node.outputs)
    written.attribute.extend(attributes)
    return [written, helper.make_node("Pad", [node.inputs[0], unknown_integers()], [padded])]


def _non_zero_of_unknown_rank(
    node: InstanceNode, unknown_integers: Callable[[], str], new_name: Callable[[str, str], str]
) -> Sequence[onnx.NodeProto]:
    """Return a NonZero whose output has two axes of unknown lengths."""
    rows = new_name(node.outputs[0], "rows")
    return [
        helper.make_node("Pad", [rows, unknown_integers()], node.outputs),
        helper.make_node("NonZero", node.inputs, [rows]),
    ]


_REWRITES = {
    "AveragePool": _pool_of_unknown_lengths,
    "Cast": _cast_without_elements,
    "ConvTranspose": _transposed_conv_of_unknown_lengths,
    "LpPool": _pool_of_unknown_lengths,
    "MaxPool": _pool_of_unknown_lengths,
    "NonZero": _non_zero_of_unknown_rank,
    "Resize": _resize_of_unknown_lengths,
    "Upsample": _resize_of_unknown_lengths,
}
#: The operators whose nodes may need another form.
OPERATORS = _SHAPE_OPERANDS.keys() | _REWRITES.keys()
