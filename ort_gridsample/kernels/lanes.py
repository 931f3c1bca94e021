"""Vectors of generated code, with the operators of NumPy arrays and the functions of NumPy.

The rows of modes and paddings in :mod:`ort_gridsample.reference` are programs over a namespace
``xp``. With :data:`VECTORS` as ``xp`` and :class:`Lanes` as values, such a program emits LLVM
instructions, in the order of its operations.

NumPy has the taps of a coordinate on an axis of an array, (T, 1). Here an operation on
:class:`Lanes` and such an array returns :class:`Taps`: one vector per tap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from .llvm_helpers import INT64, fill_lanes

#: The NumPy name of an LLVM type of floating-point numbers.
_DTYPES = {"float": "float32", "double": "float64"}
_ELEMENTS = {"float32": ir.FloatType(), "float64": ir.DoubleType()}


class _Arithmetic:
    """The operators of NumPy arrays, for :class:`Lanes` and :class:`Taps`."""

    #: NumPy leaves an operator to the other operand.
    __array_ufunc__ = None

    def __add__(self, other: Operand) -> Any:
        return _elementwise(_add, self, other)

    def __radd__(self, other: Operand) -> Any:
        return _elementwise(_add, self, other)

    def __sub__(self, other: Operand) -> Any:
        return _elementwise(_subtract, self, other)

    def __rsub__(self, other: Operand) -> Any:
        return _elementwise(_subtract, other, self)

    def __mul__(self, other: Operand) -> Any:
        return _elementwise(_multiply, self, other)

    def __rmul__(self, other: Operand) -> Any:
        return _elementwise(_multiply, self, other)

    def __truediv__(self, other: Operand) -> Any:
        return _elementwise(_divide, self, other)

    def __rtruediv__(self, other: Operand) -> Any:
        return _elementwise(_divide, other, self)


class Lanes(_Arithmetic):
    """A vector of numbers, or of bits that are the results of comparisons.

    An operand of an operator is a vector of the same type or a Python number, which is then the
    operand in all lanes. No operation is fused with another one, except by :meth:`add_product`.

    Args:
        builder: the llvmlite.ir.IRBuilder that emits instructions.
        value: the LLVM value.
    """

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    @property
    def type(self) -> Any:
        """The vector's LLVM type."""
        return self.value.type

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return isinstance(self.type.element, (ir.FloatType, ir.DoubleType))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the elements, which are floating-point numbers."""
        return np.dtype(_DTYPES[str(self.type.element)])

    def astype(self, dtype: Any, copy: bool = False) -> Lanes:
        """Convert to floating-point numbers of a NumPy type. ``copy`` has no effect."""
        return self.to_floats(_ELEMENTS[np.dtype(dtype).name])

    def filled_with(self, number: float) -> Lanes:
        """Return a vector of the same type with a Python number in all lanes."""
        number = float(number) if self.is_float else int(number)
        return self.with_value(ir.Constant(self.type, [number] * self.type.count))

    def operand(self, other: Lanes | float) -> Any:
        """Return the LLVM value of another operand."""
        return other.value if isinstance(other, Lanes) else self.filled_with(other).value

    def with_value(self, value: Any) -> Lanes:
        """Return another vector."""
        return Lanes(self.builder, value)

    def __and__(self, other: Lanes) -> Lanes:
        return self.with_value(self.builder.and_(self.value, other.value))

    def __or__(self, other: Lanes) -> Lanes:
        return self.with_value(self.builder.or_(self.value, other.value))

    def equals(self, other: Lanes | float) -> Lanes:
        """Return which lanes are equal to those of ``other``."""
        return self._compare("==", other)

    def differs(self, other: Lanes | float) -> Lanes:
        """Return which lanes differ from those of ``other``."""
        return self._compare("!=", other)

    def is_less(self, other: Lanes | float) -> Lanes:
        """Return which lanes are less than those of ``other``."""
        return self._compare("<", other)

    def is_greater(self, other: Lanes | float) -> Lanes:
        """Return which lanes are greater than those of ``other``."""
        return self._compare(">", other)

    def is_at_least(self, other: Lanes | float) -> Lanes:
        """Return which lanes are not less than those of ``other``, and not NaN."""
        return self._compare(">=", other)

    def is_index_of(self, length: Lanes) -> Lanes:
        """Return which of these integers are not less than 0, and less than ``length``."""
        is_below = self.builder.icmp_unsigned("<", self.value, length.value)
        return self.with_value(is_below)

    def is_not_within(self, limit: Lanes) -> Lanes:
        """Return which lanes are further from 0 than ``limit``, or NaN."""
        distance = self.absolute().value
        return self.with_value(self.builder.fcmp_unordered(">", distance, limit.value))

    def minimum(self, other: Lanes | float) -> Lanes:
        """Return the elementwise minimum, and ``other`` where either is NaN."""
        return self.is_less(other).choose(self, other)

    def maximum(self, other: Lanes | float) -> Lanes:
        """Return the elementwise maximum, and ``other`` where either is NaN."""
        return self.is_greater(other).choose(self, other)

    def clip(self, low: Lanes | float, high: Lanes | float) -> Lanes:
        """Limit the lanes to ``low`` … ``high``. NaN becomes ``low``."""
        return self.maximum(low).minimum(high)

    def choose(self, if_true: Lanes | float, if_false: Lanes | float) -> Lanes:
        """Return the lanes of ``if_true`` where these bits are 1, otherwise of ``if_false``.

        At least one of them is a vector.
        """
        like = if_true if isinstance(if_true, Lanes) else if_false
        assert isinstance(like, Lanes)
        operands = like.operand(if_true), like.operand(if_false)
        return self.with_value(self.builder.select(self.value, *operands))

    def any(self) -> Any:
        """Return whether any of these bits is 1, as an LLVM value of one bit."""
        bits = self._as_integer()
        return self.builder.icmp_unsigned("!=", bits, bits.type(0))

    def all(self) -> Any:
        """Return whether all of these bits are 1, as an LLVM value of one bit."""
        bits = self._as_integer()
        return self.builder.icmp_unsigned("==", bits, bits.type(-1))

    def count_ones(self) -> Any:
        """Return how many of these bits are 1, as int64."""
        bits = self._as_integer()
        if bits.type.width < INT64.width:
            bits = self.builder.zext(bits, INT64)
        return self.builder.ctpop(bits)

    def _as_integer(self) -> Any:
        """Return the bits as an integer with as many bits."""
        return self.builder.bitcast(self.value, ir.IntType(self.type.count))

    def floor(self) -> Lanes:
        """Round to the next lower integers."""
        return self._call("llvm.floor")

    def rint(self) -> Lanes:
        """Round to the nearest integers, half to even."""
        return self._call("llvm.rint")

    def absolute(self) -> Lanes:
        """Return the absolute values."""
        return self._call("llvm.fabs")

    def sin(self) -> Lanes:
        """Return the sines. The C library computes them."""
        return self._call("llvm.sin")

    def to_integers(self) -> Lanes:
        """Convert to int32, toward zero. Values beyond int32 are undefined."""
        integers = ir.VectorType(ir.IntType(32), self.type.count)
        return self.with_value(self.builder.fptosi(self.value, integers))

    def to_floats(self, element: Any) -> Lanes:
        """Convert to floating-point numbers of an LLVM type."""
        vector = ir.VectorType(element, self.type.count)
        if vector == self.type:
            return self
        if not self.is_float:
            return self.with_value(self.builder.sitofp(self.value, vector))
        is_narrower = isinstance(element, ir.FloatType)
        emit = self.builder.fptrunc if is_narrower else self.builder.fpext
        return self.with_value(emit(self.value, vector))

    def add_product(self, factor: Lanes, other_factor: Lanes) -> Lanes:
        """Add a product, which may be fused with the sum."""
        flags = ("contract",)
        product = self.builder.fmul(factor.value, other_factor.value, flags=flags)
        return self.with_value(self.builder.fadd(self.value, product, flags=flags))

    def _compare(self, operator: str, other: Lanes | float) -> Lanes:
        emit = self.builder.fcmp_ordered if self.is_float else self.builder.icmp_signed
        return self.with_value(emit(operator, self.value, self.operand(other)))

    def _call(self, name: str) -> Lanes:
        """Call an LLVM intrinsic of one argument."""
        element = self.type.element.intrinsic_name
        function = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(self.type, [self.type]),
            f"{name}.v{self.type.count}{element}",
        )
        return self.with_value(self.builder.call(function, [self.value]))


class Taps(_Arithmetic):
    """One vector per tap of a coordinate, with the operators of an array (T, P) of NumPy."""

    def __init__(self, vectors: Sequence[Lanes]) -> None:
        self._vectors = tuple(vectors)

    def __iter__(self) -> Iterator[Lanes]:
        return iter(self._vectors)

    def __len__(self) -> int:
        return len(self._vectors)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the elements."""
        return self._vectors[0].dtype


