"""Vectors of generated code, with the operators of NumPy arrays.

:mod:`.vector_sampling` computes with them. Each operation emits LLVM instructions.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from .llvm_helpers import fill_lanes


class Lanes:
    """A vector of numbers, or of bits that are the results of comparisons.

    An operator's right operand is a vector of the same type or a Python number, which is then the
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

    def filled_with(self, number: float) -> Lanes:
        """Return a vector of the same type with a Python number in all lanes."""
        number = float(number) if self.is_float else int(number)
        return self._new(ir.Constant(self.type, [number] * self.type.count))

    def __add__(self, other: Lanes | float) -> Lanes:
        emit = self.builder.fadd if self.is_float else self.builder.add
        return self._new(emit(self.value, self._operand(other)))

    def __sub__(self, other: Lanes | float) -> Lanes:
        emit = self.builder.fsub if self.is_float else self.builder.sub
        return self._new(emit(self.value, self._operand(other)))

    def __rsub__(self, other: float) -> Lanes:
        return self.filled_with(other) - self

    def __mul__(self, other: Lanes | float) -> Lanes:
        emit = self.builder.fmul if self.is_float else self.builder.mul
        return self._new(emit(self.value, self._operand(other)))

    def __and__(self, other: Lanes) -> Lanes:
        return self._new(self.builder.and_(self.value, other.value))

    def __or__(self, other: Lanes) -> Lanes:
        return self._new(self.builder.or_(self.value, other.value))

    def equals(self, other: Lanes | float) -> Lanes:
        """Return which lanes are equal to those of ``other``."""
        return self._compare("==", other)

    def differs(self, other: Lanes | float) -> Lanes:
        """Return which lanes differ from those of ``other``."""
        return self._compare("!=", other)

    def is_less(self, other: Lanes | float) -> Lanes:
        """Return which lanes are less than those of ``other``."""
        return self._compare("<", other)

    def is_nan(self) -> Lanes:
        """Return which lanes are NaN."""
        return self._new(self.builder.fcmp_unordered("uno", self.value, self.value))

    def minimum(self, other: Lanes | float) -> Lanes:
        """Return the elementwise minimum, and ``other`` where either is NaN."""
        return self.is_less(other).choose(self, other)

    def maximum(self, other: Lanes | float) -> Lanes:
        """Return the elementwise maximum, and ``other`` where either is NaN."""
        is_greater = self._compare(">", other)
        return is_greater.choose(self, other)

    def clip(self, low: Lanes | float, high: Lanes | float) -> Lanes:
        """Limit the lanes to ``low`` … ``high``."""
        return self.maximum(low).minimum(high)

    def choose(self, if_true: Lanes, if_false: Lanes | float) -> Lanes:
        """Return the lanes of ``if_true`` where these bits are 1, otherwise of ``if_false``."""
        operand = if_true._operand(if_false)
        return self._new(self.builder.select(self.value, if_true.value, operand))

    def any(self) -> Any:
        """Return whether any of these bits is 1, as an LLVM value of one bit."""
        bits = ir.IntType(self.type.count)
        return self.builder.icmp_unsigned("!=", self.builder.bitcast(self.value, bits), bits(0))

    def floor(self) -> Lanes:
        """Round to the next lower integers."""
        return self._call("llvm.floor")

    def rint(self) -> Lanes:
        """Round to the nearest integers, half to even."""
        return self._call("llvm.rint")

    def absolute(self) -> Lanes:
        """Return the absolute values."""
        return self._call("llvm.fabs")

    def to_integers(self) -> Lanes:
        """Convert to int32, toward zero. Values beyond int32 are undefined."""
        integers = ir.VectorType(ir.IntType(32), self.type.count)
        return self._new(self.builder.fptosi(self.value, integers))

    def to_floats(self, element: Any) -> Lanes:
        """Convert to floating-point numbers of an LLVM type."""
        vector = ir.VectorType(element, self.type.count)
        if vector == self.type:
            return self
        if not self.is_float:
            return self._new(self.builder.sitofp(self.value, vector))
        is_narrower = isinstance(element, ir.FloatType)
        emit = self.builder.fptrunc if is_narrower else self.builder.fpext
        return self._new(emit(self.value, vector))

    def add_product(self, factor: Lanes, other_factor: Lanes) -> Lanes:
        """Add a product, which may be fused with the sum."""
        flags = ("contract",)
        product = self.builder.fmul(factor.value, other_factor.value, flags=flags)
        return self._new(self.builder.fadd(self.value, product, flags=flags))

    def _new(self, value: Any) -> Lanes:
        return Lanes(self.builder, value)

    def _operand(self, other: Lanes | float) -> Any:
        return other.value if isinstance(other, Lanes) else self.filled_with(other).value

    def _compare(self, operator: str, other: Lanes | float) -> Lanes:
        emit = self.builder.fcmp_ordered if self.is_float else self.builder.icmp_signed
        return self._new(emit(operator, self.value, self._operand(other)))

    def _call(self, name: str) -> Lanes:
        """Call an LLVM intrinsic of one argument."""
        element = self.type.element.intrinsic_name
        function = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(self.type, [self.type]),
            f"{name}.v{self.type.count}{element}",
        )
        return self._new(self.builder.call(function, [self.value]))


def filled_lanes(builder: Any, value: Any, lanes: int) -> Lanes:
    """Return a vector with an LLVM ``value`` in all of so many lanes."""
    return Lanes(builder, fill_lanes(builder, value, ir.VectorType(value.type, lanes)))
