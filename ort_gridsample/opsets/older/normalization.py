"""Rules for normalizations, which become basic operators.

ONNX's own bodies compute the variance as a difference of squares, which loses the digits that large
means have. The rules compute it from differences to the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ... import spec
from ...graph.element_types import elem_type
from ...graph.new_nodes import Nodes
from .obstacles import ObstacleError
from .step import Rewritten, VersionStep

#: The first opset in which ReduceMean reads its axes as an input.
_FIRST_OPSET_WITH_AXES_OF_REDUCE_MEAN_AS_INPUT = 18
#: The first version of GroupNormalization whose factors are per channel. They were per group
#: before.
_FIRST_OPSET_WITH_FACTORS_PER_CHANNEL = 21
#: The first version of GroupNormalization that has the attribute ``stash_type``.
_FIRST_OPSET_WITH_GROUP_STASH_TYPE = 21


@dataclass(frozen=True)
class _Types:
    """The type of a normalization's input, and the type that it computes in."""

    input: str
    computed: str

    @classmethod
    def of(cls, step: VersionStep) -> _Types:
        """Return the types of the node of ``step``.

        Raises:
            ObstacleError: the type of the input is not known.
        """
        input_type = step.input_type(0)
        if input_type is None or input_type not in spec.FLOATS:
            found = str(input_type or "not known")
            raise ObstacleError(f"the type of {step.input(0)}", found, "a known type of floats")
        return cls(input_type, _computed_type(step, input_type))

    def cast_input(self, nodes: Nodes, value: str) -> str:
        """Write a Cast to the type to compute in if necessary; return the name of the result."""
        if self.input == self.computed:
            return value
        return nodes.add("Cast", value, to=elem_type(self.computed))

    def cast_result(self, nodes: Nodes, value: str) -> str:
        """Write a Cast to the type of the input if necessary; return the name of the result."""
        if self.input == self.computed:
            return value
        return nodes.add("Cast", value, to=elem_type(self.input))


def _computed_type(step: VersionStep, input_type: str) -> str:
    """Return the type that a normalization computes in.

    Raises:
        ObstacleError: ``stash_type`` is not a type of floats.
    """
    is_group = step.node.op_type == "GroupNormalization"
    if is_group and step.since < _FIRST_OPSET_WITH_GROUP_STASH_TYPE:
        # It computes in the type of the input. float32 has the range for the squares of halves.
        return "float64" if input_type == "float64" else "float32"
    stash_type = step.attribute("stash_type", 1)
    for name in spec.FLOATS:
        if elem_type(name) == stash_type:
            return name
    raise ObstacleError("stash_type", str(stash_type), "the number of a type of floats")


def expand_layer_normalization(step: VersionStep) -> Rewritten:
    """Write the operators that compute a LayerNormalization."""
    node = step.node
    types = _Types.of(step)
    axes = _last_axes(step)
    nodes = step.new_nodes()
    value = types.cast_input(nodes, node.input[0])
    normalized = _normalize(step, nodes, value, axes, types.computed)
    result = types.cast_result(nodes, normalized.result)
    if step.input(2):
        product = nodes.add("Mul", result, node.input[1])
        nodes.add("Add", product, node.input[2], output=node.output[0])
    else:
        nodes.add("Mul", result, node.input[1], output=node.output[0])
    statistics = (normalized.mean, normalized.inverse_deviation)
    for statistic, output in zip(statistics, node.output[1:], strict=False):
        if output:
            nodes.add("Identity", statistic, output=output)
    return nodes


def expand_rms_normalization(step: VersionStep) -> Rewritten:
    """Write the operators that compute an RMSNormalization."""
    node = step.node
    types = _Types.of(step)
    axes = _last_axes(step)
    nodes = step.new_nodes()
    value = types.cast_input(nodes, node.input[0])
    mean = nodes.add("ReduceMean", nodes.add("Mul", value, value), nodes.row(*axes))
    epsilon = _epsilon(step, nodes, types.computed)
    root = nodes.add("Sqrt", nodes.add("Add", mean, epsilon))
    result = types.cast_result(nodes, nodes.add("Div", value, root))
    nodes.add("Mul", result, node.input[1], output=node.output[0])
    return nodes


def expand_group_normalization(step: VersionStep) -> Rewritten:
    """Write the operators that compute a GroupNormalization."""
    node = step.node
    types = _Types.of(step)
    nodes = step.new_nodes()
    shape = nodes.add("Shape", node.input[0])
    groups = step.attribute("num_groups")
    grouped = nodes.add("Reshape", node.input[0], nodes.row(0, groups, -1))
    value = types.cast_input(nodes, grouped)
    normalized = _normalize(step, nodes, value, [2], types.computed)
    result = types.cast_result(nodes, normalized.result)
    if step.since >= _FIRST_OPSET_WITH_FACTORS_PER_CHANNEL:
        channels = nodes.add("Slice", shape, nodes.row(0), nodes.row(2))
        by_channel = nodes.add("Concat", channels, nodes.row(-1), axis=0)
        result = nodes.add("Reshape", result, by_channel)
    factor = nodes.add("Reshape", node.input[1], nodes.row(1, -1, 1))
    offset = nodes.add("Reshape", node.input[2], nodes.row(1, -1, 1))
    result = nodes.add("Add", nodes.add("Mul", result, factor), offset)
    nodes.add("Reshape", result, shape, output=node.output[0])
    return nodes


def _last_axes(step: VersionStep) -> list[int]:
    """Return the axes from the attribute ``axis`` to the last one, as negative numbers.

    Raises:
        ObstacleError: ``axis`` is not negative, and the rank of the input is not known.
    """
    axis = step.attribute("axis", -1)
    if axis >= 0:
        rank = step.input_rank(0)
        if rank is None:
            expected = "a negative one, as the rank of the input is not known"
            raise ObstacleError("axis", str(axis), expected)
        axis -= rank
    return list(range(axis, 0))


class _Normalized(NamedTuple):
    """The names of the values that a normalization computes.

    Attributes:
        result: the normalized value.
        mean: its mean.
        inverse_deviation: 1 / its standard deviation.
    """

    result: str
    mean: str
    inverse_deviation: str


def _normalize(
    step: VersionStep,
    nodes: Nodes,
    value: str,
    axes: list[int],
    type_name: str,
) -> _Normalized:
    """Write the normalization of ``value`` over ``axes``."""
    written_opset = step.since - 1

    def mean_of(name: str) -> str:
        if written_opset >= _FIRST_OPSET_WITH_AXES_OF_REDUCE_MEAN_AS_INPUT:
            return nodes.add("ReduceMean", name, nodes.row(*axes))
        return nodes.add("ReduceMean", name, axes=axes)

    mean = mean_of(value)
    deviation = nodes.add("Sub", value, mean)
    variance = mean_of(nodes.add("Mul", deviation, deviation))
    epsilon = _epsilon(step, nodes, type_name)
    root = nodes.add("Sqrt", nodes.add("Add", variance, epsilon))
    inverse_deviation = nodes.add("Reciprocal", root)
    return _Normalized(
        result=nodes.add("Mul", deviation, inverse_deviation),
        mean=mean,
        inverse_deviation=inverse_deviation,
    )


def _epsilon(step: VersionStep, nodes: Nodes, type_name: str) -> str:
    """Write the epsilon of a normalization that computes in ``type_name``.

    Raises:
        ObstacleError: NumPy has no such type.
    """
    if type_name == "bfloat16":
        raise step.obstacle("stash_type", elem_type(type_name))
    return nodes.constant(np.array(step.attribute("epsilon", 1e-5), type_name))