#: An operand of an operator: an array is (T, 1), and has one number per tap.
Operand: TypeAlias = "Lanes | Taps | float | np.ndarray[Any, Any]"


def filled_lanes(builder: Any, value: Any, lanes: int) -> Lanes:
    """Return a vector with an LLVM ``value`` in all of so many lanes."""
    return Lanes(builder, fill_lanes(builder, value, ir.VectorType(value.type, lanes)))


def _elementwise(function: Callable[..., Lanes], *operands: Any) -> Any:
    """Apply a function of vectors and numbers to operands, tap by tap if some have taps."""
    by_tap: list[Any] = []
    n_taps = 0
    for operand in operands:
        if isinstance(operand, (Lanes, float, int)):
            by_tap.append(operand)
            continue
        values = operand[:, 0].tolist() if isinstance(operand, np.ndarray) else list(operand)
        by_tap.append(values)
        n_taps = len(values)
    if n_taps == 0:
        return function(*by_tap)
    columns = [value if isinstance(value, list) else [value] * n_taps for value in by_tap]
    return Taps([function(*values) for values in zip(*columns, strict=True)])


def _binary(
    float_name: str, integer_name: str, first: Lanes | float, second: Lanes | float
) -> Lanes:
    """Emit an instruction of two operands, at least one a vector, by the type of its elements."""
    like = first if isinstance(first, Lanes) else second
    assert isinstance(like, Lanes)
    emit = getattr(like.builder, float_name if like.is_float else integer_name)
    return like.with_value(emit(like.operand(first), like.operand(second)))


