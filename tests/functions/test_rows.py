"""Rows of modes and paddings that would be computed wrongly in some way are refused when built."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ort_gridsample.graph.expressions import Expressions, Tensor
from ort_gridsample.reference.coordinates import PADDING_RULES, Axis, Padding
from ort_gridsample.reference.row_checks import CHECKED, RowTable
from ort_gridsample.reference.taps import MODE_RULES, Mode

LINEAR = MODE_RULES["linear"]
QUARTERS = np.arange(-40, 41) / 4


def floor(xp, x):
    return xp.floor(x)


# --- Paddings ---


def mirror_once(xp, x, axis):
    """Reflect at the centers of the outer pixels, in either alignment."""
    x = xp.maximum(x, x * -1)
    return xp.clip(xp.minimum(x, axis.last * 2 - x), 0, axis.last)


def wrap_once(xp, x, axis):
    x = xp.where(xp.less(x, axis.length), x, x - axis.length)
    return xp.where(xp.less(x, 0), x + axis.length, x)


def test_row_may_have_a_period_with_a_maximum():
    padding = Padding(mirror_once, period=lambda axis: axis.maximum(axis.last * 2, 1))
    for length in (1, 2, 5):
        axis = Axis.of(length, False, may_be_single=length == 1)
        padded = padding.pad(np, QUARTERS.astype(np.float32), axis)
        assert padded.dtype == np.float32
        distance = abs(QUARTERS) % max(2 * (length - 1), 1)
        expected = np.minimum(distance, 2 * (length - 1) - distance) if length > 1 else 0 * QUARTERS
        np.testing.assert_array_equal(padded, expected)


def row_of(pad_once: Callable[..., Any], **fields: Any) -> Callable[[], Padding]:
    return lambda: Padding(pad_once, **fields)


WRAPPED = {"period": lambda axis: axis.length}
WRONG_PADDINGS = {
    "abs": (row_of(lambda xp, x, axis: xp.abs(x)), "must clip coordinates"),
    "clipped nearby only": (
        # 0 from 100 to 1,000,000 lengths after the first pixel
        row_of(
            lambda xp, x, axis: xp.where(
                xp.less(xp.abs(x - axis.length * 500050), axis.length * 499950),
                0,
                xp.clip(x, 0, axis.last),
            )
        ),
        "must clip coordinates",
    ),
    "constant": (row_of(lambda xp, x, axis: xp.clip(x, 0, 0)), "leave coordinates inside"),
    "half a pixel outside": (
        row_of(lambda xp, x, axis: xp.clip(x, -0.5, axis.last + 0.5)),
        "every tap inside",
    ),
    "a pixel outside": (
        row_of(lambda xp, x, axis: xp.clip(x, -1, axis.length)),
        "every tap inside",
    ),
    "outside, but not zero": (row_of(lambda xp, x, axis: x), "every tap inside"),
    "zeros on one side": (
        row_of(lambda xp, x, axis: xp.maximum(x, 0), zero_outside=True),
        "must leave taps",
    ),
    "infinity stays": (
        row_of(lambda xp, x, axis: x, zero_outside=True, pad_handles_infinity=True),
        "infinity is not padded",
    ),
    "zeros with a period": (row_of(wrap_once, zero_outside=True, **WRAPPED), "no taps outside"),
    "a period of 3": (
        row_of(lambda xp, x, axis: xp.where(xp.less(x, 0), x + 3, x), period=lambda a: 3),
        "every tap inside",
    ),
    "a period of 0": (row_of(mirror_once, period=lambda a: a.last * 2), "is 0"),
    "taps beyond the period": (
        row_of(lambda xp, x, axis: xp.where(xp.less(x, 0), x + axis.length, x), **WRAPPED),
        "every tap inside",
    ),
    "the end of a period": (
        row_of(
            lambda xp, x, axis: xp.clip(xp.where(xp.less(x, 0), x + axis.length, x), 0, axis.last),
            **WRAPPED,
        ),
        "a period further",
    ),
    "the beginning of a period": (
        row_of(
            lambda xp, x, axis: xp.clip(
                xp.where(xp.less(axis.length * -1, x), wrap_once(xp, x, axis), 1), 0, axis.last
            ),
            **WRAPPED,
        ),
        "a period further",
    ),
    "between the last pixel and the first": (row_of(wrap_once, **WRAPPED), "from 0 to 0 for 1"),
    "taps a period further": (
        row_of(
            lambda xp, x, axis: xp.where(xp.less(x, 0), x + axis.length, x),
            pads_taps=True,
            **WRAPPED,
        ),
        "every tap inside",
    ),
}


@pytest.mark.parametrize("name", WRONG_PADDINGS)
def test_padding_that_would_be_computed_wrongly_is_refused(name):
    build, error = WRONG_PADDINGS[name]
    with pytest.raises(ValueError, match=error):
        build()


# --- Modes ---


def columns(*parts: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function of weights, one part per tap."""
    return lambda xp, t: xp.concatenate([part(t) for part in parts], axis=-2)


