"""Sampling in vector registers, without a table of taps.

A vector holds the coordinates of some positions. Their taps are computed in registers, and then
all channels are read. With few channels, computing a table (:mod:`.tap_table`) and reading it takes
up to three times as long. The results are bit-identical to those of a table.

Here ``builder`` is the llvmlite.ir.IRBuilder that emits instructions. Names: X has S pixels and C
channels; a tile has P positions and r axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import target
from .lanes import Lanes, filled_lanes
from .llvm_helpers import (
    INT32,
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
from .simd import NARROW_VECTOR, WIDE_VECTOR
from .structs import REFLECTION, ZEROS
from .tap_table import cubic_weights

#: The size of a vector of weights or, in mode nearest, of coordinates.
VECTOR_SIZE = WIDE_VECTOR if target.has("avx512f") else NARROW_VECTOR
#: The numbers of axes for which there is code. With one axis a table is small; with more than three
#: axes the taps would not fit the registers.
SUPPORTED_AXES = 2, 3
#: :data:`.tap_table.OUTSIDE`, as int32.
OUTSIDE = -1
FALSE = ir.IntType(1)(0)
TRUE = ir.IntType(1)(1)


@dataclass(frozen=True)
class _AxisLanes:
    """Numbers of an axis, in all lanes of a vector.

    Attributes:
        length: the number of pixels, as int32.
        scale: the pixels per unit of a normalized coordinate.
        offset: the distance of the first pixel from the normalized coordinate -1, in pixels.
        lowest: the lower limit of pixel coordinates.
        highest: the upper limit.
        low_sum: the sum of a coordinate and its reflection at the lower end of X.
        high_sum: the sum of a coordinate and its reflection at the upper end.
        max_reflected_once: the maximum distance from 0 at which one reflection at each end
            suffices.
    """

    length: Lanes
    scale: Lanes
    offset: Lanes
    lowest: Lanes
    highest: Lanes
    low_sum: Lanes
    high_sum: Lanes
    max_reflected_once: Lanes

    def reflected(self, values: Lanes) -> Lanes:
        """Reflect pixel coordinates, or pixels as int32, once at each end."""
        low_sum = self.low_sum
        high_sum = self.high_sum
        if not values.is_float:
            low_sum = low_sum.to_integers()
            high_sum = high_sum.to_integers()
        values = values.maximum(low_sum - values)
        return values.minimum(high_sum - values)


@dataclass(frozen=True)
class _AxisTaps:
    """The taps of an axis, which are adjacent.

    Attributes:
        first: the first pixel, as int32. In mode cubic it may be outside.
        weights: the weight of each tap; none in mode nearest.
        are_inside: for each tap, whether it is inside; none in mode cubic until the taps are moved.
    """

    first: Lanes
    weights: list[Lanes]
    are_inside: list[Lanes]


class _TileArguments(NamedTuple):
    """The arguments of the generated code that describe a tile."""

    #: The normalized coordinates (r, ≥ P), the outermost axis first.
    normalized: Any
    #: The lengths of X (r,).
    lengths: Any
    #: ZEROS, BORDER or REFLECTION.
    padding: Any
    align_corners: Any
    #: P.
    positions: Any


class _Tile:
    """Generate the coordinates of a tile.

    Args:
        builder: LLVM's.
        arguments: the arguments of the generated code.
        r: the number of axes.
        lanes: the number of lanes of a vector.
        pads_taps: whether the padding acts on the taps' pixels instead of the coordinates.

    Attributes:
        lengths: the length of each axis, as int64.
        axes: the numbers of each axis.
    """

    def __init__(
        self, builder: Any, arguments: _TileArguments, r: int, lanes: int, pads_taps: bool
    ) -> None:
        self.builder = builder
        self.arguments = arguments
        self.lanes = lanes
        self.pads_taps = pads_taps
        self.coordinate = arguments.normalized.data.type.pointee
        self.lengths = [
            builder.load(builder.gep(arguments.lengths.data, [INT64(axis)])) for axis in range(r)
        ]
        self.axes = [self._axis_lanes(length) for length in self.lengths]

    def _axis_lanes(self, length: Any) -> _AxisLanes:
        """Return the numbers of an axis, given its length."""
        builder = self.builder
        integers = filled_lanes(builder, builder.trunc(length, INT32), self.lanes)
        pixels = integers.to_floats(self.coordinate)
        zero = pixels.filled_with(0)
        last = pixels - 1
        after_taps = builder.add(length, builder.add(INT64(3), builder.ashr(length, INT64(20))))
        beyond = filled_lanes(builder, builder.trunc(after_taps, INT32), self.lanes)
        align_corners = self.arguments.align_corners

        def choose(condition: Any, if_true: Lanes, otherwise: Lanes) -> Lanes:
            return Lanes(builder, builder.select(condition, if_true.value, otherwise.value))

        span = choose(align_corners, last, pixels)
        max_reflected_once = span * 2 - 3
        # So far outside that no tap is inside, but within int32; as in tap_table.
        lowest = pixels.filled_with(-4)
        highest = beyond.to_floats(self.coordinate)
        if self.pads_taps:
            is_reflected = self.has_padding(REFLECTION)
            lowest = choose(is_reflected, 0 - max_reflected_once, lowest)
            highest = choose(is_reflected, max_reflected_once, highest)
        else:
            has_zeros = self.has_padding(ZEROS)
            lowest = choose(has_zeros, lowest, zero)
            highest = choose(has_zeros, highest, last)
        return _AxisLanes(
            length=integers,
            scale=span * 0.5,
            offset=choose(align_corners, zero, pixels.filled_with(0.5)),
            lowest=lowest,
            highest=highest,
            low_sum=choose(align_corners, zero, pixels.filled_with(-1)),
            high_sum=choose(align_corners, last, last + 0.5) * 2,
            max_reflected_once=max_reflected_once,
        )

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

        Those must be reflected several times. The coordinates are padded, unless the padding acts
        on the taps' pixels.
        """
        builder = self.builder
        unpadded = [self._unpadded(number, begin) for number in range(len(self.axes))]
        pointers = [_variable(builder, values.value) for values in unpadded]
        is_far = _variable(builder, FALSE)
        with builder.if_then(self.has_padding(REFLECTION)):
            for axis, values, pointer in zip(self.axes, unpadded, pointers, strict=True):
                is_axis_far = axis.max_reflected_once.is_less(values.absolute()).any()
                builder.store(builder.or_(builder.load(is_far), is_axis_far), is_far)
                if not self.pads_taps:
                    builder.store(axis.reflected(values).value, pointer)
        limited = [
            Lanes(builder, builder.load(pointer)).clip(axis.lowest, axis.highest)
            for axis, pointer in zip(self.axes, pointers, strict=True)
        ]
        return limited, builder.load(is_far)

    def has_padding(self, padding: int) -> Any:
        """Return a bit: whether the padding is this one."""
        return self.builder.icmp_signed("==", self.arguments.padding, INT64(padding))

    def _unpadded(self, number: int, begin: Any) -> Lanes:
        """Return the pixel coordinates of a vector on the axis with this number."""
        builder = self.builder
        axis = self.axes[number]
        source = self.arguments.normalized
        columns = cgutils.unpack_tuple(builder, source.shape)[1]
        entry = builder.add(builder.mul(INT64(number), columns), begin)
        vector = ir.VectorType(self.coordinate, self.lanes)
        pointer = builder.gep(source.data, [entry])
        normalized = Lanes(builder, load_vector(builder, pointer, vector))
        # NaN counts as -1.
        numbers = normalized.is_nan().choose(normalized.filled_with(-1), normalized)
        return (numbers + 1) * axis.scale - axis.offset

    def flat_index(self, pixels: Sequence[Lanes]) -> Lanes:
        """Return the indices of pixels in flat X, given those by axis."""
        index = pixels[0]
        for axis, inner in zip(self.axes[1:], pixels[1:], strict=True):
            index = index * axis.length + inner
        return index


