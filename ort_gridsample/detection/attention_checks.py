"""Checks of other packages' nodes that are a whole deformable attention, as far as their inputs are known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..dialects.table import AttentionNode
from ..errors import GridSampleError
from ..functions import validation
from ..functions.validation import Dim
from ..inference.types import Value
from ..reference.arrays import Array
from ..spec import FLOATS
from .records import NodeRecord

_INTEGERS = ("int32", "int64")
#: The expected type of the third input of ``com.microsoft::MultiScaleDeformableAttention``.
_NO_DRAFT = (
    "int32 or int64: the operator of this name that onnxruntime's pull request 20184 drafts, with reference points as "
    "third input, is not supported"
)


def check_inputs(record: NodeRecord, contract: AttentionNode) -> None:
    """Check the types and shapes of a node's inputs, as far as they are known.

    Raises:
        GridSampleError: an input contradicts the contract.
    """
    for case in record.cases:
        _Case(record, contract, case).check()


def are_contiguous(lengths: Array, starts: Array) -> bool:
    """Whether levels of these ``lengths`` (L, 2) lie one behind the other."""
    areas = lengths.prod(1, dtype=np.int64)
    return bool(np.array_equal(starts, np.cumsum(areas) - areas))


class _Case:
    """The inputs of a node in one kind of call."""

    def __init__(self, record: NodeRecord, contract: AttentionNode, case: Sequence[Value]) -> None:
        self._where, self._contract = record.where, contract
        self._inputs = dict(zip(contract.inputs, case, strict=True))
        self._constants = record.constants

    def check(self) -> None:
        self._check_types()
        value = self._inputs["value"].shape
        self._check_shape("value", (None, None, None, None), "(B, S, H, D)")
        batch, pixels, heads, _ = value or (None, None, None, None)
        lengths_name = self._contract.inputs[1]
        if self._inputs[lengths_name].shape != ():  # as models state that do not know it
            self._check_shape(lengths_name, (None, 2), "(L, 2)")
        levels = (self._inputs[lengths_name].shape or (None,))[0]
        if self._contract.has_offsets:
            self._check_offsets(batch, heads, levels)
            starts = None
        else:
            self._check_shape("level_start_index", (levels,), "(L,)")
            axes = "(B, Q, H, L, P, 2)"
            self._check_shape("sampling_locations", (batch, None, heads, levels, None, 2), axes)
            weights = self._merged("sampling_locations", (batch, None, heads, levels, None))
            self._check_shape("attention_weights", weights, "(B, Q, H, L, P)")
            starts = self._constants.get("level_start_index")
        lengths = self._constants.get(lengths_name)
        if lengths is not None:
            self._check_pixels(lengths, starts, pixels)

    def _check_types(self) -> None:
        integers = {self._contract.inputs[1], "level_start_index"}
        third = self._inputs.get("level_start_index", Value())
        if self._contract.domains and third.type not in _INTEGERS:
            raise GridSampleError(self._where, "level_start_index", f"of type {third.type or 'unknown'}", _NO_DRAFT)
        for name, value in self._inputs.items():
            allowed = _INTEGERS if name in integers else FLOATS
            if value.type is not None and value.type not in allowed:
                raise GridSampleError(self._where, name, f"of type {value.type}", f"one of {', '.join(allowed)}")

    def _check_shape(self, name: str, expected: Sequence[Dim], axes: str) -> None:
        shape = self._inputs[name].shape
        if shape is None or validation.may_match(shape, expected):
            return
        known = f" = {validation.format_shape(expected)}" if any(isinstance(dim, int) for dim in expected) else ""
        raise GridSampleError(self._where, name, f"of shape {validation.format_shape(shape)}", f"shape {axes}{known}")

    def _merged(self, name: str, expected: Sequence[Dim]) -> list[Dim]:
        """The first lengths of input ``name``, known where its shape or ``expected`` is."""
        shape = self._inputs[name].shape or [None] * len(expected)
        return [dim if isinstance(dim, int) else other for dim, other in zip(expected, shape, strict=False)]

    def _check_offsets(self, batch: Dim, heads: Dim, levels: Dim) -> None:
        self._check_shape("sampling_offsets", (batch, None, heads, None), "(B, Q, H, L·P·2)")
        batch, queries, heads, offsets = self._merged("sampling_offsets", (batch, None, heads, None))
        points: Dim = offsets // 2 if isinstance(offsets, int) else None
        self._check_shape("attention_weights", (batch, queries, heads, points), "(B, Q, H, L·P)")
        batch, queries, heads, points = self._merged("attention_weights", (batch, queries, heads, points))
        self._check_shape("reference_points", (batch, queries, 1, None), "(B, Q, 1, 2·G)")
        coordinates = (self._inputs["reference_points"].shape or (None,))[-1]
        groups = coordinates // 2 if isinstance(coordinates, int) else None
        if isinstance(coordinates, int) and (coordinates % 2 or coordinates == 0):
            self._refuse("reference_points", "a last axis of 2·G coordinates")
        if not isinstance(points, int):
            return
        if isinstance(offsets, int) and offsets % 2:
            self._refuse("sampling_offsets", "a last axis of L·P·2 coordinates")
        if isinstance(levels, int) and (levels == 0 or points % levels):
            self._refuse("attention_weights", f"a last axis of L·P points, as L is {levels}")
        if isinstance(levels, int) and groups and (points // levels) % groups:
            self._refuse("reference_points", f"a number of points G that divides P = {points // levels}")

    def _refuse(self, name: str, expected: str) -> None:
        shape = validation.format_shape(self._inputs[name].shape or ())
        raise GridSampleError(self._where, name, f"of shape {shape}", expected)

    def _check_pixels(self, lengths: Array, starts: Array | None, pixels: Dim) -> None:
        if lengths.min(initial=0) < 0:
            raise GridSampleError(self._where, self._contract.inputs[1], "with a negative length", "nothing negative")
        areas = [math.prod(row) for row in lengths.tolist()]
        name = self._contract.inputs[1]
        if starts is not None and not are_contiguous(lengths, starts):
            name, total = "level_start_index", max(map(sum, zip(starts.tolist(), areas, strict=True)), default=0)
            if starts.min(initial=0) < 0 or (isinstance(pixels, int) and total > pixels):
                raise GridSampleError(self._where, name, str(starts.tolist()), f"levels inside of {pixels} pixels")
        elif isinstance(pixels, int) and sum(areas) != pixels:
            shape = validation.format_shape(self._inputs["value"].shape or ())
            expected = f"those of value, of shape (B, S, H, D) = {shape}, in all levels together"
            raise GridSampleError(self._where, name, f"with {sum(areas)} pixels", expected)
