"""The sum over rows of channels, in the CPU's vectors: written in LLVM, the compiler's own language.

Numba's compiler does not find these vectors in loops over channels, :func:`add_up_in_loops`: 3 to 8 times as fast. They
are written by Numba's insides; where those are not as expected, the loops do the work.
"""

from __future__ import annotations

import logging
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

cgutils: Any = untyped_cgutils

#: Channels that lie side by side in a row: a CPU's vector, or a line of its cache.
NARROW, WIDE = 4, 16
#: So many positions ahead the rows are called into the cache: up to twice as fast on random grids.
AHEAD = 8

logger = logging.getLogger("ort_gridsample")


def add_up_in_loops(X: Any, index: Any, weight: Any, p: Any, tile: Any, q: Any) -> None:
    """Add up the taps of position ``p``, rows of ``X`` (S + 1, W), into column ``q`` of ``tile`` (W, > q).

    ``index`` and ``weight`` are (taps, > p + AHEAD), taps even. An index beyond the last row is the last row.
    """
    outside, width = len(X) - 1, X.shape[1]
    for c in range(width):
        tile[c, q] = 0
    for tap in range(len(index)):
        i, w = min(index[tap, p], outside), weight[tap, p]
        for c in range(width):
            tile[c, q] += w * X[i, c]


def add_up(width: int) -> Any:
    """As :func:`add_up_in_loops`, for rows of ``width`` channels; to be called in a kernel."""

    @intrinsic
    def add_up_rows(context: Any, X: Any, index: Any, weight: Any, p: Any, tile: Any, q: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            try:
                _write(context, *_draft(arguments), signature.args, width)
            except Exception as error:
                logger.warning("this Numba's insides are unknown, kernels will be slower: %r", error)
                return context.compile_internal(builder, add_up_in_loops, signature, arguments)
            _write(context, builder, arguments, signature.args, width)
            return context.get_dummy_value()

        return types.void(X, index, weight, p, tile, q), generate

    return add_up_rows


def _draft(arguments: Any) -> tuple[Any, Any]:
    """A place to write first, so that what cannot be written leaves nothing half-written behind."""
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    function: Any = ir.Function(ir.Module(), kind, "draft")
    return ir.IRBuilder(function.append_basic_block()), function.args


def _write(context: Any, builder: Any, arguments: Any, kinds: Any, width: int) -> None:
    arrays: list[Any] = [
        context.make_array(kind)(context, builder, value) if isinstance(kind, types.Array) else None
        for kind, value in zip(kinds, arguments, strict=True)
    ]
    x, at, by, _, to, _ = arrays
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
            values = builder.load(builder.bitcast(row_of(entry), vector.as_pointer()))
            values.align = kinds[0].dtype.bitwidth // 8
            one = builder.load(builder.gep(by.data, [entry]))
            many = builder.insert_element(ir.Constant(vector, ir.Undefined), one, flag(0))
            many = builder.shuffle_vector(many, many, ir.Constant(ir.VectorType(flag, width), [0] * width))
            product = builder.fmul(values, many, ("contract",))
            builder.store(builder.fadd(builder.load(total), product, ("contract",)), total)
    sums = builder.load(total)
    stride = cgutils.unpack_tuple(builder, to.shape)[1]
    for c in range(width):
        place = builder.add(builder.mul(word(c), stride), q)
        builder.store(builder.extract_element(sums, flag(c)), builder.gep(to.data, [place]))
