"""Rules for operators whose element types changed: casts, quantization, Pow and Mod."""

from __future__ import annotations

from onnx import helper

from ... import spec
from ...graph.element_types import elem_type
from .obstacles import ObstacleError, shape_text
from .signature_fit import fit_to_older_signature
from .step import Rewritten, VersionStep


def replace_by_cast(step: VersionStep) -> Rewritten:
    """Write a Cast to the type of the second input."""
    type_name = step.input_type(1)
    if type_name is None or type_name not in spec.TYPES:
        found = str(type_name or "not known")
        raise ObstacleError(f"the type of {step.input(1)}", found, "a known type for a Cast")
    node = step.node
    return [helper.make_node("Cast", node.input[:1], node.output, to=elem_type(type_name))]


def drop_float8_attributes(step: VersionStep) -> Rewritten:
    """Remove attributes that affect 8-bit floats only: the older opset has no such types."""
    step.remove_attributes("saturate", "round_mode")
    return fit_to_older_signature(step)


def drop_float8e8m0_attribute(step: VersionStep) -> Rewritten:
    """Remove an attribute that affects float8e8m0 only: the older opset has no such type."""
    step.remove_attributes("round_mode")
    return fit_to_older_signature(step)


def drop_axis_of_scalar_scale(step: VersionStep) -> Rewritten:
    """Remove ``axis`` of a (De)QuantizeLinear: the older operator has one scale for all axes."""
    if step.input_rank(1) != 0:
        expected = f"() before opset {step.since}"
        raise ObstacleError("the shape of the scale", shape_text(step.input_shape(1)), expected)
    step.remove_attributes("axis")
    return fit_to_older_signature(step)


def drop_output_dtype(step: VersionStep) -> Rewritten:
    """Remove ``output_dtype`` of a (De)QuantizeLinear if the inputs imply the same type."""
    implied = _implied_output_type(step)
    if implied is None or implied not in spec.TYPES:
        return fit_to_older_signature(step)
    if step.attribute("output_dtype", 0) == elem_type(implied):
        step.remove_attributes("output_dtype")
    return fit_to_older_signature(step)


def _implied_output_type(step: VersionStep) -> str | None:
    """Return the type that the output has by the inputs: that of zero point or of the scale."""
    if step.node.op_type != "QuantizeLinear":
        return step.input_type(1)
    return step.input_type(2) if step.input(2) else "uint8"


def cast_exponent(step: VersionStep) -> Rewritten:
    """Cast the exponent to the type of the base."""
    base = step.input_type(0)
    exponent = step.input_type(1)
    if base is None or exponent is None or base == exponent or base not in spec.FLOATS:
        return fit_to_older_signature(step)  # the check of types refuses the node if necessary
    e = step.expressions()
    step.node.input[1] = e.name_of(e.input(step.node.input[1], exponent).astype(base))
    e.node(step.node)
    return e.finish_all()


def check_fmod(step: VersionStep) -> Rewritten:
    """Check ``fmod``, which the older Mod requires for floats."""
    type_name = step.input_type(0)
    if not step.attribute("fmod", 0) and (type_name is None or type_name in spec.FLOATS):
        raise step.obstacle("fmod", 0)
    return fit_to_older_signature(step)
