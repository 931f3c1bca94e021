"""Rows of channels in the CPU's vectors: the sum over them, and to rows and back. Written in LLVM, the compiler's own
language.

Numba's compiler does not find these vectors in the loops that say the same, which are 3 to 8 times as slow. They are
written by Numba's insides; where those are not as expected, the loops do the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

cgutils: Any = untyped_cgutils

#: Channels that lie side by side in a row: a CPU's vector, or a line of its cache.
NARROW, WIDE = 4, 16
#: What is known of an element's place: that of its type, not of a vector's.
_ALIGN = {"float": 4, "double": 8}
#: So many positions ahead the rows are called into the cache: up to twice as fast on random grids.
AHEAD = 8

logger = logging.getLogger("ort_gridsample")


def add_up_in_loops(X: Any, index: Any, weight: Any, p: Any, sums: Any, q: Any) -> None:
    """Add up the taps of position ``p``, rows of ``X`` (S + 1, W), into row ``q`` of ``sums`` (> q, W).

    ``index`` and ``weight`` are (taps, > p + AHEAD), taps even. An index beyond the last row is the last row.
    """
    outside, width = len(X) - 1, X.shape[1]
    for c in range(width):
        sums[q, c] = 0
    for tap in range(len(index)):
        i, w = min(index[tap, p], outside), weight[tap, p]
        for c in range(width):
            sums[q, c] += w * X[i, c]


def add_up(width: int) -> Any:
    """As :func:`add_up_in_loops`, for rows of ``width`` channels; to be called in a kernel."""

    @intrinsic
    def add_up_rows(context: Any, X: Any, index: Any, weight: Any, p: Any, sums: Any, q: Any) -> Any:
        return types.void(X, index, weight, p, sums, q), _written(_write_sums, add_up_in_loops, width)

    return add_up_rows


def transpose_in_loops(source: Any, i: Any, j: Any, to: Any, k: Any, m: Any) -> None:
    """Write the rows ``i``, … and columns ``j``, … of ``source`` as columns ``m``, … and rows ``k``, … of ``to``.

    As many of each as the shorter of the two arrays' rows is long.
    """
    width = min(source.shape[1], to.shape[1])
    for row in range(width):
        for column in range(width):
            to[k + column, m + row] = source[i + row, j + column]


def transpose(width: int) -> Any:
    """As :func:`transpose_in_loops`, for ``width`` rows and columns; to be called in a kernel."""

    @intrinsic
    def transpose_block(context: Any, source: Any, i: Any, j: Any, to: Any, k: Any, m: Any) -> Any:
        return types.void(source, i, j, to, k, m), _written(_write_transposed, transpose_in_loops, width)

    return transpose_block


def _written(write: Callable[..., None], in_loops: Callable[..., None], width: int) -> Any:
    """What generates the code that ``write`` writes; that of ``in_loops`` where it cannot."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        try:
            write(context, *_draft(arguments), signature.args, width)
        except Exception as error:
            logger.warning("this Numba's insides are unknown, kernels will be slower: %r", error)
            return context.compile_internal(builder, in_loops, signature, arguments)
        write(context, builder, arguments, signature.args, width)
        return context.get_dummy_value()

    return generate


def _draft(arguments: Any) -> tuple[Any, Any]:
    """A place to write first, so that what cannot be written leaves nothing half-written behind."""
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    function: Any = ir.Function(ir.Module(), kind, "draft")
    return ir.IRBuilder(function.append_basic_block()), function.args


def _arrays(context: Any, builder: Any, arguments: Any, kinds: Any) -> list[Any]:
    """The arrays among the ``arguments``."""
    return [
        context.make_array(kind)(context, builder, value)
        for kind, value in zip(kinds, arguments, strict=True)
        if isinstance(kind, types.Array)
    ]


def _write_sums(context: Any, builder: Any, arguments: Any, kinds: Any, width: int) -> None:
    x, at, by, to = _arrays(context, builder, arguments, kinds)
    _, _, _, p, _, q = arguments
    real, word = x.data.type.pointee, ir.IntType(64)
    vector = ir.VectorType(real, width)
    taps, columns = cgutils.unpack_tuple(builder, at.shape)
    rows = cgutils.unpack_tuple(builder, x.shape)[0]
    outside = builder.sub(rows, word(1))
    total = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * width))
    flag, byte = ir.IntType(32), ir.IntType(8).as_pointer()
    prefetch = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag]),
        "llvm.prefetch.p0",
    )

    def row_of(entry: Any) -> Any:
        i = builder.zext(builder.load(builder.gep(at.data, [entry])), word)
        i = builder.select(builder.icmp_unsigned("<", i, outside), i, outside)
        return builder.gep(x.data, [builder.mul(i, word(width))])

    with cgutils.for_range(builder, builder.lshr(taps, word(1))) as loop:
        for tap in range(2):
            row = builder.add(builder.shl(loop.index, word(1)), word(tap))
            entry = builder.add(builder.mul(row, columns), p)
            if tap == 0 or width == WIDE:  # else both taps tend to lie in one line of the cache
                soon = builder.bitcast(row_of(builder.add(entry, word(AHEAD))), byte)
                builder.call(prefetch, [soon, flag(0), flag(3), flag(1)])  # for reading, into every cache, data
            values = _load(builder, row_of(entry), vector)
            one = builder.load(builder.gep(by.data, [entry]))
            many = builder.insert_element(ir.Constant(vector, ir.Undefined), one, flag(0))
            many = builder.shuffle_vector(many, many, ir.Constant(ir.VectorType(flag, width), [0] * width))
            product = builder.fmul(values, many, ("contract",))
            builder.store(builder.fadd(builder.load(total), product, ("contract",)), total)
    _store(builder, builder.load(total), builder.gep(to.data, [builder.mul(q, word(width))]))


def _write_transposed(context: Any, builder: Any, arguments: Any, kinds: Any, width: int) -> None:
    source, to = _arrays(context, builder, arguments, kinds)
    _, i, j, _, k, m = arguments
    word = ir.IntType(64)

    def place(array: Any, row: Any, column: Any) -> Any:
        columns = cgutils.unpack_tuple(builder, array.shape)[1]
        return builder.gep(array.data, [builder.add(builder.mul(row, columns), column)])

    vector = ir.VectorType(source.data.type.pointee, width)
    rows = [_load(builder, place(source, builder.add(i, word(row)), j), vector) for row in range(width)]
    # Blocks of 1, 2, 4, … across the diagonal change places, all in the same registers.
    apart = 1
    while apart < width:
        first, second = (
            ir.Constant(
                ir.VectorType(ir.IntType(32), width),
                [lane + (there if lane & apart else here) for lane in range(width)],
            )
            for here, there in ((0, width - apart), (apart, width))
        )
        for row in range(width):
            if not row & apart:
                a, b = rows[row], rows[row + apart]
                rows[row] = builder.shuffle_vector(a, b, first)
                rows[row + apart] = builder.shuffle_vector(a, b, second)
        apart *= 2
    for column, values in enumerate(rows):
        _store(builder, values, place(to, builder.add(k, word(column)), m))


def _load(builder: Any, place: Any, vector: Any) -> Any:
    values = builder.load(builder.bitcast(place, vector.as_pointer()))
    values.align = _ALIGN[str(vector.element)]
    return values


def _store(builder: Any, values: Any, place: Any) -> None:
    stored = builder.store(values, builder.bitcast(place, values.type.as_pointer()))
    stored.align = _ALIGN[str(values.type.element)]