def _commuting(method: Callable[..., Lanes]) -> Callable[..., Lanes]:
    """Return a function of two operands, either of them a vector, for a method that commutes."""
    return lambda x, y: method(x, y) if isinstance(x, Lanes) else method(y, x)


def _less(first: Lanes | float, second: Lanes | float) -> Lanes:
    if isinstance(first, Lanes):
        return first.is_less(second)
    assert isinstance(second, Lanes)
    return second.is_greater(first)


def _add(first: Lanes | float, second: Lanes | float) -> Lanes:
    return _binary("fadd", "add", first, second)


def _subtract(first: Lanes | float, second: Lanes | float) -> Lanes:
    return _binary("fsub", "sub", first, second)


def _multiply(first: Lanes | float, second: Lanes | float) -> Lanes:
    return _binary("fmul", "mul", first, second)


def _divide(first: Lanes | float, second: Lanes | float) -> Lanes:
    return _binary("fdiv", "sdiv", first, second)


class _Vectors:
    """The functions of ``xp`` in :mod:`ort_gridsample.reference.coordinates`, as in NumPy."""

    def abs(self, x: Operand) -> Any:
        return _elementwise(Lanes.absolute, x)

    def floor(self, x: Operand) -> Any:
        return _elementwise(Lanes.floor, x)

    def rint(self, x: Operand) -> Any:
        return _elementwise(Lanes.rint, x)

    def sin(self, x: Operand) -> Any:
        return _elementwise(Lanes.sin, x)

    def equal(self, x: Operand, y: Operand) -> Any:
        return _elementwise(_commuting(Lanes.equals), x, y)

    def less(self, x: Operand, y: Operand) -> Any:
        return _elementwise(_less, x, y)

    def maximum(self, x: Operand, y: Operand) -> Any:
        return _elementwise(_commuting(Lanes.maximum), x, y)

    def minimum(self, x: Operand, y: Operand) -> Any:
        return _elementwise(_commuting(Lanes.minimum), x, y)

    def clip(self, x: Operand, low: Operand, high: Operand) -> Any:
        return _elementwise(Lanes.clip, x, low, high)

    def where(self, condition: Operand, x: Operand, y: Operand) -> Any:
        return _elementwise(Lanes.choose, condition, x, y)

    def fmod(self, x: Operand, y: Operand) -> Any:
        return _elementwise(_remainder, x, y)

    def sum(self, x: Taps, axis: int = -2, keepdims: bool = True) -> Lanes:
        """Add up the taps in order."""
        assert (axis, keepdims) == (-2, True), "the only sums of rows are those over the taps"
        first, *others = x
        for vector in others:
            first = first + vector
        return first

    def concatenate(self, parts: Sequence[Lanes | Taps], axis: int) -> Taps:
        """Join the taps of ``parts``."""
        assert axis == -2, "the only axis of rows is that of the taps"
        vectors: list[Lanes] = []
        for part in parts:
            vectors += [part] if isinstance(part, Lanes) else list(part)
        return Taps(vectors)


