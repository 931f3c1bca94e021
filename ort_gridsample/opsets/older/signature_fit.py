"""Keep a node in an older opset if the older version of its operator computes the same."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import defs, helper

from ..schema_functions import has_default_value, schema_of
from .obstacles import ObstacleError, value_text
from .step import VersionStep

#: Operator and attribute -> value -> the first opset with this value, if newer than the attribute.
_FIRST_OPSETS_OF_VALUES: dict[tuple[str, str], dict[bytes, int]] = {
    ("Pad", "mode"): {b"wrap": 19},
    ("Resize", "coordinate_transformation_mode"): {b"half_pixel_symmetric": 19},
    ("ScatterElements", "reduction"): {b"min": 18, b"max": 18},
    ("ScatterND", "reduction"): {b"min": 18, b"max": 18},
}
#: Operators and the versions that changed their meaning, but not their signature.
_CHANGED_MEANING = {("Attention", 24), ("Attention", 25)}


def fit_to_older_signature(step: VersionStep) -> list[onnx.NodeProto]:
    """Change the node of ``step`` to the signature of the older version of its operator.

    Returns:
        The node, in a list.

    Raises:
        ObstacleError: the older version does not compute the same.
    """
    node = step.node
    older = schema_of(node.op_type, step.since - 1)
    newer = schema_of(node.op_type, step.since)
    is_changed = (node.op_type, step.since) in _CHANGED_MEANING
    if older is None or older.deprecated or newer is None or is_changed:
        expected = f"at least {step.since}, which has this {node.op_type}"
        raise ObstacleError("opset", str(step.context.new_opset), expected)
    _convert_attributes(step, older, newer)
    _write_changed_defaults(node, older, newer)
    _check_count(step, "input", node.input, older.inputs)
    _check_count(step, "output", node.output, older.outputs)
    return [node]


def _convert_attributes(step: VersionStep, older: defs.OpSchema, newer: defs.OpSchema) -> None:
    """Remove attributes that ``older`` lacks.

    Raises:
        ObstacleError: such an attribute has an effect, or ``older`` lacks the value of another.
    """
    node = step.node
    for attribute in list(node.attribute):
        value = helper.get_attribute_value(attribute)
        if attribute.name not in older.attributes:
            if not has_default_value(attribute, newer, default_dilation=1):
                raise step.obstacle(attribute.name, value_text(value))
            node.attribute.remove(attribute)
            continue
        first_opsets = _FIRST_OPSETS_OF_VALUES.get((node.op_type, attribute.name))
        if first_opsets and first_opsets.get(value, 0) >= step.since:
            raise step.obstacle(attribute.name, value_text(value))


def _write_changed_defaults(
    node: onnx.NodeProto,
    older: defs.OpSchema,
    newer: defs.OpSchema,
) -> None:
    """Write the default of each attribute that ``node`` lacks and that has another default now."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in older.attributes.items():
        if name in given or name not in newer.attributes:
            continue
        default = newer.attributes[name].default_value
        if default.name and default != attribute.default_value:
            node.attribute.add().CopyFrom(default)


def _check_count(step: VersionStep, kind: str, values: Any, parameters: Any) -> None:
    """Check the inputs or outputs of a node, and remove trailing empty names.

    Raises:
        ObstacleError: the older version has fewer, or requires one that is left out.
    """
    option = defs.OpSchema.FormalParameterOption
    while len(values) and not values[-1]:
        del values[-1]
    is_variadic = bool(parameters) and parameters[-1].option == option.Variadic
    if len(values) > len(parameters) and not is_variadic:
        extra = values[len(parameters)]
        expected = f"nothing before opset {step.since}"
        raise ObstacleError(f"{kind} {len(parameters)}", extra, expected)
    for index, parameter in enumerate(parameters):
        is_given = index < len(values) and bool(values[index])
        if parameter.option == option.Single and not is_given:
            raise ObstacleError(parameter.name, "left out", f"a value before opset {step.since}")
