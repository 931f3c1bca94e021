"""Vectors in compiled code: layouts of taps, and functions that copy and transpose.

This module and :mod:`.simd_sums` generate LLVM instructions through Numba's intrinsics. LLVM does
not vectorize the equivalent loops, which are 3 to 8 times as slow.

An intrinsic is a function of Numba types. It returns a signature and a function ``generate``, which
emits the instructions for a call. Compiled code calls the intrinsic with values, without its first
parameter, Numba's context. Here ``builder`` is the llvmlite.ir.IRBuilder that emits instructions,
and a "value", "pointer" or "vector" is an LLVM value that exists when the kernel runs.

Arrays of uint16 and int16 may be the bits of halves: see :mod:`.halves`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import target
from .llvm_helpers import (
    INT32,
    INT64,
    ITEMSIZE,
    array_structs,
    can_gather,
    emit_prefetch,
    gather,
    if_equal,
    load_vector,
    store_vector,
    widen_halves,
)

#: Whether it pays off to gather pixels into vectors from arbitrary addresses, and to add them up
#: there.
CPU_HAS_FAST_VECTORS = target.has_fast_vectors()
#: The sizes of vectors in bytes. Wide vectors are faster, but a processor that has them slows down
#: by a tenth for a while after each use. A processor without them splits them in two.
WIDE_VECTOR = 64
NARROW_VECTOR = 32
#: The size of the vectors that hold the coordinates or the weights of some positions.
REGISTER_SIZE = target.register_size()
#: Square blocks are transposed in strips of columns, of so many bytes in each row. The rows of a
#: wide block fill 64 registers of 16 bytes. ARM has 32, and a third of the instructions moved
#: registers to the stack and back. Elsewhere, a strip has all columns.
STRIP_SIZE = REGISTER_SIZE if REGISTER_SIZE == 16 else 128
#: The layouts of the taps of a tile. GATHERED: the table has an index for each tap. CONTIGUOUS: the
#: table has the index of the first tap, and offsets of the others. Each two taps are adjacent if
#: the number of taps is even. MASKED: as CONTIGUOUS, but a tap whose weight is NaN is skipped. The
#: order matters: the layout of a combined table is the minimum.
GATHERED, MASKED, CONTIGUOUS = range(3)
#: An index with this bit is a tap outside, which counts as 0. Every other index is a pixel of X.
OUTSIDE_BIT = np.uint32(1 << 31)
#: The numbers of channels of a panel: a vector of the processor, or a cache line.
NARROW_PANEL = 4
WIDE_PANEL = 16
#: In mode nearest, one pixel is prefetched for this many positions of a smooth grid.
SMOOTH_STEP = 8
#: The number of positions that :func:`copy_pixels` copies at a time.
COPIED_AT_ONCE = 16
#: The size in bytes of the vectors in which copied pixels are collected. Writing a vector takes 0.9
#: times as long as writing its pixels one by one.
COPIED_VECTOR = 16


# --- Functions for kernels ---


@intrinsic
def prefetch(typing_context: Any, x: Any, pixel: Any) -> Any:
    """Prefetch a pixel of the channel ``x`` (S,) for reading."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (channel,) = array_structs(context, builder, arguments[:1], signature.args[:1])
        emit_prefetch(builder, builder.gep(channel.data, [builder.zext(arguments[1], INT64)]))
        return context.get_dummy_value()

    return types.void(x, types.uint32), generate


