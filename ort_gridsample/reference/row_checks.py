"""Checks of the rows of modes and paddings, which are made when a row is built.

A row is a program over a namespace ``xp``. NumPy would run almost any program, but other namespaces
have few functions, and kernels and lowered nodes take some properties of a row for granted. So each
row runs once with :data:`CHECKED`, a namespace that has only what all namespaces have, and with
NumPy. A row that would be wrong in one of the ways to sample raises here.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from .arrays import Array

if TYPE_CHECKING:
    from .coordinates import Axis, Padding
    from .taps import Mode

#: The lengths of the axes on which rows are tested.
LENGTHS = (1, 2, 3, 7)
#: Rows are tested with coordinates from -REACH to REACH lengths of the axis.
REACH = 4
#: The type of these coordinates. They are multiples of 1/4, so that arithmetic is exact.
TYPE = np.float32
#: The largest of these coordinates, for paddings without a period.
_FAR = 1e9
#: The maximum error of a weight, in roundings of the largest term that is added up for it.
MAX_ROUNDINGS = 8
#: The distances from a pixel at which weights are computed, in pixels. Those next to 0 and 1 are
#: rounded to them in float32.
_DISTANCES = np.array([*np.arange(0, 97) / 96, 1e-12, 1 - 1e-12, 0.5 - 1e-12, 0.5 + 1e-12])

_Row = TypeVar("_Row")
_Operand: TypeAlias = "CheckedValues | float | Array"


class RowTable(UserDict[str, _Row]):
    """A table of rows by name. Rows may be added, but not be replaced, as compiled code has them.

    Args:
        reserved: names that no row may have.
    """

    def __init__(self, rows: Mapping[str, _Row], reserved: Sequence[str] = ()) -> None:
        self._reserved = tuple(reserved)
        super().__init__(rows)

    def __setitem__(self, name: str, row: _Row) -> None:
        # Compiled ops have a table of names with blanks between them.
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"the name of a row is {name!r}, expected an identifier")
        if name in self._reserved:
            raise ValueError(f"the name of a row is {name!r}, which is a synonym")
        if name in self and self[name] is not row:
            raise ValueError(f"there is a row {name!r}, and compiled code may contain it")
        super().__setitem__(name, row)


class CheckedValues:
    """Values with those operators that the values of all namespaces have.

    Args:
        array: the numbers, or the bits that are the results of a comparison.
    """

    #: NumPy leaves an operator to the other operand.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: Array) -> None:
        self.array = array

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the numbers."""
        return self.array.dtype

    def astype(self, dtype: Any, copy: bool = False) -> CheckedValues:
        """Convert to numbers of another type."""
        return CheckedValues(self.array.astype(dtype, copy=copy))

    def __add__(self, other: _Operand) -> CheckedValues:
        return _compute(np.add, self, other)

    def __radd__(self, other: _Operand) -> CheckedValues:
        return _compute(np.add, other, self)

    def __sub__(self, other: _Operand) -> CheckedValues:
        return _compute(np.subtract, self, other)

    def __rsub__(self, other: _Operand) -> CheckedValues:
        return _compute(np.subtract, other, self)

    def __mul__(self, other: _Operand) -> CheckedValues:
        return _compute(np.multiply, self, other)

    def __rmul__(self, other: _Operand) -> CheckedValues:
        return _compute(np.multiply, other, self)

    def __truediv__(self, other: _Operand) -> CheckedValues:
        return _compute(np.divide, self, other)

    def __rtruediv__(self, other: _Operand) -> CheckedValues:
        return _compute(np.divide, other, self)

    def __eq__(self, other: object) -> bool:
        raise TypeError("values have no operator ==, but there is xp.equal")

    def __bool__(self) -> bool:
        raise TypeError("values are not known when a row is compiled, but there is xp.where")


