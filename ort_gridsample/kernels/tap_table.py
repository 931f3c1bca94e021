"""The table of the taps of a tile of output positions, for all ranks, modes and paddings.

The table has one row per tap and one column per position: the index of the pixel of flat X that the
tap reads, and the tap's weight. :mod:`.tap_sums` reads the channels of X through this table. Its
layouts, ``GATHERED``, ``MASKED`` and ``CONTIGUOUS``, are defined in :mod:`.simd`.

The taps on an axis are computed in vectors (:mod:`.axis_vectors`), by the formulas of
:mod:`ort_gridsample.reference`. The order of the operations on a coordinate is the same, and no
compiler flag in this module lets the compiler change it.

Names in docstrings and loops:

- ``p``: a position of the tile, 0 ≤ p < P. Arrays of shape (≥ P,) have room for a longer tile.
- ``normalized``: coordinates as in the grid. On each axis, X extends from -1 to 1.
- ``index``: indices of pixels, on one axis or in flat X.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from ..reference.coordinates import unnormalize
from .axis_vectors import (
    FALSE,
    VECTOR_SIZE,
    VectorAxis,
    by_padding,
    moved_inside,
    padded,
    pixels_of_taps,
    taps_of,
    variable,
    vectors_of,
)
from .halves import widened
from .lanes import VECTORS, Lanes
from .llvm_helpers import INT64, ITEMSIZE, array_structs, if_equal, load_vector, store_vector
from .pointers import array_at
from .simd import CONTIGUOUS, GATHERED, MASKED, OUTSIDE_BIT
from .structs import ArrayRef
from .tap_plans import (
    ADJACENT,
    ALWAYS_PADS_TAPS,
    COMPILED_MODE_RULES,
    MOVES_INSIDE,
    TAPS,
    ZERO_OUTSIDE,
    TapPlan,
    plans_of_mode,
)

#: The index of a tap that counts as 0; every other index is a pixel of X.
OUTSIDE = np.uint32(0xFFFFFFFF)
OUTSIDE_INT32 = -1
#: The maximum number of positions of a tile, and of positions times taps: the table stays in the
#: L2 cache.
MAX_TILE_POSITIONS = 2048
MAX_TILE_TAPS = 1 << 14
#: The maximum number of positions of a tile if X has at most FEW_CHANNELS. Computing the table then
#: takes longer than reading it, and 0.9 times as long if the table stays in the L1 cache.
FEW_CHANNELS = 2
MAX_TILE_POSITIONS_OF_FEW_CHANNELS = 512
#: The table's rows are this much longer than a power of two. Otherwise all rows would compete for
#: the same cache lines.
ROW_PADDING = 16

#: The maximum length of an axis on which a rounded coordinate tells exactly which taps are inside.
MAX_NEAR = 1 << 22
#: The number of taps on an axis of each mode.
MODE_TAPS = tuple(TAPS.values())
#: The maximum length of an axis whose pixels all are exact coordinates in float32. In float64, they
#: are exact on every axis.
MAX_EXACT_LENGTH = 1 << 24


class SampledAxis(NamedTuple):
    """An axis of X, with the attributes that decide about its taps."""

    #: The number of pixels.
    length: int
    #: The code of the padding.
    padding: int
    align_corners: bool
    #: The code of the mode.
    mode: int


class TapTable(NamedTuple):
    """A table of taps: R taps of P positions."""

    #: The pixels (R, ≥ P). Only the first row is set unless the layout is GATHERED.
    index: ArrayRef
    #: The weights (R, ≥ P).
    weight: ArrayRef
    #: The distances of contiguous taps to the first (≥ R,), in pixels.
    offsets: ArrayRef
    #: GATHERED, MASKED or CONTIGUOUS.
    layout: int


# --- The taps on one axis ---


@intrinsic
def _write_unpadded_taps(
    typing_context: Any,
    mode: Any,
    length: Any,
    align_corners: Any,
    normalized: Any,
    positions: Any,
    index: Any,
    weight: Any,
) -> Any:
    """Write first taps and weights without padding.

    Args:
        typing_context: Numba's; callers omit it.
        length: the number of pixels of the axis.
        normalized: the normalized coordinates (≥ P + ROW_PADDING,).
        positions: P.
        index: where the first taps are written (1, ≥ P + ROW_PADDING).
        weight: where the weights are written (taps, ≥ P + ROW_PADDING).

    Returns:
        Whether all taps are inside. Otherwise not all are written.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        normalized, index, weight = array_structs(context, builder, arguments, signature.args)
        mode, length, align_corners, _, positions, _, _ = arguments
        writer = _TapsWriter(builder, length, align_corners, normalized, index, weight)
        # Rounded coordinates of longer axes do not tell exactly which taps are inside.
        is_short = builder.icmp_signed("<=", length, INT64(MAX_NEAR))
        result = variable(builder, is_short)
        for code, rule in enumerate(COMPILED_MODE_RULES.values()):
            with if_equal(builder, mode, code):
                lowest = float(-rule.offsets[0])
                highest = writer.axis.numbers.last - rule.offsets[-1]
                with vectors_of(builder, positions, writer.lanes) as vector:
                    begin = vector.begin
                    x = unnormalize(writer.coordinates(begin), writer.axis.numbers)
                    # With taps after the base, coordinates are before the last pixel if these are
                    # inside. Otherwise the last pixel may be that of a coordinate to be padded.
                    end = rule.base(VECTORS, x) if rule.offsets[-1] > 0 else x
                    is_inside = x.is_at_least(lowest) & highest.is_at_least(end)
                    with builder.if_then(builder.not_(is_inside.all()), likely=False):
                        builder.store(FALSE, result)
                        vector.end_loop()
                    taps = taps_of(rule, x, writer.weight_type)
                    writer.write(begin, taps.first, taps.weights)
        return builder.load(result)

    argument_types = (
        types.int64,
        types.int64,
        types.boolean,
        normalized,
        types.int64,
        index,
        weight,
    )
    return types.boolean(*argument_types), generate