#: The namespace ``xp`` of vectors.
VECTORS = _Vectors()


def _remainder(x: Lanes, y: Lanes | float) -> Lanes:
    """Return the remainders with the sign of ``x``, which are exact.

    Numbers nearer to 0 than ``y`` do not change. If all are, no function is called.
    """
    builder = x.builder
    divisor = y if isinstance(y, Lanes) else x.filled_with(y)
    result = cgutils.alloca_once_value(builder, x.value)
    is_any_beyond = builder.not_(x.absolute().is_less(divisor).all())
    with builder.if_then(is_any_beyond, likely=False):
        divisors = cgutils.alloca_once_value(builder, divisor.value)
        element = x.type.element.as_pointer()
        arguments = [builder.bitcast(pointer, element) for pointer in (result, divisors)]
        function = _remainder_function(builder.module, x.type.element)
        builder.call(function, [*arguments, INT64(x.type.count)])
    return x.with_value(builder.load(result))


def _remainder_function(module: Any, element: Any) -> Any:
    """Return a function that replaces numbers by their remainders, one by one.

    It is a function because LLVM would repeat the calls of the C library for every lane and use.
    """
    pointer = element.as_pointer()
    prototype = ir.FunctionType(ir.VoidType(), [pointer, pointer, INT64])
    function = cgutils.get_or_insert_function(
        module, prototype, f"ort_gridsample.remainders.{element.intrinsic_name}"
    )
    if function.blocks:
        return function
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block())
    numbers, divisors, count = function.args
    with cgutils.for_range(builder, count) as loop:
        entry = builder.gep(numbers, [loop.index])
        number = builder.load(entry)
        divisor = builder.load(builder.gep(divisors, [loop.index]))
        magnitude = builder.select(
            builder.fcmp_ordered("<", number, element(0.0)), builder.fneg(number), number
        )
        with builder.if_then(builder.fcmp_unordered(">=", magnitude, divisor)):
            builder.store(builder.frem(number, divisor), entry)
    builder.ret_void()
    return function