@intrinsic
def copy_pixels(
    typing_context: Any,
    x: Any,
    index: Any,
    inside: Any,
    has_outside: Any,
    step: Any,
    positions: Any,
    y: Any,
    next_x: Any,
) -> Any:
    """Copy pixels of a channel, and prefetch pixels of the next channel.

    Args:
        typing_context: Numba's; callers omit it.
        x: the channel (S,).
        index: the pixel of each position (≥ P,).
        inside: the same (≥ P,), with any pixel of X for a position outside.
        has_outside: whether some positions may be outside, for which 0 is written.
        step: 1 or SMOOTH_STEP. One pixel is prefetched for so many positions.
        positions: the number of positions, a multiple of COPIED_AT_ONCE.
        y: where the pixels are written (≥ P,).
        next_x: the next channel (S,).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = array_structs(context, builder, arguments, signature.args)
        channel, index_array, inside_array, to_array, next_channel = arrays
        _, _, _, has_outside, step, positions, _, _ = arguments
        element = channel.data.type.pointee
        lanes = WIDE_VECTOR // ITEMSIZE.get(str(element), WIDE_VECTOR)
        copy = _gather_block if can_gather(element, lanes) else _copy_block
        increment = INT64(COPIED_AT_ONCE)
        for size, may_be_outside in product((1, SMOOTH_STEP), (False, True)):
            with (
                if_equal(builder, step, size),
                if_equal(builder, has_outside, may_be_outside),
                cgutils.for_range_slice(builder, INT64(0), positions, increment, INT64) as loop,
            ):
                position, _ = loop
                marked, pixels, to = (
                    builder.gep(array.data, [position])
                    for array in (index_array, inside_array, to_array)
                )
                for number in range(0, COPIED_AT_ONCE, size):
                    pixel = _load_pixel(builder, pixels, number)
                    emit_prefetch(builder, builder.gep(next_channel.data, [pixel]))
                copy(builder, channel.data, pixels, marked if may_be_outside else None, to)
        return context.get_dummy_value()

    argument_types = x, index, inside, types.boolean, step, positions, y, next_x
    return types.void(*argument_types), generate


def _load_pixel(builder: Any, pixels: Any, number: int) -> Any:
    """Load a pixel, given a pointer to several, as int64."""
    return builder.zext(builder.load(builder.gep(pixels, [INT64(number)])), INT64)


def _copy_block(builder: Any, channel: Any, pixels: Any, marked: Any, to: Any) -> None:
    """Copy COPIED_AT_ONCE pixels of a channel, which are read one by one.

    Args:
        builder: LLVM's.
        channel: a pointer to the channel.
        pixels: a pointer to the pixels, all of them of X.
        marked: a pointer to the pixels, of which the value is 0 for one outside; None if all are
            inside.
        to: a pointer to where the pixels are written.
    """
    element = channel.type.pointee
    lanes = COPIED_VECTOR // ITEMSIZE.get(str(element), COPIED_VECTOR)
    for first in range(0, COPIED_AT_ONCE, lanes):
        values = []
        for lane in range(lanes):
            pixel = builder.gep(channel, [_load_pixel(builder, pixels, first + lane)])
            values.append(builder.load(pixel))
        destination = builder.gep(to, [INT64(first)])
        if lanes == 1:  # an element that is no number
            (value,) = values
            if marked is not None:
                are_inside = _are_inside(builder, marked, first, lanes)
                is_inside = builder.extract_element(are_inside, INT32(0))
                value = builder.select(is_inside, value, ir.Constant(element, None))
            builder.store(value, destination)
            continue
        vector = ir.Constant(ir.VectorType(element, lanes), ir.Undefined)
        for lane, value in enumerate(values):
            vector = builder.insert_element(vector, value, INT32(lane))
        if marked is not None:
            are_inside = _are_inside(builder, marked, first, lanes)
            vector = builder.select(are_inside, vector, ir.Constant(vector.type, None))
        store_vector(builder, vector, destination)


def _gather_block(builder: Any, channel: Any, pixels: Any, marked: Any, to: Any) -> None:
    """Copy as :func:`_copy_block`, in vectors."""
    element = channel.type.pointee
    lanes = WIDE_VECTOR // ITEMSIZE[str(element)]
    for first in range(0, COPIED_AT_ONCE, lanes):
        vector = ir.VectorType(INT32, lanes)
        index = load_vector(builder, builder.gep(pixels, [INT64(first)]), vector)
        are_read = None if marked is None else _are_inside(builder, marked, first, lanes)
        values = gather(builder, channel, index, element, are_read)
        store_vector(builder, values, builder.gep(to, [INT64(first)]))


def _are_inside(builder: Any, marked: Any, first: int, lanes: int) -> Any:
    """Return a vector of bits: which pixels are inside, from the one with the number ``first`` on.

    ``marked`` is a pointer to the pixels.
    """
    vector = ir.VectorType(INT32, lanes)
    index = load_vector(builder, builder.gep(marked, [INT64(first)]), vector)
    return builder.icmp_signed(">=", index, ir.Constant(vector, None))


def _transposition(*, to_channels: bool) -> Any:
    """Return a function for kernels that transposes a square block.

    Args:
        to_channels: whether the rows of the destination are channels; otherwise those of the
            source.
    """

    @intrinsic
    def transpose(
        typing_context: Any,
        source: Any,
        row: Any,
        column: Any,
        destination: Any,
        to_row: Any,
        to_column: Any,
        width: Any,
    ) -> Any:
        """Copy a square block of ``source`` to ``destination``, transposed.

        Halves are converted to float32. The last channel is read or written again for each one
        that a block lacks.

        Args:
            typing_context: Numba's; callers omit it.
            row: the first row of the block in ``source``.
            column: the first column of the block in ``source``.
            to_row: the first row of the block in ``destination``.
            to_column: the first column of the block in ``destination``.
            width: the number of rows and columns of the block, NARROW_PANEL or WIDE_PANEL.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            from_array, to_array = array_structs(context, builder, arguments, signature.args)
            _, first_row, first_column, _, first_to_row, first_to_column, block_width = arguments

            def element(array: Any, row: Any, column: Any, are_channels: bool) -> Any:
                """Return a pointer to an element of an array. It may lack rows for channels."""
                rows, columns = cgutils.unpack_tuple(builder, array.shape)
                if are_channels:
                    last_row = builder.sub(rows, INT64(1))
                    is_row = builder.icmp_signed("<", row, last_row)
                    row = builder.select(is_row, row, last_row)
                return builder.gep(array.data, [builder.add(builder.mul(row, columns), column)])

            def load(number: int, first: int, lanes: int) -> Any:
                """Load so many elements of a row of the block, from the column ``first`` on."""
                row = builder.add(first_row, INT64(number))
                column = builder.add(first_column, INT64(first))
                vector = ir.VectorType(from_array.data.type.pointee, lanes)
                pointer = element(from_array, row, column, not to_channels)
                values = load_vector(builder, pointer, vector)
                if from_array.data.type != to_array.data.type:
                    return widen_halves(builder, values, signature.args[0].dtype)
                return values

            for width in (NARROW_PANEL, WIDE_PANEL):
                with if_equal(builder, block_width, width):
                    size = ITEMSIZE[str(to_array.data.type.pointee)]
                    for number, parts in _columns(builder, width, size, load):
                        row = builder.add(first_to_row, INT64(number))
                        pointer = element(to_array, row, first_to_column, to_channels)
                        _store_parts(builder, parts, pointer)
            return context.get_dummy_value()

        arguments = (source, row, column, destination, to_row, to_column, width)
        return types.void(*arguments), generate

    return transpose