def _emit_vectors(
    builder: Any,
    arguments: _TileArguments,
    lanes: int,
    pads_taps: bool,
    emit_vector: Callable[[_Tile, Any, list[Lanes]], None],
) -> Any:
    """Emit the code for all vectors of a tile.

    Args:
        builder: LLVM's.
        arguments: the arguments of the generated code.
        lanes: the number of lanes of a vector.
        pads_taps: whether the padding acts on the taps' pixels instead of the coordinates.
        emit_vector: emits the code for a vector. Its arguments are the tile, the first position,
            and the pixel coordinates by axis.

    Returns:
        A bit: whether all vectors have been processed. They have not if r is not one of
        SUPPORTED_AXES, or if coordinates must be reflected several times. Some may have been.
    """
    is_done = _variable(builder, FALSE)
    (r,) = cgutils.unpack_tuple(builder, arguments.lengths.shape)
    for n_axes in SUPPORTED_AXES:
        with if_equal(builder, r, n_axes):
            builder.store(TRUE, is_done)
            tile = _Tile(builder, arguments, n_axes, lanes, pads_taps)
            with cgutils.for_range(builder, tile.n_vectors) as loop:
                begin = tile.begin_of(loop.index)
                coordinates, is_far = tile.coordinates(begin)
                with builder.if_then(is_far, likely=False):
                    builder.store(FALSE, is_done)
                    loop.do_break()
                emit_vector(tile, begin, coordinates)
    return builder.load(is_done)


