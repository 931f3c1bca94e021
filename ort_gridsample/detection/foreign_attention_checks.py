"""Checks of other packages' deformable attention nodes, by the shapes that the model states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from ..dialects.table import AttentionSignature
from ..errors import GridSampleError
from ..functions import error_templates as templates
from ..functions import validation
from ..inference.types import TypeAndShape
from ..reference.arrays import Array
from ..spec import FLOATS, Dim
from .records import NodeRecord

_INTEGERS = ("int32", "int64")
#: The expected type of the third input of ``com.microsoft::MultiScaleDeformableAttention``.
_DRAFT_UNSUPPORTED = (
    "int32 or int64: the operator of this name that onnxruntime's pull request 20184 drafts, "
    "with reference points as third input, is not supported"
)


def check_inputs(record: NodeRecord, signature: AttentionSignature) -> None:
    """Check the types and shapes of a node's inputs, as far as they are known.

    Raises:
        GridSampleError: an input is not what the signature allows.
    """
    for case in record.cases:
        _InputCheck(record, signature, case).run()


def are_contiguous(lengths: Array, starts: Array) -> bool:
    """Whether the levels of these ``lengths`` (L, 2) follow each other without gaps."""
    areas = lengths.prod(1, dtype=np.int64)
    return bool(np.array_equal(starts, np.cumsum(areas) - areas))


class _InputCheck:
    """The check of a node's inputs in one kind of call.

    Args:
        signature: the inputs that the node requires.
        case: the types and shapes of the inputs.
    """

    def __init__(
        self, record: NodeRecord, signature: AttentionSignature, case: Sequence[TypeAndShape]
    ) -> None:
        self._where = record.where
        self._signature = signature
        self._lengths_name = signature.lengths_input
        self._inputs = dict(zip(signature.inputs, case, strict=True))
        self._constants = record.constants

    def run(self) -> None:
        """Check the types and shapes. The names of axes are those of :mod:`.attention.layouts`.

        Raises:
            GridSampleError: an input is wrong.
        """
        self._check_types()
        lengths = self._constants.get(self._lengths_name)
        known: dict[str, Dim] = {}
        # The references are compared with the offsets and weights.
        for name in sorted(self._signature.inputs, key=lambda name: name == "reference_points"):
            # Some models declare the shape () for lengths of unknown shape.
            is_undeclared = name == self._lengths_name and self._inputs[name].shape == ()
            if lengths is not None or not is_undeclared:
                self._check_axes(name, known)
        if self._signature.has_offsets:
            self._check_points(known)
        if lengths is not None:
            starts = self._constants.get(self._signature.starts_input)
            self._check_pixels(lengths, starts, known["S"])

    def _check_types(self) -> None:
        """Check the known types of the inputs."""
        starts_input = self._signature.starts_input
        starts = self._inputs.get(starts_input, TypeAndShape())
        if self._signature.is_com_microsoft and starts.type not in _INTEGERS:
            found = f"of type {starts.type or 'unknown'}"
            raise GridSampleError(self._where, starts_input, found, _DRAFT_UNSUPPORTED)
        for name, value in self._inputs.items():
            allowed = _INTEGERS if name in self._signature.integer_inputs else FLOATS
            if value.type is not None and value.type not in allowed:
                raise templates.TYPE_NOT_ALLOWED.error(
                    self._where, argument=name, type=value.type, listed=", ".join(allowed)
                )

    def _check_axes(self, name: str, known: dict[str, Dim]) -> None:
        """Check the known lengths of an input, and add the lengths of its axes.

        Args:
            known: the names of axes -> their lengths as far as they are known, which is updated.
        """
        axes = self._signature.inputs[name].split(", ")
        expected = [int(axis) if axis.isdigit() else _length(axis, known) for axis in axes]
        shape = self._inputs[name].shape
        if shape is not None and not validation.may_match(shape, expected):
            has_numbers = any(isinstance(length, int) for length in expected)
            numbers = f" = {validation.format_shape(expected)}" if has_numbers else ""
            text = f"({axes[0]},)" if len(axes) == 1 else f"({', '.join(axes)})"
            self._refuse(name, f"shape {text}{numbers}")
        for axis, expected_length, length in zip(axes, expected, shape or expected, strict=True):
            known[axis] = expected_length if isinstance(expected_length, int) else length

    def _refuse(self, name: str, expected: str) -> NoReturn:
        shape = validation.format_shape(self._inputs[name].shape or ())
        raise GridSampleError(self._where, name, f"of shape {shape}", expected)

    def _check_points(self, known: Mapping[str, Dim]) -> None:
        """Check the numbers of points of a node that reads reference points and offsets."""
        n_levels = known.get("L")
        n_points = known["L·P"]
        n_offsets = known["L·P·2"]
        n_coordinates = (self._inputs["reference_points"].shape or (None,))[-1]
        n_groups = n_coordinates // 2 if isinstance(n_coordinates, int) else None
        if isinstance(n_coordinates, int) and (n_coordinates % 2 or n_coordinates == 0):
            self._refuse("reference_points", "a last axis of 2·G coordinates")
        if isinstance(n_offsets, int) and n_offsets % 2:
            self._refuse("sampling_offsets", "a last axis of L·P·2 coordinates")
        if not isinstance(n_levels, int):
            return
        if n_levels == 0 or (isinstance(n_points, int) and n_points % n_levels):
            self._refuse("attention_weights", f"a last axis of L·P points, as L is {n_levels}")
        if not isinstance(n_points, int):
            return
        if n_groups and (n_points // n_levels) % n_groups:
            expected_groups = f"a number of points G that divides P = {n_points // n_levels}"
            self._refuse("reference_points", expected_groups)

    def _check_pixels(self, lengths: Array, starts: Array | None, n_pixels: Dim) -> None:
        """Check that the levels have the pixels of ``value``, or fewer if ``starts`` leave gaps."""
        if lengths.min(initial=0) < 0:
            raise templates.LENGTHS_NEGATIVE.error(self._where, argument=self._lengths_name)
        areas = [math.prod(row) for row in lengths.tolist()]
        if starts is not None and not are_contiguous(lengths, starts):
            ends = [start + area for start, area in zip(starts.tolist(), areas, strict=True)]
            is_outside = isinstance(n_pixels, int) and max(ends, default=0) > n_pixels
            if starts.min(initial=0) < 0 or is_outside:
                expected = f"levels inside of {n_pixels} pixels"
                found = str(starts.tolist())
                raise GridSampleError(self._where, self._signature.starts_input, found, expected)
        elif isinstance(n_pixels, int) and sum(areas) != n_pixels:
            raise templates.LEVELS_PIXELS_MISMATCH.error(
                self._where,
                argument=self._lengths_name,
                pixels=sum(areas),
                n_pixels=n_pixels,
                value_shape=validation.format_shape(self._inputs["value"].shape or ()),
            )


def _length(axis: str, known: Mapping[str, Dim]) -> Dim:
    """Return the length of an axis. Without coordinates, ``L·P·2`` is ``L·P``."""
    n_coordinates = known.get(f"{axis}·2")
    if axis not in known and isinstance(n_coordinates, int):
        return n_coordinates // 2
    return known.get(axis)