#: Transpose a block of channels to pixels of a panel, and positions with the channels last to
#: channels. A panel has the values of the last channel for each one that it lacks.
transpose_channels = _transposition(to_channels=False)
transpose_to_channels = _transposition(to_channels=True)


@intrinsic
def copy_rows(
    typing_context: Any,
    panel: Any,
    index: Any,
    position: Any,
    Y: Any,
    to_position: Any,
) -> Any:
    """Copy the rows of a panel for WIDE_PANEL positions to the channels of Y, transposed.

    Rows for as many positions after them are prefetched.

    Args:
        typing_context: Numba's; callers omit it.
        panel: the panel (S + 1, WIDE_PANEL).
        index: the row for each position (≥ P,). An index beyond the last row is the last row.
        position: the first position. As many entries of ``index`` after those that are copied can
            be read.
        Y: where the values are written (C ≤ WIDE_PANEL, P).
        to_position: the first position in ``Y``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = array_structs(context, builder, arguments, signature.args)
        panel_array, index_array, to_array = arrays
        _, _, first_position, _, first_to_position = arguments
        last_row = builder.sub(cgutils.unpack_tuple(builder, panel_array.shape)[0], INT64(1))
        channels, columns = cgutils.unpack_tuple(builder, to_array.shape)

        def row_of(position: Any) -> Any:
            """Return a pointer to the row of a position."""
            entry = builder.load(builder.gep(index_array.data, [position]))
            row = builder.zext(entry, INT64)
            is_pixel = builder.icmp_unsigned("<", row, last_row)
            row = builder.select(is_pixel, row, last_row)
            return builder.gep(panel_array.data, [builder.mul(row, INT64(WIDE_PANEL))])

        element = panel_array.data.type.pointee
        rows: list[Any] = []

        def load(number: int, first: int, lanes: int) -> Any:
            """Load so many channels of a position, from the channel ``first`` on."""
            if first == 0:
                position = builder.add(first_position, INT64(number))
                emit_prefetch(builder, row_of(builder.add(position, INT64(WIDE_PANEL))))
                rows.append(row_of(position))
            pointer = builder.gep(rows[number], [INT64(first)])
            return load_vector(builder, pointer, ir.VectorType(element, lanes))

        for number, parts in _columns(builder, WIDE_PANEL, ITEMSIZE[str(element)], load):
            is_channel = builder.icmp_signed("<", INT64(number), channels)
            with builder.if_then(is_channel, likely=True):
                to_row = builder.mul(INT64(number), columns)
                to = builder.gep(to_array.data, [builder.add(to_row, first_to_position)])
                _store_parts(builder, parts, to)
        return context.get_dummy_value()

    return types.void(panel, index, position, Y, to_position), generate


def _columns(
    builder: Any, width: int, size: int, load: Callable[[int, int, int], Any]
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the index and the parts of each column of a square block, strip by strip.

    Args:
        builder: LLVM's.
        width: the number of rows and columns of the block.
        size: the size of an element.
        load: loads some elements of a row, given the row, the first column and the number of
            elements.
    """
    lanes = min(width, STRIP_SIZE // size)
    for first in range(0, width, lanes):
        rows = [load(row, first, lanes) for row in range(width)]
        blocks = [
            _transposed(builder, rows[first_row : first_row + lanes])
            for first_row in range(0, width, lanes)
        ]
        for number, parts in enumerate(zip(*blocks, strict=True)):
            yield first + number, list(parts)


def _store_parts(builder: Any, parts: list[Any], pointer: Any) -> None:
    """Store vectors one after the other, from a pointer on."""
    for number, values in enumerate(parts):
        store_vector(builder, values, builder.gep(pointer, [INT64(number * values.type.count)]))


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Return the columns of ``rows``, which are as many vectors as each has elements.

    Blocks of size 1, 2, 4, … on both sides of the diagonal are exchanged. All remain in registers.
    """
    rows = list(rows)
    width = len(rows)
    lanes = ir.VectorType(INT32, width)
    size = 1
    while size < width:
        # Of a pair of rows: the lanes of the new first row, and those of the new second row.
        first = [lane + (width - size if lane & size else 0) for lane in range(width)]
        second = [lane + (width if lane & size else size) for lane in range(width)]
        for number in range(width):
            if not number & size:
                upper = rows[number]
                lower = rows[number + size]
                rows[number] = builder.shuffle_vector(upper, lower, ir.Constant(lanes, first))
                exchanged = builder.shuffle_vector(upper, lower, ir.Constant(lanes, second))
                rows[number + size] = exchanged
        size *= 2
    return rows