def mode_of(
    weights: Callable[..., Any] | None = LINEAR.weights,
    base: Callable[..., Any] = floor,
    offsets: tuple[int, ...] = (0, 1),
    **fields: Any,
) -> Callable[[], Mode]:
    return lambda: Mode(base, offsets, weights, pads_taps=False, **fields)


WRONG_MODES = {
    "no taps": (mode_of(offsets=()), "adjacent taps"),
    "taps with a gap": (mode_of(offsets=(0, 2)), "adjacent taps"),
    "descending taps": (mode_of(offsets=(1, 0)), "adjacent taps"),
    "taps after the base": (mode_of(offsets=(1, 2)), "tap at the base"),
    "taps before the base": (mode_of(offsets=(-2, -1)), "tap at the base"),
    "two taps without weights": (mode_of(None), "needs weights"),
    "one tap with weights": (mode_of(columns(lambda t: t * 0 + 1), offsets=(0,)), "no weights"),
    "a base between pixels": (mode_of(base=lambda xp, x: x * 1), "be a pixel"),
    "every other pixel": (mode_of(base=lambda xp, x: xp.floor(x * 0.5) * 2), "never decrease"),
    "a distant base": (mode_of(base=lambda xp, x: xp.floor(x) + 3), "coordinate itself"),
    "too few weights": (mode_of(columns(lambda t: t * 0 + 1)), "of shape"),
    "too many weights": (
        mode_of(columns(lambda t: t, lambda t: t, lambda t: 1 - t * 2)),
        "of shape",
    ),
    "negative weights": (mode_of(columns(lambda t: t * -1, lambda t: t - 1)), "add up to 1"),
    "a derivative": (mode_of(columns(lambda t: t * 0 - 1, lambda t: t * 0 + 1)), "add up to 1"),
    "division by 0": (mode_of(columns(lambda t: 1 - t / t * t, lambda t: t / t * t)), "finite"),
    "cancellation": (
        mode_of(columns(lambda t: (t + 1e5) - 1e5, lambda t: 1 - ((t + 1e5) - 1e5))),
        "largest_term is 1",
    ),
}


@pytest.mark.parametrize("name", WRONG_MODES)
def test_mode_that_would_be_computed_wrongly_is_refused(name):
    build, error = WRONG_MODES[name]
    with pytest.raises(ValueError, match=error):
        build()


def test_mode_with_rounded_weights_may_state_its_largest_term():
    weights = columns(lambda t: (t + 1e3) - 1e3, lambda t: 1 - ((t + 1e3) - 1e3))
    mode_of(weights, largest_term=1e3)()


# --- Programs ---


#: Programs that NumPy runs. In vectors or in nodes, they would fail or have another result.
WRONG_PROGRAMS = {
    "another function": lambda xp, x, axis: xp.mod(x, 3),
    "a function of NumPy": lambda xp, x, axis: np.clip(x, 0, axis.last),
    "a comparison": lambda xp, x, axis: xp.where(x < 0, 0, x),
    "a condition": lambda xp, x, axis: x * 0 if axis.length == 1 else xp.clip(x, 0, axis.last),
    "a number from an axis": lambda xp, x, axis: xp.clip(x, 0, max(axis.last, 0)),
    "a maximum of numbers": lambda xp, x, axis: xp.clip(x, 0, xp.maximum(0, 1)),
    "a number of NumPy": lambda xp, x, axis: xp.clip(x, np.float64(0), axis.last),
    "an array": lambda xp, x, axis: xp.clip(x + np.zeros(1), 0, axis.last),
    "arithmetic of bits": lambda xp, x, axis: x * xp.less(x, 0),
    "a condition of numbers": lambda xp, x, axis: xp.where(x, 0, x),
    "an index": lambda xp, x, axis: x[0],
    "a negation": lambda xp, x, axis: xp.clip(-x, 0, axis.last),
    "a power": lambda xp, x, axis: x**2,
    "a constant choice": lambda xp, x, axis: xp.where(xp.less(x, 0), 0.0, 1.0),
    "a remainder of a number": lambda xp, x, axis: xp.fmod(2.0, x),
}


