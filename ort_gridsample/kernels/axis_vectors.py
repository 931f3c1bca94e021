"""The taps of coordinates on one axis, in vectors of generated code.

All formulas are those of the rows of modes and paddings (:mod:`ort_gridsample.reference`), which
emit instructions here (:mod:`.lanes`). :mod:`.tap_plans` tells which of them are needed.
:mod:`.tap_table` stores the taps in a table, :mod:`.vector_sampling` reads X at once.

Here ``builder`` is the llvmlite.ir.IRBuilder that emits instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils

from ..reference.coordinates import Axis, infinity_at_edge, nan_as_minus_one, unnormalize
from ..reference.taps import Mode, tap_positions
from .lanes import VECTORS, Lanes, filled_lanes
from .llvm_helpers import INT32, INT64
from .simd import REGISTER_SIZE
from .tap_plans import TapPlan

#: The size of a vector of weights or, in a mode without weights, of coordinates.
VECTOR_SIZE = REGISTER_SIZE
FALSE = ir.IntType(1)(0)
TRUE = ir.IntType(1)(1)


@dataclass(frozen=True)
class VectorAxis:
    """An axis of X, whose numbers are in all lanes of vectors.

    Attributes:
        numbers: the numbers that rows read, of the coordinates' type.
        length: the number of pixels, as int32.
        rounded_up: a pixel after the last one, of the coordinates' type. Every type has it, or a
            number beyond it.
    """

    numbers: Axis
    length: Lanes
    rounded_up: Lanes

    @classmethod
    def of_number(
        cls, builder: Any, length: Any, align_corners: Any, coordinate: Any, lanes: int
    ) -> VectorAxis:
        """Return an axis, given its number of pixels as int64, and the number of lanes."""
        integers = filled_lanes(builder, builder.trunc(length, INT32), lanes)
        return cls.of(integers, align_corners, coordinate)

    @classmethod
    def of(cls, length: Lanes, align_corners: Any, coordinate: Any) -> VectorAxis:
        """Return an axis, or one per lane.

        Args:
            length: the number of pixels, as int32.
            align_corners: the attribute, as one bit.
            coordinate: the LLVM type of coordinates.
        """
        builder = length.builder

        def choose(if_aligned: Lanes, otherwise: Lanes | float) -> Lanes:
            return if_aligned.with_value(
                builder.select(align_corners, if_aligned.value, if_aligned.operand(otherwise))
            )

        pixels = length.to_floats(coordinate)
        last = (length - 1).to_floats(coordinate)
        zero = pixels.filled_with(0)
        numbers = Axis(
            length=pixels,
            last=last,
            span=choose(last.maximum(1), pixels),
            scale=choose(last, pixels) * 0.5,
            offset=choose(zero, 0.5),
            low=choose(zero, -0.5),
            # Infinity times a scale of 0 is NaN, which clipping makes the lowest coordinate. It is
            # as good as any: the axis has one pixel.
            may_collapse=False,
            maximum=VECTORS.maximum,
        )
        millions = length.with_value(builder.ashr(length.value, length.filled_with(20).value))
        return cls(numbers, length, rounded_up=(length + millions).to_floats(coordinate))

    def unpadded(self, normalized: Lanes) -> Lanes:
        """Return the pixel coordinates of normalized ones. NaN counts as -1."""
        return unnormalize(nan_as_minus_one(VECTORS, normalized), self.numbers)

    def clip_outside(self, x: Lanes, reach: int) -> Lanes:
        """Clip pixel coordinates where no tap, less than ``reach`` from them, is inside.

        They are then within int32.
        """
        return x.clip(-(reach + 1), self.rounded_up + reach)


# --- Pixel coordinates ---


def padded_once(plan: TapPlan, axis: VectorAxis, x: Lanes) -> tuple[Lanes, Any]:
    """Pad pixel coordinates unless only taps are padded, and tell whether some are too far.

    Args:
        x: pixel coordinates, which may be infinite.

    Returns:
        The coordinates, and a bit: whether some coordinates, or taps next to them, are too far for
        ``pad_once``. The coordinates are then wrong.
    """
    is_far = _is_far(plan, axis, x)
    return (plan.padding.pad_once(VECTORS, x, axis.numbers) if plan.pads_coordinates else x), is_far


def _is_far(plan: TapPlan, axis: VectorAxis, x: Lanes) -> Any:
    """Return a bit: whether a coordinate, or a tap next to it, is too far for ``pad_once``."""
    assert plan.padding.period is not None
    limit = plan.padding.period(axis.numbers)
    distance = x
    if not plan.pads_coordinates:
        limit = limit - plan.reach
    elif plan.pads_taps:
        # Such a padding pads once what is at most a period from X.
        center = axis.numbers.last * 0.5
        limit = limit + center
        distance = x - center
    return distance.is_not_within(limit).any()


def padded(plan: TapPlan, axis: VectorAxis, normalized: Lanes) -> Lanes:
    """Return finite pixel coordinates of any normalized ones, padded unless only taps are."""
    x = axis.unpadded(normalized)
    padding = plan.padding
    if padding.period is None:
        return _padded_without_period(plan, axis, x)
    x = infinity_at_edge(VECTORS, x, normalized, axis.numbers)
    if not plan.pads_coordinates:
        return x
    builder = x.builder
    near = variable(builder, x.value)
    with builder.if_then(_is_far(plan, axis, x), likely=False):
        builder.store(VECTORS.fmod(x, padding.period(axis.numbers)).value, near)
    return padding.pad_once(VECTORS, Lanes(builder, builder.load(near)), axis.numbers)


def limits(plan: TapPlan, axis: VectorAxis) -> tuple[Lanes, Lanes]:
    """Return the limits to which a padding without a period clips pixel coordinates."""
    infinity = axis.numbers.last.filled_with(float("inf"))
    low = _padded_without_period(plan, axis, 0 - infinity)
    return low, _padded_without_period(plan, axis, infinity)


def _padded_without_period(plan: TapPlan, axis: VectorAxis, x: Lanes) -> Lanes:
    """Return finite coordinates for a padding to which all coordinates far outside are equal."""
    if not (plan.pads_coordinates and plan.padding.pad_handles_infinity):
        x = axis.clip_outside(x, plan.reach)
    return plan.padding.pad(VECTORS, x, axis.numbers) if plan.pads_coordinates else x


# --- Taps ---


@dataclass(frozen=True)
class AxisTaps:
    """The taps of an axis, which are adjacent.

    Attributes:
        first: the first pixel, as int32. It may be outside.
        weights: the weight of each tap; none if the mode has no weights.
        base: the pixel from which the taps are counted, as a coordinate.
    """

    first: Lanes
    weights: tuple[Lanes, ...]
    base: Lanes


@dataclass(frozen=True)
class TapsInside:
    """Adjacent taps of an axis inside of it.

    Attributes:
        first: the first pixel, as int32.
        weights: the weight of each tap; none if the mode has no weights.
        outside: for each tap, int32 that are negative where the tap does not count. A processor
            without mask registers selects by the sign, but would shorten and widen a vector of bits
            that is used in another block, such as a loop.
    """

    first: Lanes
    weights: Sequence[Lanes]
    outside: Sequence[Lanes]


def taps_of(mode: Mode, x: Lanes, weight: Any) -> AxisTaps:
    """Return the taps of finite pixel coordinates, with weights of this LLVM type."""
    base = mode.base(VECTORS, x)
    first = base.to_integers()
    if mode.offsets[0] != 0:
        first = first + mode.offsets[0]
    weights: tuple[Lanes, ...] = ()
    if mode.weights is not None:
        weights = tuple(mode.weights(VECTORS, (x - base).to_floats(weight)))
    return AxisTaps(first, weights, base)


def moved_inside(axis: VectorAxis, taps: AxisTaps) -> TapsInside:
    """Move taps of a mode with weights inside, where those that were outside do not count.

    The axis has at least as many pixels as there are taps.
    """
    n_taps = len(taps.weights)
    first = taps.first.clip(0, axis.length - n_taps)
    move = first - taps.first
    weights = []
    outside = []
    for tap in range(n_taps):
        # The tap is that with the number ``move + tap`` of those before.
        weight = taps.weights[0]
        for number, other_weight in enumerate(taps.weights[1:], start=1):
            weight = move.equals(number - tap).choose(other_weight, weight)
        weights.append(weight)
        outside.append((move + tap) | ((n_taps - 1 - tap) - move))
    return TapsInside(first, weights, outside)


def pixels_of_taps(
    plan: TapPlan, axis: VectorAxis, base: Lanes, *, are_near: bool
) -> Iterator[tuple[Lanes, Lanes]]:
    """Yield the pixel of each tap, as int32, padded one by one, and whether the tap counts.

    A tap that is outside does not count with some paddings, and its pixel is outside. With others,
    the outer pixel is read.

    Args:
        base: the pixels from which the taps are counted, as coordinates.
        are_near: whether no tap is more than a period from 0, and the coordinates of all pixels
            are exact.
    """
    unpadded = tap_positions(plan.mode, base)
    positions = [unpadded] if isinstance(unpadded, Lanes) else list(unpadded)
    if plan.pads_taps:
        if not are_near:
            positions = _without_periods(plan, axis, base, positions)
        positions = [plan.padding.pad_once(VECTORS, x, axis.numbers) for x in positions]
    for position in positions:
        pixel = position.to_integers()
        if plan.padding.zero_outside:
            yield pixel, pixel.is_index_of(axis.length)
            continue
        # Padded taps are inside. On a long axis, the last pixel may be rounded.
        is_inside = are_near and plan.pads_taps
        inside = pixel if is_inside else pixel.clip(0, axis.length - 1)
        yield inside, pixel.equals(inside).filled_with(1)


def _without_periods(
    plan: TapPlan, axis: VectorAxis, base: Lanes, positions: Sequence[Lanes]
) -> list[Lanes]:
    """Return the remainders of ``positions`` by the period of the padding, if it has one.

    One comparison for all taps usually tells that they are the positions themselves.
    """
    if plan.padding.period is None:
        return list(positions)
    builder = base.builder
    period = plan.padding.period(axis.numbers)
    pointers = [variable(builder, x.value) for x in positions]
    limit = period - plan.reach
    if plan.pads_coordinates:
        limit = limit + axis.numbers.last  # no base is before the first pixel
    is_far = base.is_not_within(limit).any()
    with builder.if_then(is_far, likely=False):
        for pointer, x in zip(pointers, positions, strict=True):
            builder.store(VECTORS.fmod(x, period).value, pointer)
    return [Lanes(builder, builder.load(pointer)) for pointer in pointers]


# --- Code for one of several paddings ---


def by_padding(
    builder: Any,
    padding: Any,
    plans: Sequence[TapPlan | None],
    emit: Callable[[TapPlan], Sequence[Any]],
) -> list[Any]:
    """Emit code for each padding, of which one runs; return its LLVM values.

    Args:
        builder: LLVM's.
        padding: the code of the padding, as int64.
        plans: the plans of a mode, by the code of the padding, as in :func:`each_padding`.
        emit: emits the code for a plan, and returns its values. Their types are always the same.
    """
    results: list[Any] = []
    for plan in each_padding(builder, padding, plans):
        values = emit(plan)
        if not results:
            results = [cgutils.alloca_once(builder, value.type) for value in values]
        for pointer, value in zip(results, values, strict=True):
            builder.store(value, pointer)
    return [builder.load(pointer) for pointer in results]


def each_padding(builder: Any, padding: Any, plans: Sequence[TapPlan | None]) -> Iterator[TapPlan]:
    """Yield each plan, while the code that its padding runs is emitted.

    None is the plan of a padding with which the code does not run.
    """
    end = builder.append_basic_block("after_paddings")
    unknown = builder.append_basic_block("unknown_padding")
    switch = builder.switch(padding, unknown)
    for code, plan in enumerate(plans):
        if plan is None:
            continue
        block = builder.append_basic_block(f"padding{code}")
        switch.add_case(INT64(code), block)
        builder.position_at_end(block)
        yield plan
        builder.branch(end)
    builder.position_at_end(unknown)
    builder.unreachable()
    builder.position_at_end(end)


def is_one_of(builder: Any, padding: Any, codes: Sequence[int]) -> Any:
    """Return a bit: whether the code of a padding is one of ``codes``."""
    result = FALSE
    for code in codes:
        result = builder.or_(result, builder.icmp_unsigned("==", padding, INT64(code)))
    return result


class _Vector(NamedTuple):
    """A vector in a loop over positions."""

    begin: Any  #: its first position
    end_loop: Callable[[], None]  #: emits the end of the loop


@contextmanager
def vectors_of(builder: Any, positions: Any, lanes: int) -> Iterator[_Vector]:
    """Emit a loop over vectors of positions.

    The last vector may have positions after the last one.
    """
    rounded_up = builder.add(positions, INT64(lanes - 1))
    with cgutils.for_range(builder, builder.udiv(rounded_up, INT64(lanes))) as loop:
        yield _Vector(builder.mul(loop.index, INT64(lanes)), loop.do_break)


def variable(builder: Any, value: Any) -> Any:
    """Return a pointer to a variable, to which ``value`` is assigned."""
    pointer = cgutils.alloca_once(builder, value.type)
    builder.store(value, pointer)
    return pointer