def _compute(function: Callable[..., Any], *operands: _Operand) -> CheckedValues:
    """Apply a function to numbers. At least one operand has values."""
    if not any(isinstance(operand, CheckedValues) for operand in operands):
        raise TypeError("at least one operand of a function must have values")
    return CheckedValues(function(*map(_numbers, operands)))


def _numbers(operand: _Operand) -> Any:
    """Return an operand for NumPy: numbers, or one number per tap."""
    if isinstance(operand, CheckedValues):
        if operand.dtype == bool:
            raise TypeError("the result of a comparison may only be a condition of xp.where")
        return operand.array
    is_column = isinstance(operand, np.ndarray) and operand.ndim == 2 and operand.shape[1] == 1
    # np.float64 is a subclass of float, and would change the type of NumPy's results.
    if is_column or type(operand) in (int, float):
        return operand
    raise TypeError(f"an operand is {operand!r}, expected values, an int, a float or one per tap")


class _CheckedNamespace:
    """The functions that all namespaces ``xp`` have."""

    def __getattr__(self, name: str) -> Any:
        names = [name for name in vars(type(self)) if not name.startswith("_")]
        raise AttributeError(f"there is no xp.{name}; the functions of xp are {', '.join(names)}")

    def abs(self, x: CheckedValues) -> CheckedValues:
        return _compute(np.abs, x)

    def floor(self, x: CheckedValues) -> CheckedValues:
        return _compute(np.floor, x)

    def rint(self, x: CheckedValues) -> CheckedValues:
        return _compute(np.rint, x)

    def sin(self, x: CheckedValues) -> CheckedValues:
        return _compute(np.sin, x)

    def equal(self, x: _Operand, y: _Operand) -> CheckedValues:
        return _compute(np.equal, x, y)

    def less(self, x: _Operand, y: _Operand) -> CheckedValues:
        return _compute(np.less, x, y)

    def maximum(self, x: _Operand, y: _Operand) -> CheckedValues:
        return _compute(np.maximum, x, y)

    def minimum(self, x: _Operand, y: _Operand) -> CheckedValues:
        return _compute(np.minimum, x, y)

    def clip(self, x: CheckedValues, low: _Operand, high: _Operand) -> CheckedValues:
        return self.minimum(self.maximum(x, low), high)

    def fmod(self, x: CheckedValues, y: _Operand) -> CheckedValues:
        if not isinstance(x, CheckedValues):
            raise TypeError("the first operand of xp.fmod must have values")
        return _compute(np.fmod, x, y)

    def where(self, condition: CheckedValues, x: _Operand, y: _Operand) -> CheckedValues:
        if not isinstance(condition, CheckedValues) or condition.dtype != bool:
            raise TypeError("the condition of xp.where must be xp.equal or xp.less of values")
        return _compute(lambda x, y: np.where(condition.array, x, y), x, y)

    def concatenate(self, parts: Sequence[CheckedValues], *, axis: int) -> CheckedValues:
        if axis != -2:
            raise TypeError("the only axis of xp.concatenate is that of the taps, axis=-2")
        return _compute(lambda *arrays: np.concatenate(arrays, axis=axis), *parts)

    def sum(self, x: CheckedValues, *, axis: int, keepdims: bool) -> CheckedValues:
        if axis != -2 or not keepdims:
            raise TypeError("the only sum is that over the taps, with axis=-2 and keepdims=True")
        return _compute(lambda array: array.sum(axis=axis, keepdims=True), x)


CHECKED = _CheckedNamespace()


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise ValueError(text)


@contextmanager
def _programs() -> Iterator[None]:
    """Explain the errors of a row's program that runs with :data:`CHECKED`."""
    try:
        yield
    except (TypeError, AttributeError) as error:
        text = "a row may only use arithmetic operators and the functions of xp"
        raise TypeError(f"{text}: {error}") from error


