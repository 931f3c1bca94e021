"""Rules for operators whose ``axes`` changed: softmaxes, reductions, Squeeze, Pad and Resize."""

from __future__ import annotations

import numpy as np
from onnx import helper

from .obstacles import ObstacleError
from .signature_fit import fit_to_older_signature
from .step import Rewritten, VersionStep

#: Reductions for which the older version can be an Identity if there are no axes.
_IDENTITY_WITHOUT_AXES = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")


def move_axis_last(step: VersionStep) -> Rewritten:
    """Make ``axis`` the last axis: before opset 13 the axes from ``axis`` on are flattened."""
    node = step.node
    axis = step.attribute("axis", -1)
    rank = step.input_rank(0)
    step.set_attributes(axis=-1)
    if axis == -1 or axis + 1 == rank:
        return [node]
    if rank is not None:
        return _transposed_softmax(step, axis, rank)
    if node.op_type == "Hardmax":
        expected = f"-1 before opset {step.since}, as the rank of the input is not known"
        raise ObstacleError("axis", str(axis), expected)
    return _softmax_by_definition(step, axis)


def _transposed_softmax(step: VersionStep, axis: int, rank: int) -> Rewritten:
    """Swap ``axis`` and the last axis before and after the operator."""
    node = step.node
    e = step.expressions()
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    swapped = e.transpose(e.input(node.input[0]), order)
    result = e.op(node.op_type, swapped, axis=-1)
    return e.finish(e.transpose(result, order), node.output[0])


def _softmax_by_definition(step: VersionStep, axis: int) -> Rewritten:
    """Write the basic operators that compute a Softmax or LogSoftmax, for any rank."""
    node = step.node
    e = step.expressions()
    value = e.input(node.input[0])
    shifted = value - e.op("ReduceMax", value, axes=[axis])
    powers = e.op("Exp", shifted)
    total = e.sum(powers, axis)
    result = powers / total if node.op_type == "Softmax" else shifted - e.op("Log", total)
    return e.finish(result, node.output[0])


def write_reduced_axes(step: VersionStep) -> Rewritten:
    """Write the axes of a reduction as an attribute."""
    node = step.node
    is_noop_without_axes = bool(step.attribute("noop_with_empty_axes", 0))
    axes = step.constant_integers(1) if step.input(1) else []
    step.remove_attributes("noop_with_empty_axes")
    step.truncate_inputs(1)
    if axes:
        step.set_attributes(axes=axes)
    elif is_noop_without_axes:
        if node.op_type not in _IDENTITY_WITHOUT_AXES:
            raise step.obstacle("noop_with_empty_axes", 1)
        return [helper.make_node("Identity", node.input, node.output)]
    return [node]


def write_squeezed_axes(step: VersionStep) -> Rewritten:
    """Write the axes of a Squeeze or Unsqueeze as an attribute."""
    if step.input(1):
        step.set_attributes(axes=step.constant_integers(1))
    step.truncate_inputs(1)
    return fit_to_older_signature(step)


def _positive_axes(step: VersionStep, axes: list[int]) -> tuple[list[int], int]:
    """Return ``axes`` as non-negative numbers, and the rank of the first input.

    Raises:
        ObstacleError: the rank is not known.
    """
    rank = step.input_rank(0)
    if rank is None:
        expected = f"none before opset {step.since}, as the rank of the input is not known"
        raise ObstacleError("axes", str(axes), expected, verb="are")
    return [axis % rank for axis in axes], rank


def pad_all_axes(step: VersionStep) -> Rewritten:
    """Write pads for all axes: the older Pad has no input ``axes``."""
    if not step.input(3):
        return fit_to_older_signature(step)
    node = step.node
    axes, rank = _positive_axes(step, step.constant_integers(3))
    e = step.expressions()
    pads = step.constant_input(1)
    positions = [*axes, *(axis + rank for axis in axes)]
    all_pads = np.zeros(2 * rank, np.int64)
    if pads is not None:
        all_pads[positions] = pads.ravel()
        node.input[1] = e.name_of(e.constant(all_pads))
    else:
        zeros = e.constant(all_pads)
        scattered = e.op("ScatterElements", zeros, e.row(*positions), e.input(node.input[1]))
        node.input[1] = e.name_of(scattered)
    step.truncate_inputs(3)
    e.node(node)
    return e.finish_all()


def resize_all_axes(step: VersionStep) -> Rewritten:
    """Write scales or sizes for all axes: the older Resize has no attribute ``axes``."""
    node = step.node
    axes = step.attribute("axes")
    has_sizes = _has_elements(step, 3)
    if not has_sizes:
        step.remove_attributes("keep_aspect_ratio_policy")  # it applies to sizes only
    if axes is None:
        return fit_to_older_signature(step)
    axes, rank = _positive_axes(step, axes)
    if axes == list(range(rank)):
        step.remove_attributes("axes")
        return fit_to_older_signature(step)
    is_cropped = step.attribute("coordinate_transformation_mode") == b"tf_crop_and_resize"
    if is_cropped and step.input(1):
        raise step.obstacle("axes", axes, verb="are")
    step.remove_attributes("axes")
    # This raises an error for other attributes that the older version lacks.
    fit_to_older_signature(step)
    e = step.expressions()
    scales = step.constant_input(2)
    positions = e.row(*axes)
    if has_sizes:
        sizes = e.shape_of(e.input(node.input[0]))
        all_sizes = e.op("ScatterElements", sizes, positions, e.input(node.input[3]))
        node.input[3] = e.name_of(all_sizes)
    elif scales is not None:
        known_scales = np.ones(rank, np.float32)
        known_scales[axes] = scales.ravel()
        node.input[2] = e.name_of(e.constant(known_scales, "float32"))
    else:
        ones = e.constant(np.ones(rank), "float32")
        all_scales = e.op("ScatterElements", ones, positions, e.input(node.input[2]))
        node.input[2] = e.name_of(all_scales)
    e.node(node)
    return e.finish_all()


def _has_elements(step: VersionStep, input_index: int) -> bool:
    """Whether an input is given, and not a constant without elements, which counts as left out."""
    value = step.constant_input(input_index)
    return bool(step.input(input_index)) and (value is None or value.size > 0)
