"""Checks of other packages' deformable attention nodes, by the shapes that the model states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from ..dialects.table import AttentionSignature
from ..errors import GridSampleError
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
        record: the properties of the node.
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
        self._check_shape("value", (None, None, None, None), "(B, S, H, D)")
        batch, n_pixels, n_heads, _ = self._inputs["value"].shape or (None, None, None, None)
        lengths = self._constants.get(self._lengths_name)
        # Some models declare the shape () for lengths of unknown shape.
        if lengths is not None or self._inputs[self._lengths_name].shape != ():
            self._check_shape(self._lengths_name, (None, 2), "(L, 2)")
        n_levels = (self._inputs[self._lengths_name].shape or (None,))[0]
        if self._signature.has_offsets:
            self._check_offsets(batch, n_heads, n_levels)
        else:
            self._check_locations(batch, n_heads, n_levels)
        if lengths is not None:
            starts = self._constants.get("level_start_index")
            self._check_pixels(lengths, None if self._signature.has_offsets else starts, n_pixels)

    def _check_types(self) -> None:
        """Check the known types of the inputs."""
        starts = self._inputs.get("level_start_index", TypeAndShape())
        if self._signature.is_com_microsoft and starts.type not in _INTEGERS:
            found = f"of type {starts.type or 'unknown'}"
            raise GridSampleError(self._where, "level_start_index", found, _DRAFT_UNSUPPORTED)
        for name, value in self._inputs.items():
            is_integer = name in (self._lengths_name, "level_start_index")
            allowed = _INTEGERS if is_integer else FLOATS
            if value.type is not None and value.type not in allowed:
                expected = f"one of {', '.join(allowed)}"
                raise GridSampleError(self._where, name, f"of type {value.type}", expected)

    def _check_shape(self, name: str, expected: Sequence[Dim], axes: str) -> None:
        """Check the known lengths of an input. ``axes`` names its axes in the error."""
        shape = self._inputs[name].shape
        if shape is None or validation.may_match(shape, expected):
            return
        has_numbers = any(isinstance(length, int) for length in expected)
        numbers = f" = {validation.format_shape(expected)}" if has_numbers else ""
        self._refuse(name, f"shape {axes}{numbers}")

    def _refuse(self, name: str, expected: str) -> NoReturn:
        shape = validation.format_shape(self._inputs[name].shape or ())
        raise GridSampleError(self._where, name, f"of shape {shape}", expected)

    def _merged(self, name: str, expected: Sequence[Dim]) -> list[Dim]:
        """Return the first lengths of an input: the ``expected`` ones, or those of its shape."""
        shape = self._inputs[name].shape or [None] * len(expected)
        pairs = zip(expected, shape, strict=False)
        return [length if isinstance(length, int) else other for length, other in pairs]

    def _check_locations(self, batch: Dim, n_heads: Dim, n_levels: Dim) -> None:
        """Check the inputs of a node that reads locations."""
        self._check_shape("level_start_index", (n_levels,), "(L,)")
        locations = (batch, None, n_heads, n_levels, None, 2)
        self._check_shape("sampling_locations", locations, "(B, Q, H, L, P, 2)")
        weights = self._merged("sampling_locations", (batch, None, n_heads, n_levels, None))
        self._check_shape("attention_weights", weights, "(B, Q, H, L, P)")

    def _check_offsets(self, batch: Dim, n_heads: Dim, n_levels: Dim) -> None:
        """Check the inputs of a node that reads reference points and offsets."""
        expected: Sequence[Dim] = (batch, None, n_heads, None)
        self._check_shape("sampling_offsets", expected, "(B, Q, H, L·P·2)")
        batch, n_queries, n_heads, n_offsets = self._merged("sampling_offsets", expected)
        n_points: Dim = n_offsets // 2 if isinstance(n_offsets, int) else None
        expected = (batch, n_queries, n_heads, n_points)
        self._check_shape("attention_weights", expected, "(B, Q, H, L·P)")
        batch, n_queries, n_heads, n_points = self._merged("attention_weights", expected)
        self._check_shape("reference_points", (batch, n_queries, 1, None), "(B, Q, 1, 2·G)")
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
            found = "a negative length"
            expected = "lengths of at least 0"
            raise GridSampleError(self._where, self._lengths_name, found, expected, verb="contains")
        areas = [math.prod(row) for row in lengths.tolist()]
        if starts is not None and not are_contiguous(lengths, starts):
            ends = [start + area for start, area in zip(starts.tolist(), areas, strict=True)]
            is_outside = isinstance(n_pixels, int) and max(ends, default=0) > n_pixels
            if starts.min(initial=0) < 0 or is_outside:
                expected = f"levels inside of {n_pixels} pixels"
                found = str(starts.tolist())
                raise GridSampleError(self._where, "level_start_index", found, expected)
        elif isinstance(n_pixels, int) and sum(areas) != n_pixels:
            shape = validation.format_shape(self._inputs["value"].shape or ())
            reason = f"the length S of value, which is of shape (B, S, H, D) = {shape}"
            expected = f"{n_pixels} pixels, {reason}"
            found = f"of {sum(areas)} pixels in all levels together"
            raise GridSampleError(self._where, self._lengths_name, found, expected)
