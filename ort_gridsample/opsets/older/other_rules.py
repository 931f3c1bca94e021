"""Rules for other operators whose inputs, outputs or attributes changed."""

from __future__ import annotations

from onnx import helper

from ...graph.scope import constant_tensor, graphs_of
from .obstacles import ObstacleError, value_text
from .signature_fit import fit_to_older_signature
from .step import Rewritten, VersionStep

#: Operators that make sequences.
_SEQUENCE_OPS = (
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SplitToSequence",
)
#: The first opsets in which graphs of If and Loop may return sequences, and optional values.
_FIRST_OPSET_OF_KIND = {"sequence_type": 13, "optional_type": 16}


def write_value_as_tensor(step: VersionStep) -> Rewritten:
    """Write the value of a Constant as a tensor."""
    tensor = constant_tensor(step.node)
    if tensor is None or step.attribute("value") is not None:
        return fit_to_older_signature(step)
    del step.node.attribute[:]
    step.set_attributes(value=tensor)
    return [step.node]


def write_omitted_inputs(step: VersionStep) -> Rewritten:
    """Write empty ``roi`` and ``scales`` of a Resize if they are left out."""
    node = step.node
    e = step.expressions()
    inputs = [step.input(input_index) for input_index in range(4)]
    for input_index in (1, 2):
        if not inputs[input_index]:
            inputs[input_index] = e.name_of(e.constant([], "float32"))
    node.input[:] = inputs if inputs[3] else inputs[:3]
    e.node(node)
    return e.finish_all()


def replace_by_identity(step: VersionStep) -> Rewritten:
    """Write an Identity for a Dropout outside of training."""
    node = step.node
    training = step.constant_input(2)
    if step.input(2) and (training is None or bool(training.ravel()[0])):
        expected = f"false before opset {step.since}"
        raise ObstacleError("training_mode", "true or computed", expected)
    if len(node.output) > 1 and node.output[1]:
        expected = f"unused before opset {step.since}"
        raise ObstacleError("the output mask", node.output[1], expected)
    return [helper.make_node("Identity", node.input[:1], node.output[:1])]


def check_unused_statistics(step: VersionStep) -> Rewritten:
    """Check that the statistics, which are computed in training only, are not outputs."""
    if any(step.node.output[1:]):
        raise step.obstacle("the number of outputs", len(step.node.output))
    return fit_to_older_signature(step)


def drop_transformation_mode(step: VersionStep) -> Rewritten:
    """Remove ``coordinate_transformation_mode`` if it is that of the older RoiAlign."""
    mode = step.attribute("coordinate_transformation_mode", b"half_pixel")
    if mode != b"output_half_pixel":
        raise step.obstacle("coordinate_transformation_mode", value_text(mode))
    step.remove_attributes("coordinate_transformation_mode")
    return fit_to_older_signature(step)


def write_dft_axis(step: VersionStep) -> Rewritten:
    """Write the axis of a DFT as an attribute."""
    axis = step.constant_integers(2) if step.input(2) else [-2]
    if step.attribute("inverse", 0) and step.attribute("onesided", 0):
        raise step.obstacle("onesided", 1)
    step.truncate_inputs(2)
    step.set_attributes(axis=axis[0])
    return [step.node]


def check_body_types(step: VersionStep) -> Rewritten:
    """Check that the graphs of an If or Loop return only values that the older operator allows."""
    for _, graph in graphs_of(step.node):
        makers = {name: node.op_type for node in graph.node for name in node.output}
        for value in graph.output:
            kind = value.type.WhichOneof("value")
            if makers.get(value.name) in _SEQUENCE_OPS:
                kind = "sequence_type"
            first_opset = _FIRST_OPSET_OF_KIND.get(kind or "", 0)
            if first_opset >= step.since:
                found = kind.partition("_")[0]
                expected = f"a tensor before opset {first_opset}"
                raise ObstacleError(f"the type of {value.name}", found, expected)
    return fit_to_older_signature(step)