def _variable(builder: Any, value: Any) -> Any:
    """Return a pointer to a variable, to which ``value`` is assigned."""
    pointer = cgutils.alloca_once(builder, value.type)
    builder.store(value, pointer)
    return pointer


# --- The taps on one axis ---


def _nearest_taps(axis: _AxisLanes, coordinates: Lanes) -> _AxisTaps:
    """Return the taps of nearest."""
    pixels = coordinates.rint().to_integers()
    inside = pixels.clip(0, axis.length - 1)
    return _AxisTaps(inside, [], [pixels.equals(inside)])


def _linear_taps(axis: _AxisLanes, coordinates: Lanes, weight: Any) -> _AxisTaps:
    """Return the taps of linear, with weights of this LLVM type. Taps outside are moved inside."""
    floor = coordinates.floor()
    distance = (coordinates - floor).to_floats(weight)
    base = floor.to_integers()
    first = base.clip(0, axis.length - 2)
    weight_of_base = 1 - distance
    move = base - first
    is_unmoved = move.equals(0)
    return _AxisTaps(
        first,
        [
            is_unmoved.choose(weight_of_base, distance),
            is_unmoved.choose(distance, weight_of_base),
        ],
        [is_unmoved | move.equals(-1), is_unmoved | move.equals(1)],
    )


def _cubic_taps(axis: _AxisLanes, coordinates: Lanes, weight: Any) -> _AxisTaps:
    """Return the taps of cubic, with weights of this LLVM type. The first one may be outside."""
    floor = coordinates.floor()
    distance = (coordinates - floor).to_floats(weight)
    weights = list(cubic_weights(distance, distance.filled_with))
    return _AxisTaps(floor.to_integers() - 1, weights, [])


def _moved_inside(axis: _AxisLanes, taps: _AxisTaps) -> _AxisTaps:
    """Return the taps of an axis moved inside, where those that were outside are not inside."""
    n_taps = len(taps.weights)
    first = taps.first.clip(0, axis.length - n_taps)
    move = first - taps.first
    weights = []
    are_inside = []
    for tap in range(n_taps):
        weight = taps.weights[0]
        is_inside = move.equals(-tap)
        for number, other_weight in enumerate(taps.weights[1:], start=1):
            is_other = move.equals(number - tap)
            weight = is_other.choose(other_weight, weight)
            is_inside = is_inside | is_other
        weights.append(weight)
        are_inside.append(is_inside)
    return _AxisTaps(first, weights, are_inside)


