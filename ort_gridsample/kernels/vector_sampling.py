"""Sampling in vector registers, without a table of taps.

A vector holds the coordinates of some positions. Their taps are computed in registers
(:mod:`.axis_vectors`), and then all channels are read. With few channels, computing a table
(:mod:`.tap_table`) and reading it takes up to three times as long. The results are bit-identical to
those of a table.

The taps of a vector are read together, because they are adjacent pixels. With paddings that pad
taps one by one, those of some positions are not: between the last pixel and the first one with
``wrap``, at the borders of X in mode cubic. Such positions are postponed: they are listed, and
what is added up for them is wrong. When all vectors of a tile are done, the postponed positions are
read one tap at a time, in vectors of their own, and their sums replace the wrong ones.

Here ``builder`` is the llvmlite.ir.IRBuilder that emits instructions. Names: X has S pixels and C
channels; a tile has P positions and r axes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple, TypeAlias

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
    vectors_of,
)
from .lanes import Lanes, filled_lanes
from .llvm_helpers import (
    CPU_GATHERS_FAST,
    INT32,
    INT64,
    ITEMSIZE,
    Index,
    array_structs,
    can_compress,
    compress,
    if_equal,
    index_at,
    lane_list,
    lane_of,
    load_vector,
    read_float_pairs,
    read_integer_pairs,
    read_pixels,
    store_vector,
    stored_index,
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
#: With so many taps, of linear on three axes, the first pixels stay in registers. Reading them from
#: memory takes 0.95 times as long with one channel, but 1.05 to 1.1 times with four. Those of
#: narrow vectors also stay there.
TAPS_OF_REGISTERS = 8
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


class _Adjacent(NamedTuple):
    """The positions of a vector that are adjacent."""

    builder: Any
    #: The first position.
    begin: Any

    def load(self, row: Any, vector: Any) -> Any:
        """Load a vector of this LLVM type from a row, given the pointer to its first element."""
        return load_vector(self.builder, self.builder.gep(row, [self.begin]), vector)

    def store(self, values: Any, row: Any) -> None:
        """Store a vector to a row, given the pointer to its first element."""
        store_vector(self.builder, values, self.builder.gep(row, [self.begin]))


class _Listed(NamedTuple):
    """The positions of a vector, from a list."""

    builder: Any
    numbers: Index

    def load(self, row: Any, vector: Any) -> Any:
        """Load a vector of this LLVM type from a row, given the pointer to its first element."""
        return read_pixels(self.builder, row, self.numbers, vector.element)

    def store(self, values: Any, row: Any) -> None:
        """Store a vector to a row, given the pointer to its first element."""
        builder = self.builder
        for lane in range(values.type.count):
            pointer = builder.gep(row, [lane_of(builder, self.numbers, lane)])
            builder.store(builder.extract_element(values, INT32(lane)), pointer)


_Positions: TypeAlias = "_Adjacent | _Listed"


class _PositionList:
    """Generate a list of positions.

    Args:
        builder: LLVM's.
        memory: a pointer to the memory of the list. There is room for two vectors of int32 more
            than there are positions.
        lanes: the number of lanes of a vector.
    """

    def __init__(self, builder: Any, memory: Any, lanes: int) -> None:
        self.builder = builder
        self._numbers = builder.bitcast(memory, INT32.as_pointer())
        self._lanes = lanes
        self._count = variable(builder, INT64(0))

    def append(self, begin: Any, are_listed: Lanes) -> None:
        """Append those positions of the vector from ``begin`` on whose bits are 1."""
        builder = self.builder
        numbers = filled_lanes(builder, builder.trunc(begin, INT32), self._lanes).value
        numbers = builder.add(numbers, lane_list(range(self._lanes)))
        count = builder.load(self._count)
        if can_compress(self._lanes):
            # A branch would often be mispredicted.
            compressed = compress(builder, numbers, are_listed.value)
            store_vector(builder, compressed, self._pointer_to(count))
            builder.store(builder.add(count, are_listed.count_ones()), self._count)
            return
        with builder.if_then(are_listed.any(), likely=False):
            for lane in map(INT32, range(self._lanes)):
                builder.store(builder.extract_element(numbers, lane), self._pointer_to(count))
                is_listed = builder.extract_element(are_listed.value, lane)
                count = builder.add(count, builder.zext(is_listed, INT64))
            builder.store(count, self._count)

    @contextmanager
    def vectors(self) -> Iterator[_Listed]:
        """Emit a loop over vectors of the positions. The last position fills the last vector."""
        builder = self.builder
        count = builder.load(self._count)
        with builder.if_then(builder.icmp_signed(">", count, INT64(0))):
            last = builder.load(self._pointer_to(builder.sub(count, INT64(1))))
            repeated = filled_lanes(builder, last, self._lanes)
            store_vector(builder, repeated.value, self._pointer_to(count))
            with vectors_of(builder, count, self._lanes) as vector:
                pointer = self._pointer_to(vector.begin)
                yield _Listed(builder, index_at(builder, pointer, self._lanes))

    def _pointer_to(self, entry: Any) -> Any:
        return self.builder.gep(self._numbers, [entry])


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

    def coordinates(self, positions: _Positions) -> tuple[list[Lanes], Any]:
        """Return the pixel coordinates of a vector by axis, and whether some are too far outside.

        The coordinates are padded unless only taps are. Those too far outside are wrong.
        """
        builder = self.builder
        unpadded = [
            axis.unpadded(self._normalized(number, positions))
            for number, axis in enumerate(self.axes)
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

    def _normalized(self, number: int, positions: _Positions) -> Lanes:
        """Return the normalized coordinates of a vector on the axis with this number."""
        builder = self.builder
        source = self.arguments.normalized
        columns = cgutils.unpack_tuple(builder, source.shape)[1]
        row = builder.gep(source.data, [builder.mul(INT64(number), columns)])
        return Lanes(builder, positions.load(row, ir.VectorType(self.coordinate, self.lanes)))

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

    def clipped(self, taps: Sequence[AxisTaps]) -> tuple[list[Lanes], Lanes]:
        """Return the first tap by axis, clipped so that all are inside, and which lanes differ."""
        n_taps = self.plans[0].mode.taps
        firsts = []
        differ = None
        for axis, axis_taps in zip(self.axes, taps, strict=True):
            first = axis_taps.first.clip(0, axis.length - n_taps)
            firsts.append(first)
            differs = axis_taps.first.differs(first)
            differ = differs if differ is None else differ | differs
        assert differ is not None
        return firsts, differ

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
    emit_end: Callable[[_Tile], None] = lambda tile: None,
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
                coordinates, is_far = tile.coordinates(_Adjacent(builder, begin))
                with builder.if_then(is_far, likely=False):
                    builder.store(FALSE, is_done)
                    loop.do_break()
                emit_vector(tile, begin, coordinates)
            with builder.if_then(builder.load(is_done)):
                emit_end(tile)
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
) -> Any:
    """Find the pixel of each position, in a mode without weights.

    Args:
        typing_context: Numba's; callers omit it.
        mode: the mode, as a constant.
        normalized: the normalized coordinates (r, ≥ P), the outermost axis first.
        lengths: the lengths of X (r,).
        positions: P, not less than the lanes of a vector of coordinates.
        index: where the pixels are written (≥ P,): OUTSIDE for a position that counts as 0.

    Returns:
        Whether the pixels have been found, and whether some positions count as 0. They have not
        been found if r is not one of :func:`supported_axes`, or if some coordinates are too far
        outside.
    """
    plans = plans_of_mode(MODE_CODES[mode.literal_value])

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = array_structs(context, builder, arguments, signature.args)
        normalized, lengths, index = arrays
        _, _, _, padding, align_corners, positions, _ = arguments
        tile_arguments = _TileArguments(normalized, lengths, padding, align_corners, positions)
        coordinate = normalized.data.type.pointee
        lanes = VECTOR_SIZE // ITEMSIZE[str(coordinate)]
        no_marks = ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes)
        # The sign bits of the pixels so far.
        marks = variable(builder, no_marks)

        def emit_vector(tile: _Tile, begin: Any, coordinates: list[Lanes]) -> None:
            taps = [taps_of(plans[0].mode, x, coordinate) for x in coordinates]
            marked = tile.marked_pixels(taps)
            store_vector(builder, marked.value, builder.gep(index.data, [begin]))
            builder.store(builder.or_(builder.load(marks), marked.value), marks)

        is_done = _emit_vectors(builder, tile_arguments, lanes, plans, emit_vector)
        is_any_outside = Lanes(builder, builder.load(marks)).is_less(0).any()
        return context.make_tuple(builder, signature.return_type, [is_done, is_any_outside])

    integer = types.int64
    argument_types = mode, normalized, lengths, integer, types.boolean, integer, index
    return types.UniTuple(types.boolean, 2)(*argument_types), generate


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
        positions: _Positions,
        first_pixels: Lanes,
        weights: Sequence[Lanes],
        outside: Sequence[Lanes] = (),
    ) -> None:
        """Emit the loop over the channels, for the positions of a vector.

        The taps of a row are adjacent. Without ``outside`` all are inside.
        """
        index = first_pixels.value
        is_narrow = self.taps_per_row in NARROW_TAPS
        if len(weights) != TAPS_OF_REGISTERS and not is_narrow:
            index = stored_index(self.builder, index)

        def values(channel: Any) -> Iterator[Any]:
            for offset in self.row_offsets:
                row = self.builder.gep(channel, [offset])
                for first in range(0, self.taps_per_row, 2):
                    base = self.builder.gep(row, [INT64(first)])
                    if first + 1 < self.taps_per_row:
                        yield from self._read_pairs(base, index)
                    else:
                        yield self._read(base, index)

        self._add_up(positions, values, weights, outside)

    def add_up_padded(
        self, tile: _Tile, begin: Any, taps: Sequence[AxisTaps], postponed: _PositionList
    ) -> None:
        """Emit loops as :meth:`add_up`, for taps that may be outside.

        Positions with taps that are padded one by one are appended to ``postponed``. If they are
        more than half of a vector, all of its positions are.
        """
        builder = self.builder
        positions = _Adjacent(builder, begin)
        first_pixels, are_outside = tile.clipped(taps)
        is_moved = builder.not_(tile.is_unmoved)
        if self.taps_per_row > FEW_TAPS:
            is_moved = builder.and_(is_moved, are_outside.any())
        with builder.if_else(is_moved) as (moved, clipped):
            with moved:
                inside = list(map(moved_inside, tile.axes, taps))
                weights = _products([axis_taps.weights for axis_taps in inside])
                outside = _disjunctions([axis_taps.outside for axis_taps in inside])
                self.add_up(positions, tile.flat_index(_firsts(inside)), weights, outside)
            with clipped:
                half = INT64(tile.lanes // 2)
                are_most = builder.icmp_unsigned(">", are_outside.count_ones(), half)
                are_all = filled_lanes(builder, are_most, tile.lanes)
                postponed.append(begin, are_outside | are_all)
                with builder.if_then(builder.not_(are_most), likely=True):
                    # What is added up for postponed positions is replaced later.
                    weights = _products([axis_taps.weights for axis_taps in taps])
                    self.add_up(positions, tile.flat_index(first_pixels), weights)

    def add_up_one_by_one(
        self, tile: _Tile, positions: _Positions, taps: Sequence[AxisTaps]
    ) -> None:
        """Emit loops as :meth:`add_up`, for taps that are padded one by one."""
        by_axis = tile.pixels_of_taps(taps, tile.unmoved)
        pixels = [[pixel for pixel, _ in axis_taps] for axis_taps in by_axis]
        weights = _products([axis_taps.weights for axis_taps in taps])

        indices = [
            stored_index(self.builder, tile.flat_index(combination).value)
            for combination in product(*pixels)
        ]

        def values(channel: Any) -> Iterator[Any]:
            return (self._read(channel, index) for index in indices)

        self._add_up(positions, values, weights, outside=())

    def _add_up(
        self,
        positions: _Positions,
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
        with cgutils.for_range(builder, channels) as loop:
            channel = builder.gep(self.X.data, [builder.mul(loop.index, pixels)])
            total = weights[0].filled_with(0)
            for tap, values in enumerate(values_of(channel)):
                added = total.add_product(weights[tap], Lanes(builder, values))
                total = outside[tap].is_less(0).choose(total, added) if outside else added
            row = builder.add(builder.mul(loop.index, columns), self.start)
            positions.store(total.value, builder.gep(self.Y.data, [row]))

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
    postponed: Any,
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
        postponed: scratch memory for a list of positions. There is room for two vectors of int32
            more than there are positions.

    Returns:
        Whether Y has been filled. It has not if r is not one of :func:`supported_axes`, or if some
        coordinates are too far outside.
    """
    plans = plans_of_mode(MODE_CODES[mode.literal_value])
    rule = plans[0].mode

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = array_structs(context, builder, arguments, signature.args)
        X_array, normalized, lengths, Y_array, postponed_array = arrays
        _, _, _, _, padding, align_corners, positions, _, start, _ = arguments
        tile_arguments = _TileArguments(normalized, lengths, padding, align_corners, positions)
        weight = Y_array.data.type.pointee

        lanes = lanes_of_sums(rule.taps, ITEMSIZE[str(weight)])
        postponed = _PositionList(builder, postponed_array.data, lanes)

        def channels_of(tile: _Tile) -> _Channels:
            row_offsets = _row_offsets(builder, tile.lengths, rule.taps)
            return _Channels(builder, X_array, X.dtype, Y_array, start, row_offsets, rule.taps)

        def emit_vector(tile: _Tile, begin: Any, coordinates: list[Lanes]) -> None:
            taps = [taps_of(rule, x, weight) for x in coordinates]
            channels_of(tile).add_up_padded(tile, begin, taps, postponed)

        def emit_end(tile: _Tile) -> None:
            if not any(tile.unmoved):
                return
            with postponed.vectors() as listed:
                coordinates, _ = tile.coordinates(listed)
                taps = [taps_of(rule, x, weight) for x in coordinates]
                channels_of(tile).add_up_one_by_one(tile, listed, taps)

        return _emit_vectors(builder, tile_arguments, lanes, plans, emit_vector, emit_end)

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
        postponed,
    )
    return types.boolean(*argument_types), generate
