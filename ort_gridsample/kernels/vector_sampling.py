"""Sampling in vector registers, without a table of taps.

A vector holds the coordinates of some positions. Their taps are computed in registers
(:mod:`.axis_vectors`), and then all channels are read. With few channels, computing a table
(:mod:`.tap_table`) and reading it takes up to three times as long. The results are bit-identical to
those of a table.

Here ``builder`` is the llvmlite.ir.IRBuilder that emits instructions. Names: X has S pixels and C
channels; a tile has P positions and r axes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .axis_vectors import (
    FALSE,
    TRUE,
    VECTOR_SIZE,
    AxisTaps,
    TapsInside,
    VectorAxis,
    by_padding,
    is_one_of,
    limits,
    moved_inside,
    padded_once,
    pixels_of_taps,
    taps_of,
    variable,
)
from .lanes import Lanes
from .llvm_helpers import (
    CPU_GATHERS_FAST,
    INT64,
    ITEMSIZE,
    array_structs,
    if_equal,
    load_vector,
    read_float_pairs,
    read_integer_pairs,
    read_pixels,
    store_vector,
    widen_halves,
)
from .simd import NARROW_VECTOR
from .tap_plans import MODE_CODES, TapPlan, plans_of_mode

#: The maximum number of axes for which there is code, and of taps of a position, which would not
#: fit the registers otherwise. With one axis a table is small.
MAX_AXES = 3
MAX_TAPS = 64
#: :data:`.tap_table.OUTSIDE`, as int32.
OUTSIDE = -1
#: So many taps are always moved inside. The code for more taps first tells whether some are
#: outside, because moving takes a time that grows with their square.
FEW_TAPS = 2
#: So many taps on an axis are read into narrow vectors, unless the processor gathers fast. With
#: single loads, wide vectors of cubic take 1.0 to 1.4 times as long (AMD EPYC, Zen 5), those of
#: linear 0.8 to 1.0 times, and those of lanczos3 1.0 to 1.2 times.
NARROW_TAPS = range(3, 5)


def lanes_of_sums(taps_per_axis: int, itemsize: int) -> int:
    """Return the number of lanes of a vector of sums.

    Args:
        taps_per_axis: the taps on an axis.
        itemsize: the size of a weight, in bytes.
    """
    is_narrow = taps_per_axis in NARROW_TAPS and not CPU_GATHERS_FAST
    return (min(NARROW_VECTOR, VECTOR_SIZE) if is_narrow else VECTOR_SIZE) // itemsize


def supported_axes(taps_per_axis: int) -> list[int]:
    """Return the numbers of axes for which there is code, given the taps on an axis."""
    return [r for r in range(2, MAX_AXES + 1) if taps_per_axis**r <= MAX_TAPS]


class _TileArguments(NamedTuple):
    """The arguments of the generated code that describe a tile."""

    #: The normalized coordinates (r, ≥ P), the outermost axis first.
    normalized: Any
    #: The lengths of X (r,).
    lengths: Any
    #: The code of the padding.
    padding: Any
    align_corners: Any
    #: P.
    positions: Any


class _Tile:
    """Generate the coordinates of a tile.

    Args:
        builder: LLVM's.
        r: the number of axes.
        lanes: the number of lanes of a vector.
        plans: the plans of the mode, by the code of the padding.

    Attributes:
        lengths: the length of each axis, as int64.
        axes: the numbers of each axis.
        unmoved: the plans of the paddings that pad taps outside one by one; None for those with
            which taps are moved inside together.
    """

    def __init__(
        self,
        builder: Any,
        arguments: _TileArguments,
        r: int,
        lanes: int,
        plans: Sequence[TapPlan],
    ) -> None:
        self.builder = builder
        self.arguments = arguments
        self.lanes = lanes
        self.plans = plans
        self.coordinate = arguments.normalized.data.type.pointee
        self.lengths = [
            builder.load(builder.gep(arguments.lengths.data, [INT64(axis)])) for axis in range(r)
        ]
        self._periodic = [None if plan.padding.period is None else plan for plan in plans]
        self.unmoved = [None if plan.moves_inside else plan for plan in plans]
        self.axes = [
            VectorAxis.of_number(builder, length, arguments.align_corners, self.coordinate, lanes)
            for length in self.lengths
        ]

        self._limits = self._limits_by_axis()

    def _limits_by_axis(self) -> list[tuple[Lanes, Lanes]]:
        """Return the limits of coordinates on each axis, which only clipping paddings have."""
        builder = self.builder

        def emit(plan: TapPlan) -> list[Any]:
            if plan.padding.period is not None:
                return [axis.numbers.last.value for axis in self.axes for _ in range(2)]
            return [limit.value for axis in self.axes for limit in limits(plan, axis)]

        values = by_padding(builder, self.arguments.padding, self.plans, emit)
        all_limits = [Lanes(builder, value) for value in values]
        return list(zip(all_limits[::2], all_limits[1::2], strict=True))

    @property
    def n_vectors(self) -> Any:
        """The number of vectors, as int64."""
        builder = self.builder
        rounded_up = builder.add(self.arguments.positions, INT64(self.lanes - 1))
        return builder.udiv(rounded_up, INT64(self.lanes))

    def begin_of(self, number: Any) -> Any:
        """Return the first position of a vector.

        The last vector overlaps the one before unless the positions are whole vectors.
        """
        builder = self.builder
        begin = builder.mul(number, INT64(self.lanes))
        last = builder.sub(self.arguments.positions, INT64(self.lanes))
        return builder.select(builder.icmp_signed("<", begin, last), begin, last)

    def coordinates(self, begin: Any) -> tuple[list[Lanes], Any]:
        """Return the pixel coordinates of a vector by axis, and whether some are too far outside.

        The coordinates are padded unless only taps are. Those too far outside are wrong.
        """
        builder = self.builder
        unpadded = [
            axis.unpadded(self._normalized(number, begin)) for number, axis in enumerate(self.axes)
        ]

        def emit(plan: TapPlan) -> list[Any]:
            values = []
            is_far = FALSE
            for axis, x in zip(self.axes, unpadded, strict=True):
                padded, is_axis_far = padded_once(plan, axis, x)
                values.append(padded.value)
                is_far = builder.or_(is_far, is_axis_far)
            return [*values, is_far]

        codes = _codes_of(self._periodic)
        results = [variable(builder, value) for value in (*(x.value for x in unpadded), FALSE)]
        # Clipping shares its instructions, which is faster than a branch for each padding.
        is_periodic = is_one_of(builder, self.arguments.padding, codes)
        with builder.if_else(is_periodic) as (periodic, clipping):
            with periodic:
                values = by_padding(builder, self.arguments.padding, self._periodic, emit)
                for pointer, value in zip(results, values, strict=True):
                    builder.store(value, pointer)
            with clipping:
                clipped = zip(results[:-1], unpadded, self._limits, strict=True)
                for pointer, x, (low, high) in clipped:
                    builder.store(x.clip(low, high).value, pointer)
        *values, is_far = map(builder.load, results)
        return [Lanes(builder, value) for value in values], is_far

    def _normalized(self, number: int, begin: Any) -> Lanes:
        """Return the normalized coordinates of a vector on the axis with this number."""
        builder = self.builder
        source = self.arguments.normalized
        columns = cgutils.unpack_tuple(builder, source.shape)[1]
        entry = builder.add(builder.mul(INT64(number), columns), begin)
        vector = ir.VectorType(self.coordinate, self.lanes)
        return Lanes(builder, load_vector(builder, builder.gep(source.data, [entry]), vector))

    def flat_index(self, pixels: Sequence[Lanes]) -> Lanes:
        """Return the indices of pixels in flat X, given those by axis."""
        index = pixels[0]
        for axis, inner in zip(self.axes[1:], pixels[1:], strict=True):
            index = index * axis.length + inner
        return index

    @property
    def is_unmoved(self) -> Any:
        """A bit: whether the padding is one of those that pad taps outside one by one."""
        return is_one_of(self.builder, self.arguments.padding, _codes_of(self.unmoved))

    def is_outside(self, taps: Sequence[AxisTaps], axes: slice = slice(None)) -> Any:
        """Return a bit: whether some taps are outside, on some axes."""
        n_taps = self.plans[0].mode.taps
        is_outside = FALSE
        for axis, axis_taps in zip(self.axes[axes], taps[axes], strict=True):
            inside = axis_taps.first.clip(0, axis.length - n_taps)
            is_outside = self.builder.or_(is_outside, axis_taps.first.differs(inside).any())
        return is_outside

    def needs_padding(self, taps: Sequence[AxisTaps]) -> Any:
        """Return a bit: whether some taps are outside, and are padded one by one.

        Other paddings compute the first condition in vain: a branch around it takes longer.
        """
        return self.builder.and_(self.is_outside(taps), self.is_unmoved)

    def marked_pixels(self, taps: Sequence[AxisTaps]) -> Lanes:
        """Return the pixels of single taps in flat X, OUTSIDE for one that counts as 0."""

        def emit(plan: TapPlan) -> list[Any]:
            pixels, insides = [], []
            for axis, axis_taps in zip(self.axes, taps, strict=True):
                ((pixel, counts),) = pixels_of_taps(plan, axis, axis_taps.base, are_near=True)
                pixels.append(pixel)
                insides.append(counts)
            is_inside = functools.reduce(operator.and_, insides)
            # A mask that leaves a branch would be shortened and widened again without AVX-512.
            return [is_inside.choose(self.flat_index(pixels), OUTSIDE).value]

        (marked,) = by_padding(self.builder, self.arguments.padding, self.plans, emit)
        return Lanes(self.builder, marked)

    def pixels_of_taps(
        self, taps: Sequence[AxisTaps], plans: Sequence[TapPlan | None]
    ) -> list[list[tuple[Lanes, Lanes]]]:
        """Return for each axis the pixel of each tap, padded one by one, and whether it counts.

        The padding has one of ``plans``, whose indices are the codes of the paddings.
        """
        builder = self.builder
        n_taps = self.plans[0].mode.taps

        def emit(plan: TapPlan) -> list[Any]:
            values = []
            for axis, axis_taps in zip(self.axes, taps, strict=True):
                for pixel, counts in pixels_of_taps(plan, axis, axis_taps.base, are_near=True):
                    values += [pixel.value, counts.value]
            return values

        values = by_padding(builder, self.arguments.padding, plans, emit)
        all_lanes = [Lanes(builder, value) for value in values]
        pairs = list(zip(all_lanes[::2], all_lanes[1::2], strict=True))
        return [pairs[first : first + n_taps] for first in range(0, len(pairs), n_taps)]


def _codes_of(plans: Sequence[TapPlan | None]) -> list[int]:
    """Return the codes of the paddings that have a plan."""
    return [code for code, plan in enumerate(plans) if plan is not None]


def _emit_vectors(
    builder: Any,
    arguments: _TileArguments,
    lanes: int,
    plans: Sequence[TapPlan],
    emit_vector: Callable[[_Tile, Any, list[Lanes]], None],
) -> Any:
    """Emit the code for all vectors of a tile.

    Args:
        builder: LLVM's.
        lanes: the number of lanes of a vector.
        plans: the plans of the mode, by the code of the padding.
        emit_vector: emits the code for a vector. Its arguments are the tile, the first position,
            and the pixel coordinates by axis.

    Returns:
        A bit: whether all vectors have been processed. They have not if r is not one of
        :func:`supported_axes`, or if some coordinates are too far outside. Some may have been.
    """
    is_done = variable(builder, FALSE)
    (r,) = cgutils.unpack_tuple(builder, arguments.lengths.shape)
    for n_axes in supported_axes(plans[0].mode.taps):
        with if_equal(builder, r, n_axes):
            builder.store(TRUE, is_done)
            tile = _Tile(builder, arguments, n_axes, lanes, plans)
            with cgutils.for_range(builder, tile.n_vectors) as loop:
                begin = tile.begin_of(loop.index)
                coordinates, is_far = tile.coordinates(begin)
                with builder.if_then(is_far, likely=False):
                    builder.store(FALSE, is_done)
                    loop.do_break()
                emit_vector(tile, begin, coordinates)
    return builder.load(is_done)


def _firsts(all_taps: Sequence[AxisTaps] | Sequence[TapsInside]) -> list[Lanes]:
    return [axis_taps.first for axis_taps in all_taps]


def _products(by_axis: Sequence[Sequence[Lanes]]) -> list[Lanes]:
    """Return the products of the weights on all axes, for each combination of taps."""
    products = list(by_axis[0])
    for inner in by_axis[1:]:
        products = [outer * weight for outer in products for weight in inner]
    return products


def _disjunctions(by_axis: Sequence[Sequence[Lanes]]) -> list[Lanes]:
    """Return the integers that are negative where those of any axis are, by combination of taps."""
    disjunctions = list(by_axis[0])
    for inner in by_axis[1:]:
        disjunctions = [outer | outside for outer in disjunctions for outside in inner]
    return disjunctions


# --- Modes without weights ---


@intrinsic(prefer_literal=True)
def pixels_to_copy(
    typing_context: Any,
    mode: Any,
    normalized: Any,
    lengths: Any,
    padding: Any,
    align_corners: Any,
    positions: Any,
    index: Any,
    inside: Any,
) -> Any:
    """Find the pixel of each position, in a mode without weights.

    Args:
        typing_context: Numba's; callers omit it.
        mode: the mode, as a constant.
        normalized: the normalized coordinates (r, ≥ P), the outermost axis first.
        lengths: the lengths of X (r,).
        positions: P, not less than the lanes of a vector of coordinates.
        index: where the pixels are written (≥ P,): OUTSIDE for a position that counts as 0.
        inside: where the pixels are written (≥ P,): 0 for such a position.

    Returns:
        Whether the pixels have been found. They have not if r is not one of
        :func:`supported_axes`, or if some coordinates are too far outside.
    """
    plans = plans_of_mode(MODE_CODES[mode.literal_value])

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = array_structs(context, builder, arguments, signature.args)
        normalized, lengths, index, inside = arrays
        _, _, _, padding, align_corners, positions, _, _ = arguments
        tile_arguments = _TileArguments(normalized, lengths, padding, align_corners, positions)
        coordinate = normalized.data.type.pointee

        def emit_vector(tile: _Tile, begin: Any, coordinates: list[Lanes]) -> None:
            taps = [taps_of(plans[0].mode, x, coordinate) for x in coordinates]
            marked = tile.marked_pixels(taps)
            for array, pixels in ((index, marked), (inside, marked.maximum(0))):
                store_vector(builder, pixels.value, builder.gep(array.data, [begin]))

        lanes = VECTOR_SIZE // ITEMSIZE[str(coordinate)]
        return _emit_vectors(builder, tile_arguments, lanes, plans, emit_vector)

    integer = types.int64
    argument_types = (
        mode,
        normalized,
        lengths,
        integer,
        types.boolean,
        integer,
        index,
        inside,
    )
    return types.boolean(*argument_types), generate


# --- Weighted sums ---


def _row_offsets(builder: Any, lengths: Sequence[Any], taps_per_axis: int) -> list[Any]:
    """Return the distances of the rows of taps to the first row, in pixels.

    A row has the taps of the innermost axis.
    """
    offsets = []
    for row in product(range(taps_per_axis), repeat=len(lengths) - 1):
        offset: Any = INT64(0)
        for tap, inner_length in zip(row, lengths[1:], strict=True):
            offset = builder.mul(builder.add(offset, INT64(tap)), inner_length)
        offsets.append(offset)
    return offsets


class _Channels(NamedTuple):
    """Generate the sums of the taps of all channels."""

    builder: Any
    #: Channels (C, S).
    X: Any
    #: The Numba type of X's elements.
    X_type: Any
    #: The result is written to Y[:, start:] (C, ≥ start + P).
    Y: Any
    start: Any
    #: The distances of the rows of taps to the first row, in pixels.
    row_offsets: Sequence[Any]
    #: The number of taps of a row.
    taps_per_row: int

    def add_up(
        self,
        begin: Any,
        first_pixels: Lanes,
        weights: Sequence[Lanes],
        outside: Sequence[Lanes] = (),
    ) -> None:
        """Emit the loop over the channels, for the positions from ``begin`` on.

        The taps of a row are adjacent. Without ``outside`` all are inside.
        """

        def values(channel: Any) -> Iterator[Any]:
            for offset in self.row_offsets:
                row = self.builder.gep(channel, [offset])
                for first in range(0, self.taps_per_row, 2):
                    base = self.builder.gep(row, [INT64(first)])
                    if first + 1 < self.taps_per_row:
                        yield from self._read_pairs(base, first_pixels.value)
                    else:
                        yield self._read(base, first_pixels.value)

        self._add_up(begin, values, weights, outside)

    def add_up_padded(self, tile: _Tile, begin: Any, taps: Sequence[AxisTaps]) -> None:
        """Emit loops as :meth:`add_up`, for taps that may be outside."""
        if self.taps_per_row <= FEW_TAPS:
            self._add_up_moved_or_padded(tile, begin, taps, lambda: tile.needs_padding(taps))
            return
        with self.builder.if_else(tile.is_outside(taps), likely=False) as (outside, inside):
            with outside:
                self._add_up_moved_or_padded(tile, begin, taps, lambda: tile.is_unmoved)
            with inside:
                weights = _products([axis_taps.weights for axis_taps in taps])
                self.add_up(begin, tile.flat_index(_firsts(taps)), weights)

    def _add_up_moved_or_padded(
        self, tile: _Tile, begin: Any, taps: Sequence[AxisTaps], needs_padding: Callable[[], Any]
    ) -> None:
        """Emit loops as :meth:`add_up`, for taps moved inside together, or padded one by one.

        ``needs_padding`` emits a bit: whether they are padded.
        """
        if not any(tile.unmoved):
            self._add_up_moved(tile, begin, taps)
            return
        with self.builder.if_else(needs_padding(), likely=False) as (padded, moved):
            with padded:
                self._add_up_one_by_one(tile, begin, taps)
            with moved:
                self._add_up_moved(tile, begin, taps)

    def _add_up_moved(self, tile: _Tile, begin: Any, taps: Sequence[AxisTaps]) -> None:
        """Emit loops as :meth:`add_up`, for taps moved inside together."""
        inside = list(map(moved_inside, tile.axes, taps))
        weights = _products([axis_taps.weights for axis_taps in inside])
        outside = _disjunctions([axis_taps.outside for axis_taps in inside])
        self.add_up(begin, tile.flat_index(_firsts(inside)), weights, outside)

    def _add_up_one_by_one(self, tile: _Tile, begin: Any, taps: Sequence[AxisTaps]) -> None:
        """Emit loops as :meth:`add_up`, for taps that are padded one by one.

        Few taps are read in pairs if those on the innermost axis are inside. More taps would
        lengthen the code.
        """
        builder = self.builder
        by_axis = tile.pixels_of_taps(taps, tile.unmoved)
        pixels = [[pixel for pixel, _ in axis_taps] for axis_taps in by_axis]
        weights = _products([axis_taps.weights for axis_taps in taps])

        def single_values(channel: Any) -> Iterator[Any]:
            for combination in product(*pixels):
                yield self._read(channel, tile.flat_index(combination).value)

        def pairs_of_values(channel: Any) -> Iterator[Any]:
            for combination in product(*pixels[:-1]):
                first_of_row = tile.flat_index([*combination, taps[-1].first])
                yield from self._read_pairs(channel, first_of_row.value)

        if self.taps_per_row != 2:
            self._add_up(begin, single_values, weights, outside=())
            return
        is_row_broken = tile.is_outside(taps, slice(-1, None))
        with builder.if_else(is_row_broken) as (broken, whole):
            with broken:
                self._add_up(begin, single_values, weights, outside=())
            with whole:
                self._add_up(begin, pairs_of_values, weights, outside=())

    def _add_up(
        self,
        begin: Any,
        values_of: Callable[[Any], Iterator[Any]],
        weights: Sequence[Lanes],
        outside: Sequence[Lanes],
    ) -> None:
        """Emit the loop over the channels.

        ``values_of`` yields the value of each tap, given a pointer to the channel.
        """
        builder = self.builder
        channels, pixels = cgutils.unpack_tuple(builder, self.X.shape)
        columns = cgutils.unpack_tuple(builder, self.Y.shape)[1]
        Y_position = builder.add(self.start, begin)
        with cgutils.for_range(builder, channels) as loop:
            channel = builder.gep(self.X.data, [builder.mul(loop.index, pixels)])
            total = weights[0].filled_with(0)
            for tap, values in enumerate(values_of(channel)):
                added = total.add_product(weights[tap], Lanes(builder, values))
                total = outside[tap].is_less(0).choose(total, added) if outside else added
            entry = builder.add(builder.mul(loop.index, columns), Y_position)
            store_vector(builder, total.value, builder.gep(self.Y.data, [entry]))

    def _read(self, channel: Any, index: Any) -> Any:
        """Return the pixels of a channel at ``index``, converted to the type of the weights."""
        pixels = read_pixels(self.builder, channel, index, self.X.data.type.pointee)
        if pixels.type.element == self.Y.data.type.pointee:
            return pixels
        return widen_halves(self.builder, pixels, self.X_type)

    def _read_pairs(self, base: Any, index: Any) -> list[Any]:
        """Return the pixels at ``index``, counted from the pointer ``base``, and those after them.

        They are converted to the type of the weights.
        """
        builder = self.builder
        weight = self.Y.data.type.pointee
        if self.X.data.type.pointee != weight:
            pairs = read_integer_pairs(builder, base, index, self.X_type.bitwidth)
            return [widen_halves(builder, pixels, self.X_type) for pixels in pairs]
        if self.X_type == types.float32:
            return list(read_float_pairs(builder, base, index))
        return [
            read_pixels(builder, builder.gep(base, [INT64(tap)]), index, weight) for tap in range(2)
        ]


@intrinsic(prefer_literal=True)
def sum_taps(
    typing_context: Any,
    mode: Any,
    X: Any,
    normalized: Any,
    lengths: Any,
    padding: Any,
    align_corners: Any,
    positions: Any,
    Y: Any,
    start: Any,
) -> Any:
    """Add up the weighted taps of a tile.

    Args:
        typing_context: Numba's; callers omit it.
        mode: a mode with weights, as a constant.
        X: channels (C, S).
        normalized: the normalized coordinates (r, ≥ P), the outermost axis first.
        lengths: the lengths of X (r,). None is less than the number of taps of an axis.
        positions: P, not less than the lanes of a vector of weights.
        Y: the result is written to Y[:, start:] (C, ≥ start + P). Sums of halves are float32.
        start: see ``Y``.

    Returns:
        Whether Y has been filled. It has not if r is not one of :func:`supported_axes`, or if some
        coordinates are too far outside.
    """
    plans = plans_of_mode(MODE_CODES[mode.literal_value])
    rule = plans[0].mode

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = array_structs(context, builder, arguments, signature.args)
        X_array, normalized, lengths, Y_array = arrays
        _, _, _, _, padding, align_corners, positions, _, start = arguments
        tile_arguments = _TileArguments(normalized, lengths, padding, align_corners, positions)
        weight = Y_array.data.type.pointee

        def emit_vector(tile: _Tile, begin: Any, coordinates: list[Lanes]) -> None:
            taps = [taps_of(rule, x, weight) for x in coordinates]
            row_offsets = _row_offsets(builder, tile.lengths, rule.taps)
            channels = _Channels(builder, X_array, X.dtype, Y_array, start, row_offsets, rule.taps)
            channels.add_up_padded(tile, begin, taps)

        lanes = lanes_of_sums(rule.taps, ITEMSIZE[str(weight)])
        return _emit_vectors(builder, tile_arguments, lanes, plans, emit_vector)

    argument_types = (
        mode,
        X,
        normalized,
        lengths,
        types.int64,
        types.boolean,
        types.int64,
        Y,
        types.int64,
    )
    return types.boolean(*argument_types), generate