def _checked(function: Callable[..., Array], name: str) -> Callable[[Array], Array]:
    """Return a function of values for NumPy, which raises if its argument or the type changes."""

    def call(x: Array) -> Array:
        original = x.copy()
        result = function(x)
        _require(np.array_equal(x, original, equal_nan=True), f"{name} changes its argument")
        expected = f"{name} returns {{}} of {x.dtype}, expected the type and the number of values"
        if not isinstance(result, np.ndarray) or result.dtype != x.dtype:
            raise ValueError(expected.format(getattr(result, "dtype", type(result).__name__)))
        return result

    return call


# --- Paddings ---


def check_padding(padding: Padding, axis_of: Callable[..., Axis]) -> None:
    """Check a padding.

    Args:
        axis_of: :meth:`.coordinates.Axis.of`.

    Raises:
        TypeError: a function of it uses what not all namespaces have.
        ValueError: it lacks one of the properties that ARCHITECTURE.md lists.
    """
    for align_corners in (False, True):
        with _programs(), np.errstate(all="ignore"):
            lengths = CheckedValues(np.array(LENGTHS, TYPE)[:, None])
            axis = axis_of(lengths, align_corners, may_be_single=True, maximum=CHECKED.maximum)
            coordinates = CheckedValues(np.zeros((len(LENGTHS), 1), TYPE))
            padding.pad(CHECKED, coordinates, axis)
        for length in LENGTHS:
            with np.errstate(all="ignore"):
                axis = axis_of(length, align_corners, may_be_single=length == 1)
                _check_padding_on(padding, axis)


def _check_padding_on(padding: Padding, axis: Axis) -> None:
    """Check a padding on one axis, whose numbers are Python's."""
    pad = _checked(lambda x: padding.pad(np, x, axis), "pad_once")
    pad_once = _checked(lambda x: padding.pad_once(np, x, axis), "pad_once")
    pixels = f"{axis.length} pixels"
    first = -REACH * axis.length
    last = -first
    if padding.period is not None:
        period = padding.period(axis)
        _require(not padding.zero_outside, "a padding with a period has no taps outside that are 0")
        _require(0 < period < np.inf, f"the period of {pixels} is {period}, expected above 0")
        first = -period
        last = period + axis.last if padding.pads_taps else period
    x = np.arange(first, last + 0.25, 0.25, dtype=TYPE)
    if padding.period is None:
        far = np.rint(np.geomspace(last + 1, _FAR, 32)).astype(TYPE)
        x = np.concatenate([x, -far, far])
    padded = pad_once(x)
    infinities = pad(np.array([-np.inf, np.inf], TYPE))
    if padding.period is None:
        _require(
            np.array_equal(padded, np.clip(x, *infinities)),
            "a padding without a period must clip coordinates",
        )
    if padding.pad_handles_infinity:
        _require(
            bool(np.isfinite(infinities).all()), "pad_handles_infinity, but infinity is not padded"
        )
    _check_taps(padding, axis, x, padded)
    is_inside = (x >= 0) & (x <= axis.last)
    _require(
        np.array_equal(padded[is_inside], x[is_inside]),
        "a padding must leave coordinates inside as they are",
    )
    _require(
        np.array_equal(padded, pad(x)),
        f"pad_once must be the same a period further, from {first:g} to {last:g} for {pixels}",
    )
    if padding.zero_outside:
        return
    near = np.concatenate([pad(np.nextafter(x, TYPE(end))) for end in (-np.inf, np.inf)])
    moved = np.concatenate([padded, near])
    # Taps next to a coordinate between the last pixel and the end of the period are padded.
    end = axis.last
    if padding.period is not None and padding.pads_taps:
        end = padding.period(axis)
    _require(
        bool(((moved >= 0) & (moved <= end)).all()),
        f"a padding must move every coordinate to one from 0 to {end:g} for {pixels}",
    )