def _padded_pixels(tile: _Tile, axis: _AxisLanes, taps: _AxisTaps) -> list[Lanes]:
    """Return the pixel of each tap, with the padding BORDER or REFLECTION."""
    builder = tile.builder
    is_reflected = tile.has_padding(REFLECTION)
    pixels = []
    for tap in range(len(taps.weights)):
        unpadded = taps.first + tap
        reflected = axis.reflected(unpadded)
        pixel = Lanes(builder, builder.select(is_reflected, reflected.value, unpadded.value))
        pixels.append(pixel.clip(0, axis.length - 1))
    return pixels


class _Rule(NamedTuple):
    """How a mode computes the weighted taps of an axis."""

    axis_taps: Callable[[_AxisLanes, Lanes, Any], _AxisTaps]
    #: The number of taps.
    n_taps: int
    #: Whether the padding acts on the taps' pixels instead of the coordinates. The first tap may
    #: then be outside. Otherwise the taps are moved inside.
    pads_taps: bool


WEIGHTED_TAPS = {
    "linear": _Rule(_linear_taps, 2, pads_taps=False),
    "cubic": _Rule(_cubic_taps, 4, pads_taps=True),
}


def _firsts(all_taps: Sequence[_AxisTaps]) -> list[Lanes]:
    return [axis_taps.first for axis_taps in all_taps]


def _combine(all_taps: Sequence[_AxisTaps]) -> tuple[list[Lanes], list[Lanes]]:
    """Return the weights of the taps on all axes together, and whether they are inside."""
    weights = all_taps[0].weights
    are_inside = all_taps[0].are_inside
    for inner in all_taps[1:]:
        weights = [outer * weight for outer in weights for weight in inner.weights]
        are_inside = [outer & is_inside for outer in are_inside for is_inside in inner.are_inside]
    return weights, are_inside


# --- Nearest ---