@intrinsic
def _write_padded_taps(
    typing_context: Any,
    mode: Any,
    padding: Any,
    length: Any,
    align_corners: Any,
    normalized: Any,
    positions: Any,
    moves_inside: Any,
    index: Any,
    weight: Any,
) -> Any:
    """Write taps and weights with padding.

    Args:
        typing_context: Numba's; callers omit it.
        length: the number of pixels of the axis.
        normalized: the normalized coordinates (≥ P + ROW_PADDING,).
        positions: P.
        moves_inside: whether the taps are moved inside together, and those that were outside are
            masked. Only the first row of ``index`` is written then. The plan of mode and padding
            (:data:`.tap_plans.PLANS`) allows it, and the axis is not shorter than the taps.
            Otherwise the index of each tap is written, OUTSIDE for one that counts as 0.
        index: where the pixels are written (taps, ≥ P + ROW_PADDING).
        weight: where the weights are written (taps, ≥ P + ROW_PADDING).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        normalized, index, weight = array_structs(context, builder, arguments, signature.args)
        mode, padding, length, align_corners, _, positions, moves_inside, _, _ = arguments
        writer = _TapsWriter(builder, length, align_corners, normalized, index, weight)
        for code, rule in enumerate(COMPILED_MODE_RULES.values()):
            plans = plans_of_mode(code)
            with if_equal(builder, mode, code):
                if rule.taps == 1:
                    writer.write_gathered(positions, padding, plans)
                else:
                    with builder.if_else(moves_inside) as (moved, gathered):
                        with moved:
                            writer.write_moved(positions, padding, plans)
                        with gathered:
                            writer.write_gathered(positions, padding, plans)
        return context.get_dummy_value()

    argument_types = (
        types.int64,
        types.int64,
        types.int64,
        types.boolean,
        normalized,
        types.int64,
        types.boolean,
        index,
        weight,
    )
    return types.void(*argument_types), generate


class _TapsWriter:
    """Generate the code that writes the taps of a tile on one axis.

    Args:
        builder: LLVM's.
        length: the number of pixels of the axis, as int64.
        normalized: the normalized coordinates.
        index: where pixels are written.
        weight: where weights are written.

    Attributes:
        axis: the axis.
        lanes: the number of lanes of a vector.
        weight_type: the LLVM type of weights.
    """

    def __init__(
        self,
        builder: Any,
        length: Any,
        align_corners: Any,
        normalized: Any,
        index: Any,
        weight: Any,
    ) -> None:
        self.builder = builder
        self._normalized = normalized
        self._index = index
        self._weight = weight
        self.weight_type = weight.data.type.pointee
        self.lanes = VECTOR_SIZE // ITEMSIZE[str(self.weight_type)]
        assert self.lanes <= ROW_PADDING
        coordinate = normalized.data.type.pointee
        self._vector = ir.VectorType(coordinate, self.lanes)
        self.axis = VectorAxis.of_number(builder, length, align_corners, coordinate, self.lanes)

    def coordinates(self, begin: Any) -> Lanes:
        """Return the normalized coordinates of a vector."""
        builder = self.builder
        pointer = builder.gep(self._normalized.data, [begin])
        return Lanes(builder, load_vector(builder, pointer, self._vector))

    def write(self, begin: Any, first: Lanes, weights: Sequence[Lanes]) -> None:
        """Write the first taps of a vector, and the weights of all."""
        self._write(self._index, 0, begin, first)
        for tap, weight in enumerate(weights):
            self._write(self._weight, tap, begin, weight)

    def write_moved(self, positions: Any, padding: Any, plans: Sequence[TapPlan]) -> None:
        """Write the taps of all positions, moved inside. The weights of masked taps are NaN."""
        builder = self.builder
        with vectors_of(builder, positions, self.lanes) as vector:
            begin = vector.begin
            x = self._padded(begin, padding, plans)
            taps = moved_inside(self.axis, taps_of(plans[0].mode, x, self.weight_type))
            weights = [
                outside.is_less(0).choose(float("nan"), weight)
                for weight, outside in zip(taps.weights, taps.outside, strict=True)
            ]
            self.write(begin, taps.first, weights)

    def write_gathered(self, positions: Any, padding: Any, plans: Sequence[TapPlan]) -> None:
        """Write the index of each tap, and the weights, of all positions."""
        builder = self.builder
        with vectors_of(builder, positions, self.lanes) as vector:
            begin = vector.begin
            x = self._padded(begin, padding, plans)
            taps = taps_of(plans[0].mode, x, self.weight_type)

            def emit(plan: TapPlan) -> list[Any]:
                pixels = pixels_of_taps(plan, self.axis, taps.base, are_near=False)
                return [counts.choose(pixel, OUTSIDE_INT32).value for pixel, counts in pixels]

            pixels = by_padding(builder, padding, plans, emit)
            for tap, pixel in enumerate(pixels):
                self._write(self._index, tap, begin, Lanes(builder, pixel))
            for tap, weight in enumerate(taps.weights):
                self._write(self._weight, tap, begin, weight)

    def _padded(self, begin: Any, padding: Any, plans: Sequence[TapPlan]) -> Lanes:
        """Return the pixel coordinates of a vector, padded unless only taps are."""
        normalized = self.coordinates(begin)
        (value,) = by_padding(
            self.builder,
            padding,
            plans,
            lambda plan: [padded(plan, self.axis, normalized).value],
        )
        return Lanes(self.builder, value)

    def _write(self, array: Any, row: int, begin: Any, values: Lanes) -> None:
        """Write a vector to a row of an array, from the column ``begin`` on."""
        builder = self.builder
        columns = cgutils.unpack_tuple(builder, array.shape)[1]
        entry = builder.add(builder.mul(INT64(row), columns), begin)
        store_vector(builder, values.value, builder.gep(array.data, [entry]))


@register_jitable
def are_adjacent(mode: int, padding: int) -> bool:
    """Whether nearly all taps on an axis are adjacent pixels."""
    return (ADJACENT[mode] >> padding) & 1 != 0


@register_jitable
def moves_inside(mode: int, padding: int) -> bool:
    """Whether taps that are partly outside are moved inside together."""
    return (MOVES_INSIDE[mode] >> padding) & 1 != 0


@register_jitable
def _can_mask(axis: Any, coordinates: ArrayRef) -> bool:
    """Whether the taps on an axis can be MASKED, given the array of their coordinates.

    A coordinate that is padded may be the last pixel. In float32, that pixel of a long axis may be
    rounded to a neighbor.
    """
    is_exact = coordinates.itemsize > 4 or axis.length <= MAX_EXACT_LENGTH
    return (
        axis.length >= MODE_TAPS[axis.mode]
        and MODE_TAPS[axis.mode] > 1
        and moves_inside(axis.mode, axis.padding)
        and (is_exact or ALWAYS_PADS_TAPS[axis.mode])
    )


@register_jitable
def compute_axis_taps(
    axis: Any,
    normalized: ArrayRef,
    positions: int,
    index: ArrayRef,
    weight: ArrayRef,
    may_mask: bool,
) -> int:
    """Compute the taps of a tile on one axis.

    Args:
        axis: the :class:`SampledAxis`.
        normalized: the normalized coordinates (≥ P + ROW_PADDING,). Those after the first P are
            overwritten.
        positions: P.
        index: where the taps' pixels are written (taps, ≥ P + ROW_PADDING). Only the first row is
            written unless the layout is GATHERED.
        weight: where the weights are written (taps, ≥ P + ROW_PADDING).
        may_mask: whether the layout may be MASKED.

    Returns:
        The layout of the taps. If all are inside it is CONTIGUOUS. One tap is CONTIGUOUS, or
        GATHERED if it may be outside and count as 0. Several taps are MASKED if masks are allowed
        and :func:`_can_mask`, otherwise GATHERED.
    """
    # The last vector has columns after the last position, whose taps must not be outside if those
    # of all positions are inside.
    for p in range(positions, positions + ROW_PADDING):
        normalized[p] = normalized[0]
    mode = axis.mode
    length = axis.length
    align_corners = axis.align_corners
    if _write_unpadded_taps(mode, length, align_corners, normalized, positions, index, weight):
        return CONTIGUOUS
    moves_inside = may_mask and _can_mask(axis, normalized)
    _write_padded_taps(
        mode,
        axis.padding,
        length,
        align_corners,
        normalized,
        positions,
        moves_inside,
        index,
        weight,
    )
    if MODE_TAPS[mode] == 1:
        return GATHERED if ZERO_OUTSIDE[axis.padding] else CONTIGUOUS
    return MASKED if moves_inside else GATHERED


@register_jitable
def split_axes(grid: ArrayRef, normalized: ArrayRef) -> None:
    """Copy the coordinates of each axis of a grid to a row of their own.

    The loops for 2 and 3 axes are vectorized.

    Args:
        grid: the grid (P, r), in its stored type. It lists the innermost axis first. The bits of
            halves are converted.
        normalized: where the coordinates are written (r, ≥ P), the outermost axis first.
    """
    positions, r = grid.shape
    flat = array_at(np.int64(grid.ctypes.data), (positions * r,), grid.dtype)
    # Unsigned indices, because Numba checks whether a signed index counts from the end.
    first = np.uint64(0)
    second = np.uint64(1)
    third = np.uint64(2)
    step = np.uint64(r)
    if r == 2:
        outer = normalized[0]
        inner = normalized[1]
        for p in range(positions):
            entry = np.uint64(2) * np.uint64(p)
            inner_value = widened(flat[entry + first])
            outer_value = widened(flat[entry + second])
            inner[p] = inner_value
            outer[p] = outer_value
    elif r == 3:
        outer = normalized[0]
        middle = normalized[1]
        inner = normalized[2]
        for p in range(positions):
            entry = np.uint64(3) * np.uint64(p)
            inner_value = widened(flat[entry + first])
            middle_value = widened(flat[entry + second])
            outer_value = widened(flat[entry + third])
            inner[p] = inner_value
            middle[p] = middle_value
            outer[p] = outer_value
    else:
        for axis in range(r):
            row = normalized[axis]
            offset = np.uint64(r - 1 - axis)
            for p in range(positions):
                row[p] = widened(flat[step * np.uint64(p) + offset])


# --- The taps on several axes ---


@register_jitable
def convert_to_gathered(table: Any, positions: int) -> None:
    """Convert the arrays of a :class:`TapTable` of contiguous taps to the layout GATHERED.

    Args:
        table: the table. All rows of its index are written. Weights of masked taps become 0.
        positions: P.
    """
    index = table.index
    weight = table.weight
    first = index[0]
    for row in range(len(index) - 1, -1, -1):
        row_index = index[row]
        offset = np.uint32(table.offsets[row])
        for p in range(positions):
            row_index[p] = first[p] + offset
    if table.layout == MASKED:
        for row in range(len(index)):
            row_index = index[row]
            row_weight = weight[row]
            for p in range(positions):
                is_masked = np.isnan(row_weight[p])
                row_index[p] = OUTSIDE if is_masked else row_index[p]
                row_weight[p] = 0 if is_masked else row_weight[p]


@register_jitable
def combine_taps(
    outer: Any,
    inner: Any,
    length: int,
    positions: int,
    new_index: ArrayRef,
    new_weight: ArrayRef,
) -> int:
    """Combine every tap of a table with every tap of an inner axis.

    Args:
        outer: the :class:`TapTable` so far, of R taps. Its offsets (≥ R · T,) are replaced by those
            of the new table.
        inner: the :class:`TapTable` of the inner axis, of T taps. It has the same array of offsets,
            whose values are those of ``outer``.
        length: the length of the inner axis.
        positions: P.
        new_index: where the pixels of the new table are written (R · T, ≥ P).
        new_weight: where the weights of the new table are written (R · T, ≥ P), if T > 1.

    Returns:
        The layout of the new table.
    """
    offsets = outer.offsets
    rows = len(outer.index)
    n_inner_taps = len(inner.index)
    # A table is gathered if the taps on any axis are, and masked if any are masked.
    new_layout = min(outer.layout, inner.layout)
    if new_layout == GATHERED and outer.layout != GATHERED:
        convert_to_gathered(outer, positions)
    for row in range(rows - 1, -1, -1):
        offset = offsets[row] * length
        for tap in range(n_inner_taps - 1, -1, -1):
            offsets[row * n_inner_taps + tap] = offset + tap
    if new_layout == GATHERED and inner.layout != GATHERED:
        # The offsets of the first row's taps are those on the inner axis.
        convert_to_gathered(inner, positions)
    stride = np.uint32(length)
    if new_layout != GATHERED:
        outer_pixels = outer.index[0]
        inner_pixels = inner.index[0]
        new_row = new_index[0]
        for p in range(positions):
            new_row[p] = outer_pixels[p] * stride + inner_pixels[p]
    for row in range(rows):
        outer_pixels = outer.index[row]
        outer_weight = outer.weight[row]
        for tap in range(n_inner_taps):
            if new_layout == GATHERED:
                inner_pixels = inner.index[tap]
                new_row = new_index[row * n_inner_taps + tap]
                for p in range(positions):
                    is_outside = (outer_pixels[p] | inner_pixels[p]) >= OUTSIDE_BIT
                    pixel = outer_pixels[p] * stride + inner_pixels[p]
                    new_row[p] = OUTSIDE if is_outside else pixel
            if n_inner_taps > 1:
                inner_weight = inner.weight[tap]
                product = new_weight[row * n_inner_taps + tap]
                for p in range(positions):
                    product[p] = outer_weight[p] * inner_weight[p]
    return new_layout