def _check_taps(padding: Padding, axis: Axis, x: Array, padded: Array) -> None:
    """Check where a padding moves those of the coordinates ``x`` that are pixels."""
    is_tap = x == np.rint(x)
    taps = padded[is_tap]
    if padding.zero_outside:
        _require(
            np.array_equal(taps, x[is_tap]),
            "a padding with zeros outside must leave taps as they are",
        )
        return
    _require(
        bool(((taps >= 0) & (taps <= axis.last)).all()), "a padding must move every tap inside"
    )
    _require(np.array_equal(taps, np.rint(taps)), "a padding must move pixels to pixels")


# --- Modes ---


def check_mode(mode: Mode) -> None:
    """Check a mode.

    Raises:
        TypeError: a function of it uses what not all namespaces have.
        ValueError: it lacks one of the properties that ARCHITECTURE.md lists.
    """
    offsets = list(mode.offsets)
    _require(
        bool(offsets) and offsets == list(range(offsets[0], offsets[0] + len(offsets))),
        f"a mode needs adjacent taps, and the offsets are {mode.offsets}",
    )
    _require(
        offsets[0] <= 0 <= offsets[-1],
        f"a mode needs a tap at the base, and the offsets are {mode.offsets}",
    )
    distances = _check_base(mode)
    if mode.weights is None:
        _require(mode.taps == 1, f"a mode of {mode.taps} taps needs weights")
        return
    _require(mode.taps > 1, "a mode of one tap copies pixels, and has no weights")
    _check_weights(mode, distances)


def _check_base(mode: Mode) -> Array:
    """Check the base of a mode, and return distances of coordinates from it, as float64."""
    with _programs():
        mode.base(CHECKED, CheckedValues(np.zeros((1, 1), TYPE)))
    pixels = np.arange(-9, 10)
    _checked(lambda x: mode.base(np, x), "base")(pixels.astype(TYPE))
    x = np.sort((pixels[:, None] + _DISTANCES).ravel())
    base = mode.base(np, x.copy())
    _require(np.array_equal(base, np.rint(base)), "the base of a mode must be a pixel")
    is_pixel = x == np.rint(x)
    is_monotonic = bool((np.diff(base) >= 0).all())
    _require(
        is_monotonic and np.array_equal(base[is_pixel], x[is_pixel]),
        "the base of a mode must never decrease, and be the coordinate itself at a pixel",
    )
    # The page in the browser has no numpy.ma, which np.unique needs.
    return np.array(sorted(set((x - base).tolist())), x.dtype)


def _check_weights(mode: Mode, distances: Array) -> None:
    """Check the weights of a mode for ``distances`` from the base, as float64."""
    weights_of = mode.weights
    assert weights_of is not None
    with _programs(), np.errstate(all="ignore"):
        weights_of(CHECKED, CheckedValues(distances.astype(TYPE)[None]))
    by_type = {}
    for dtype in (np.float64, np.float32):
        t = distances.astype(dtype)[None]
        function = _checked(lambda t: weights_of(np, t), "weights")
        with np.errstate(all="ignore"):
            weights = function(t)
        shape = (mode.taps, len(distances))
        _require(weights.shape == shape, f"weights are of shape {weights.shape}, expected {shape}")
        _require(bool(np.isfinite(weights).all()), "weights are not finite")
        by_type[dtype] = weights
        eps = float(np.finfo(dtype).eps)
        bound = MAX_ROUNDINGS * eps * mode.largest_term * mode.taps
        _require(
            bool((abs(weights.sum(0, dtype=np.float64) - 1) <= bound).all()),
            "the weights of a mode must add up to 1",
        )
    rounded = distances.astype(np.float32).astype(np.float64)[None]
    exact = weights_of(np, rounded)
    errors = abs(by_type[np.float32] - exact).max() / np.finfo(np.float32).eps
    _require(
        bool(errors <= MAX_ROUNDINGS * mode.largest_term),
        f"the weights have errors of {errors:.0f} roundings of 1, "
        f"but largest_term is {mode.largest_term:g}",
    )