@pytest.mark.parametrize("name", WRONG_PROGRAMS)
def test_program_that_only_numpy_runs_is_refused(name):
    with pytest.raises(TypeError, match="only use arithmetic operators and the functions of xp"):
        Padding(WRONG_PROGRAMS[name])


@pytest.mark.parametrize(
    "weights",
    [
        lambda xp, t: xp.concatenate([1 - t, t], axis=0),
        lambda xp, t: xp.concatenate([1 - t, t], axis=-2) / xp.sum(t, axis=-1, keepdims=True),
        lambda xp, t: xp.concatenate([1 - t, xp.cos(t)], axis=-2),
    ],
)
def test_program_of_weights_that_only_numpy_runs_is_refused(weights):
    with pytest.raises(TypeError, match="only use arithmetic operators and the functions of xp"):
        replace(LINEAR, weights=weights)


def test_row_that_changes_its_argument_is_refused():
    def pad_once(xp, x, axis):
        x += 0
        x *= 1
        x -= xp.minimum(x, 0)
        return xp.minimum(x, axis.last)

    with pytest.raises(ValueError, match="pad_once changes its argument"):
        Padding(pad_once)


@pytest.mark.skipif(np.__version__ < "2", reason="NumPy 1 does not promote to a number's type")
def test_row_that_changes_the_type_is_refused():
    """NumPy's maximum of two numbers of Python's is a number of its own, of 64 bits."""

    def pad_once(xp, x, axis):
        return xp.minimum(xp.maximum(x, 0), xp.maximum(axis.last, 0))

    with pytest.raises(ValueError, match="returns float64 of float32"):
        Padding(pad_once)


@pytest.mark.parametrize("name", [name for name in vars(type(CHECKED)) if not name.startswith("_")])
def test_namespaces_have_every_function_of_rows(name):
    assert hasattr(np, name)
    assert callable(getattr(Expressions, name))
    if name != "concatenate":
        pytest.importorskip("numba")
        from ort_gridsample.kernels.lanes import VECTORS

        assert hasattr(VECTORS, name)


def test_subgraphs_may_have_every_operator_of_rows():
    """Otherwise a lowered node with such a row would not be recognized."""
    from ort_gridsample.detection.subgraphs import ARITHMETIC

    e = Expressions("", 17)
    x = e.input("x", "float32")
    results: list[Tensor] = [x * 2, x - 1, 2 / x, x + x, e.concatenate([x, x], axis=-2)]
    results += [function(x) for function in (e.abs, e.floor, e.rint, e.sin)]
    results += [function(x, x) for function in (e.maximum, e.minimum, e.fmod)]
    results += [e.where(e.equal(x, 0), x, 0), e.where(e.less(x, 0), x, 0), e.clip(x, 0, 1)]
    results.append(e.sum(x, axis=-2, keepdims=True))
    nodes = e.finish_all({f"y{i}": result for i, result in enumerate(results)})
    assert {node.op_type for node in nodes} <= ARITHMETIC


# --- Tables ---


def test_table_refuses_another_row_of_the_same_name():
    """Compiled code may contain the first one."""
    with pytest.raises(ValueError, match="there is a row 'border'"):
        PADDING_RULES["border"] = PADDING_RULES["zeros"]  # type: ignore[index]


@pytest.mark.parametrize("name", ["", "two words", "it's", "grün", "a-b", "1d"])
def test_table_refuses_a_name_that_is_no_identifier(name):
    with pytest.raises(ValueError, match="expected an identifier"):
        RowTable({name: LINEAR})


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_table_refuses_a_synonym(name):
    with pytest.raises(ValueError, match="synonym"):
        MODE_RULES[name] = LINEAR  # type: ignore[index]
