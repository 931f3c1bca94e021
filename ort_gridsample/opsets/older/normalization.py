"""Rules for normalizations, which become basic operators.

ONNX's own bodies compute the variance as a difference of squares, which loses the digits that large
means have. The rules compute it from differences to the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ... import spec
from ...graph.element_types import elem_type
from ...graph.expressions import Tensor
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
    e = step.expressions()
    value = e.input(node.input[0], types.input).astype(types.computed)
    normalized = _normalize(step, value, axes)
    result = normalized.result.astype(types.input) * e.input(node.input[1])
    if step.input(2):
        result = result + e.input(node.input[2])
    values = (result, normalized.mean, normalized.inverse_deviation)
    pairs = zip(node.output, values, strict=False)
    return e.finish_all({output: value for output, value in pairs if output})


def expand_rms_normalization(step: VersionStep) -> Rewritten:
    """Write the operators that compute an RMSNormalization."""
    node = step.node
    types = _Types.of(step)
    axes = _last_axes(step)
    e = step.expressions()
    value = e.input(node.input[0], types.input).astype(types.computed)
    mean = e.op("ReduceMean", value * value, e.row(*axes))
    root = e.sqrt(mean + _epsilon(step, types.computed))
    result = (value / root).astype(types.input) * e.input(node.input[1])
    return e.finish(result, node.output[0])


def expand_group_normalization(step: VersionStep) -> Rewritten:
    """Write the operators that compute a GroupNormalization."""
    node = step.node
    types = _Types.of(step)
    e = step.expressions()
    value = e.input(node.input[0], types.input)
    shape = e.shape_of(value)
    grouped = e.op("Reshape", value, e.row(0, step.attribute("num_groups"), -1))
    normalized = _normalize(step, grouped.astype(types.computed), [2])
    result = normalized.result.astype(types.input)
    if step.since >= _FIRST_OPSET_WITH_FACTORS_PER_CHANNEL:
        channels = e.slice(shape, e.row(0), e.row(2))
        result = e.op("Reshape", result, e.shape([channels, -1]))
    factor, offset = (e.op("Reshape", e.input(name), e.row(1, -1, 1)) for name in node.input[1:3])
    return e.finish(e.op("Reshape", result * factor + offset, shape), node.output[0])


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
    """The values that a normalization computes.

    Attributes:
        result: the normalized value.
        mean: its mean.
        inverse_deviation: 1 / its standard deviation.
    """

    result: Tensor
    mean: Tensor
    inverse_deviation: Tensor


def _normalize(step: VersionStep, value: Tensor, axes: list[int]) -> _Normalized:
    """Return the normalization of ``value`` over ``axes``."""
    e = value.owner

    def mean_of(x: Tensor) -> Tensor:
        if e.opset >= _FIRST_OPSET_WITH_AXES_OF_REDUCE_MEAN_AS_INPUT:
            return e.op("ReduceMean", x, e.row(*axes))
        return e.op("ReduceMean", x, axes=axes)

    mean = mean_of(value)
    deviation = value - mean
    root = e.sqrt(mean_of(deviation * deviation) + _epsilon(step, value.type))
    inverse_deviation = e.op("Reciprocal", root)
    return _Normalized(deviation * inverse_deviation, mean, inverse_deviation)


def _epsilon(step: VersionStep, type_name: str) -> float:
    """Return the epsilon of a normalization that computes in ``type_name``.

    Raises:
        ObstacleError: NumPy has no such type.
    """
    if type_name == "bfloat16":
        raise step.obstacle("stash_type", elem_type(type_name))
    return float(step.attribute("epsilon", 1e-5))