@intrinsic
def nearest_pixels(
    typing_context: Any,
    normalized: Any,
    lengths: Any,
    padding: Any,
    align_corners: Any,
    positions: Any,
    index: Any,
) -> Any:
    """Find the nearest pixel of each position.

    Args:
        typing_context: Numba's; callers omit it.
        normalized: the normalized coordinates (r, ≥ P), the outermost axis first.
        lengths: the lengths of X (r,).
        padding: ZEROS, BORDER or REFLECTION.
        align_corners: the attribute.
        positions: P, not less than the lanes of a vector of coordinates.
        index: where the pixels are written (≥ P,): OUTSIDE for a position outside.

    Returns:
        Whether the pixels have been found. They have not if r is not one of SUPPORTED_AXES, or if
        coordinates must be reflected several times.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = array_structs(context, builder, arguments, signature.args)
        normalized, lengths, index = arrays
        _, _, padding, align_corners, positions, _ = arguments
        tile_arguments = _TileArguments(normalized, lengths, padding, align_corners, positions)

        def emit_vector(tile: _Tile, begin: Any, coordinates: list[Lanes]) -> None:
            taps = list(map(_nearest_taps, tile.axes, coordinates))
            pixels = tile.flat_index(_firsts(taps))
            (is_inside,) = _combine(taps)[1]
            marked = is_inside.choose(pixels, OUTSIDE)
            store_vector(builder, marked.value, builder.gep(index.data, [begin]))

        lanes = VECTOR_SIZE // ITEMSIZE[str(normalized.data.type.pointee)]
        return _emit_vectors(builder, tile_arguments, lanes, False, emit_vector)

    argument_types = normalized, lengths, types.int64, types.boolean, types.int64, index
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
        are_inside: Sequence[Lanes] = (),
    ) -> None:
        """Emit the loop over the channels, for the positions from ``begin`` on.

        The taps of a row are adjacent. Without ``are_inside`` all are inside.
        """

        def values(channel: Any) -> Iterator[Any]:
            for offset in self.row_offsets:
                row = self.builder.gep(channel, [offset])
                for first in range(0, self.taps_per_row, 2):
                    base = self.builder.gep(row, [INT64(first)])
                    yield from self._read_pairs(base, first_pixels.value)

        self._add_up(begin, values, weights, are_inside)

    def add_up_padded(self, tile: _Tile, begin: Any, taps: Sequence[_AxisTaps]) -> None:
        """Emit loops as :meth:`add_up`, for taps of which the first one may be outside."""
        builder = self.builder
        is_outside = FALSE
        for axis, axis_taps in zip(tile.axes, taps, strict=True):
            inside = axis_taps.first.clip(0, axis.length - self.taps_per_row)
            is_outside = builder.or_(is_outside, axis_taps.first.differs(inside).any())
        with builder.if_else(is_outside, likely=False) as (some_outside, all_inside):
            with some_outside:
                has_zeros = tile.has_padding(ZEROS)
                with builder.if_else(has_zeros) as (with_zeros, with_other_padding):
                    with with_zeros:
                        moved = list(map(_moved_inside, tile.axes, taps))
                        self.add_up(begin, tile.flat_index(_firsts(moved)), *_combine(moved))
                    with with_other_padding:
                        self._add_up_one_by_one(tile, begin, taps)
            with all_inside:
                weights, _ = _combine(taps)
                self.add_up(begin, tile.flat_index(_firsts(taps)), weights)

    def _add_up_one_by_one(self, tile: _Tile, begin: Any, taps: Sequence[_AxisTaps]) -> None:
        """Emit the loop as :meth:`add_up`, for taps that are padded one by one."""
        padded = [
            _padded_pixels(tile, axis, axis_taps)
            for axis, axis_taps in zip(tile.axes, taps, strict=True)
        ]
        indices = [tile.flat_index(pixels) for pixels in product(*padded)]

        def values(channel: Any) -> Iterator[Any]:
            for index in indices:
                yield self._read(channel, index.value)

        weights, _ = _combine(taps)
        self._add_up(begin, values, weights, are_inside=())

    def _add_up(
        self,
        begin: Any,
        values_of: Callable[[Any], Iterator[Any]],
        weights: Sequence[Lanes],
        are_inside: Sequence[Lanes],
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
                total = are_inside[tap].choose(added, total) if are_inside else added
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
        mode: a mode of WEIGHTED_TAPS, as a constant.
        X: channels (C, S).
        normalized: the normalized coordinates (r, ≥ P), the outermost axis first.
        lengths: the lengths of X (r,). None is less than the number of taps of an axis.
        padding: ZEROS, BORDER or REFLECTION.
        align_corners: the attribute.
        positions: P, not less than the lanes of a vector of weights.
        Y: the result is written to Y[:, start:] (C, ≥ start + P). Sums of halves are float32.
        start: see ``Y``.

    Returns:
        Whether Y has been filled. It has not if r is not one of SUPPORTED_AXES, or if coordinates
        must be reflected several times.
    """
    rule = WEIGHTED_TAPS[mode.literal_value]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = array_structs(context, builder, arguments, signature.args)
        X_array, normalized, lengths, Y_array = arrays
        _, _, _, _, padding, align_corners, positions, _, start = arguments
        tile_arguments = _TileArguments(normalized, lengths, padding, align_corners, positions)
        weight = Y_array.data.type.pointee

        def emit_vector(tile: _Tile, begin: Any, coordinates: list[Lanes]) -> None:
            taps = [
                rule.axis_taps(axis, values, weight)
                for axis, values in zip(tile.axes, coordinates, strict=True)
            ]
            row_offsets = _row_offsets(builder, tile.lengths, rule.n_taps)
            channels = _Channels(
                builder, X_array, X.dtype, Y_array, start, row_offsets, rule.n_taps
            )
            if rule.pads_taps:
                channels.add_up_padded(tile, begin, taps)
            else:
                channels.add_up(begin, tile.flat_index(_firsts(taps)), *_combine(taps))

        lanes = VECTOR_SIZE // ITEMSIZE[str(weight)]
        return _emit_vectors(builder, tile_arguments, lanes, rule.pads_taps, emit_vector)

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
