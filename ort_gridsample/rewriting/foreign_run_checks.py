"""Nodes that check the inputs of another package's deformable attention in a run.

The nodes that read an input afterwards must read it through its check
(:func:`~ort_gridsample.graph.run_errors.require_same`). Shapes that the model states are checked by
:mod:`ort_gridsample.detection.foreign_attention_checks` when the model is read.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

import numpy as np

from ..detection.foreign_attention_checks import are_contiguous
from ..functions import error_templates as templates
from ..graph.expressions import DimLike, Tensor
from ..graph.run_errors import require_same, shape_error
from .attention_call import Levels
from .foreign_attention import ForeignAttention


def check_for_package_op(attention: ForeignAttention) -> None:
    """Write the checks for an op of this package.

    The op itself checks pixels, locations and weights. It gets no starts.
    """
    _check_inputs(attention)
    _check_starts(attention)


def check_for_grid_samples(attention: ForeignAttention) -> None:
    """Write the checks for GridSamples, which would read wrong points and pixels without errors."""
    _check_inputs(attention)
    if not attention.signature.has_offsets:
        _check_axes(attention, "sampling_locations", "attention_weights")
    _check_pixels(attention)


def _check_inputs(attention: ForeignAttention) -> None:
    """Write the checks that all readers of the inputs need."""
    _check_ranks(attention)
    _check_lengths(attention)
    if attention.signature.has_offsets:
        # The locations are computed from the offsets, and so no reader can check these.
        _check_axes(attention, "sampling_offsets", "attention_weights", "reference_points")


def _require_same(
    attention: ForeignAttention,
    x: Tensor,
    actual: Tensor,
    expected: Tensor,
    argument: str,
    expectation: str,
) -> Tensor:
    """Return ``x`` after a check of two rows, with an error about the shape of an input."""
    error = shape_error(attention.match.record.where, argument, expectation)
    return require_same(x, actual, expected, error)


def _check_shape(
    attention: ForeignAttention, argument: str, expected: list[DimLike], expectation: str
) -> None:
    """Write a check that the shape of an input is ``expected``."""
    e = attention.e
    shape = e.shape_of(attention.values[argument])
    checked = _require_same(attention, shape, shape, e.shape(expected), argument, expectation)
    attention.read_through_shape(argument, checked)


def _check_ranks(attention: ForeignAttention) -> None:
    """Write checks of unknown ranks, because the other checks read axes by their index."""
    e = attention.e
    signature = attention.signature
    for argument, axes in signature.inputs.items():
        if argument in signature.integer_inputs or attention.shape(argument) is not None:
            continue
        shape = e.shape_of(attention.values[argument])
        ranks = e.shape_of(shape), e.row(axes.count(",") + 1)
        checked = _require_same(attention, shape, *ranks, argument, f"shape ({axes})")
        attention.read_through_shape(argument, checked)


def _check_lengths(attention: ForeignAttention) -> None:
    """Write a check that no length of a level is negative."""
    e = attention.e
    levels = attention.levels
    if levels.known_lengths is not None:
        return
    argument = attention.signature.lengths_input
    error = templates.LENGTHS_NEGATIVE.error(attention.match.record.where, argument=argument)
    flat = e.op("Reshape", levels.lengths, e.row(-1))
    checked = require_same(flat, flat, e.abs(flat), error)
    attention.values[argument] = e.op("Reshape", checked, e.row(-1, 2))


def _check_axes(attention: ForeignAttention, *arguments: str) -> None:
    """Write checks that inputs have the axes of the signature.

    Axes of one name have one length, which is that of the first input with the axis.

    Args:
        arguments: the inputs to check, after ``value``.
    """
    if attention.has_known_lengths("value", *arguments):
        return
    lengths: dict[str, DimLike] = {}
    if attention.signature.has_offsets:
        lengths["L·P·2"] = attention.lengths("attention_weights", 3) * 2
    else:
        lengths["L"] = attention.n_levels
    for argument in ("value", *arguments):
        axes = attention.signature.inputs[argument].split(", ")
        for index, axis in enumerate(axes):
            if axis.isdigit():
                lengths[axis] = int(axis)
            elif axis not in lengths:
                lengths[axis] = attention.lengths(argument, index)
        if argument != "value":
            expected = [lengths[axis] for axis in axes]
            _check_shape(attention, argument, expected, _expected_axes(attention, argument))


def _expected_axes(attention: ForeignAttention, argument: str) -> str:
    """Return what the error of an input with other axes expects."""
    axes = attention.signature.inputs[argument]
    if argument == "reference_points":
        return f"shape ({axes}), of the batch and queries"
    if argument == "attention_weights" and not attention.signature.has_offsets:
        return "all axes but the last of sampling_locations"
    return f"shape ({axes}), as value is of shape (B, S, H, D)"


def _check_starts(attention: ForeignAttention) -> None:
    """Write a check that each level begins where the previous one ends."""
    e = attention.e
    levels = attention.levels
    if levels.starts is None:
        return
    if levels.known_lengths is not None and levels.known_starts is not None:
        return  # checked when the model was read
    expected = e.op("CumSum", levels.areas(), e.constant(0), exclusive=1)
    actual = levels.starts.astype("int64")
    checked = _require_same(
        attention,
        levels.lengths,
        # Their number is compared too: Equal would broadcast the start of a single level.
        e.concatenate([e.shape_of(actual), actual]),
        e.concatenate([e.shape_of(expected), expected]),
        argument=attention.signature.starts_input,
        expectation="the number of pixels before each level",
    )
    attention.values[attention.signature.lengths_input] = e.op("Reshape", checked, e.row(-1, 2))


def _check_pixels(attention: ForeignAttention) -> None:
    """Write a check that the levels are the pixels of ``value``.

    If other starts are constant, the levels must only lie inside these pixels.
    """
    e = attention.e
    levels = attention.levels
    known_end = _known_last_end(levels)
    value_shape = attention.shape("value")
    n_pixels = value_shape[1] if value_shape is not None else None
    if known_end is not None and isinstance(n_pixels, int):
        return  # checked when the model was read
    end = _last_end(levels) if known_end is None else e.row(known_end)
    pixels = attention.lengths("value", 1)
    if _has_known_gaps(levels):
        pixels = e.where(e.less(pixels, end), pixels, end)
    lengths_input = attention.signature.lengths_input
    expectation = f"shape (B, S, H, D), with the S pixels of {lengths_input}"
    shape = e.shape_of(attention.values["value"])
    checked = _require_same(attention, shape, pixels, end, "value", expectation)
    attention.read_through_shape("value", checked)


def _has_known_gaps(levels: Levels) -> bool:
    """Whether lengths and starts are constant, and a level does not follow the previous one."""
    lengths = levels.known_lengths
    starts = levels.known_starts
    return lengths is not None and starts is not None and not are_contiguous(lengths, starts)


def _known_last_end(levels: Levels) -> int | None:
    """Return the first pixel after all levels if lengths and starts are constant."""
    lengths = levels.known_lengths
    starts = levels.known_starts
    if lengths is None or (levels.starts is not None and starts is None):
        return None
    areas = lengths.prod(1, dtype=np.int64)
    if starts is None:
        return int(areas.sum())
    ends = np.asarray(starts + areas, np.int64)
    return max(ends.tolist(), default=0)


def _last_end(levels: Levels) -> Tensor:
    """Return the first pixel after all levels, (1,)."""
    e = levels.lengths.owner
    areas = levels.areas()
    if levels.starts is not None:
        ends = levels.starts.astype("int64") + areas
    else:
        ends = e.op("CumSum", areas, e.constant(0))
    return e.op("Reshape", e.op("ReduceMax", ends, keepdims=0), e.row(1))
