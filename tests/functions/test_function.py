"""Test the functions against the oracle, and sessions against the functions."""

import itertools
import pickle
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from functools import partial
from typing import NamedTuple

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import ort_gridsample as ogs
from ort_gridsample import affine_grid, grid_sample, spec
from ort_gridsample.functions import validation
from support import oracle
from support.cases import (
    ATTRIBUTES,
    USUAL,
    Attributes,
    Case,
    dtype_of,
    generator,
    image,
    is_defined,
    matrix,
)
from support.choices import ANY_MODE, ANY_PADDING, COPYING_MODES, NO_MODE, NO_PADDING
from support.compare import about, assert_identical, assert_matches, finfo, refusal
from support.models import grid_sample_model
from support.parameters import CORES, with_sweep
from support.paths import (
    PATHS,
    Function,
    Model,
)

pytestmark = pytest.mark.usefixtures("core")

FLOAT_CASES = matrix(["float32"], ["float32"])
INTEGERS = [name for name in spec.TYPES if "int" in name]


def on_cores(
    names: str, values: Iterable[tuple[str, ...]], usual: Iterable[tuple[str, ...]]
) -> pytest.MarkDecorator:
    """Parametrize a test by every core and each of ``values``.

    On the compiled core, the values that are not ``usual`` are in the sweep.
    """
    cases = [(core, *value) for core, value in itertools.product(CORES, values)]
    quick = [(core, *value) for core, *value in cases if core != "jit" or tuple(value) in usual]
    return with_sweep(f"core,{names}", cases, quick, indirect=["core"])


def on_cores_by_type(names: Iterable[str]) -> pytest.MarkDecorator:
    return on_cores("X_type", [(name,) for name in names], [(name,) for name, _ in USUAL])


def sample(case: Case, X: np.ndarray | None = None, grid: np.ndarray | None = None) -> np.ndarray:
    """Return the function's output for a case, or for other arrays with its attributes."""
    X = case.X if X is None else X
    grid = case.grid if grid is None else grid
    return grid_sample(X, grid, *astuple(case.attributes))


def assert_is_the_oracles(X: np.ndarray, grid: np.ndarray, attributes: Attributes) -> None:
    expected = oracle.grid_sample(X, grid, *astuple(attributes))
    with about((X.shape, attributes)):
        Y = grid_sample(X, grid, *astuple(attributes))
        assert_matches(Y, expected, grid.dtype, attributes.mode, attributes.padding_mode)


# Against the oracle


#: Numbers in half precision, which no float32 weight makes subnormal.
finite = st.floats(-6e4, 6e4, width=16)
#: Numbers with a finite pixel coordinate, often near X, and those that are not finite.
anything = st.one_of(
    *(st.floats(-x, x, width=32) for x in (1.5, 2.0**120)),
    st.sampled_from([np.nan, np.inf, -np.inf]),
)


@settings(max_examples=400)
@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from(ATTRIBUTES))
def test_grid_sample_of_any_arrays_matches_the_oracle(
    data: st.DataObject, lengths: list[int], attributes: Attributes
) -> None:
    """X lies between NaNs in memory, so that a tap outside it would show."""
    r = len(lengths)
    X = data.draw(arrays.arrays(np.float32, (2, 2, *lengths), elements=finite, fill=finite))
    grid_shape = (2, *(1,) * (r - 1), 6, r)
    grid = data.draw(arrays.arrays(np.float32, grid_shape, elements=anything, fill=anything))
    nans = np.full(X.size, np.nan, np.float32)
    fenced = np.concatenate([nans, X.reshape(-1), nans])[X.size : -X.size].reshape(X.shape)
    expected = oracle.grid_sample(X, grid, *astuple(attributes))
    Y = grid_sample(fenced, grid, *astuple(attributes))
    assert_matches(Y, expected, grid.dtype, attributes.mode, attributes.padding_mode)


#: The oracle is too slow for the 4096 taps of each position of cubic in six axes.
MORE_AXES = [
    (r, values)
    for r, values in itertools.product((5, 6), ATTRIBUTES)
    if values.align_corners and (r, values.mode) != (6, "cubic")
]


@pytest.mark.parametrize(("r", "attributes"), MORE_AXES, ids=str)
def test_grid_sample_of_more_axes_matches_the_oracle(r: int, attributes: Attributes) -> None:
    X = image("float32", (1, 1, *(2, 3, 2, 1, 2, 3)[:r]))
    grid = generator(r).uniform(-1.6, 1.6, (1, 2, *(1,) * (r - 1), r)).astype(np.float32)
    assert_is_the_oracles(X, grid, attributes)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", spec.PADDING_MODES)
@pytest.mark.parametrize("mode", spec.MODES)
def test_grid_sample_of_many_positions_and_channels_matches_the_oracle(
    mode: str, padding_mode: str, align_corners: bool
) -> None:
    """The output is larger than any chunk of a core. Some of its positions are compared."""
    X = image("float32", (1, 70, 6, 7))
    grid = generator("many").uniform(-1.5, 1.5, (1, 150, 131, 2)).astype(np.float32)
    some_positions = np.ascontiguousarray(grid[:, ::37, ::26])
    some_channels = X[:, ::23]
    attributes = mode, padding_mode, align_corners
    Y = grid_sample(X, grid, *attributes)[:, ::23, ::37, ::26]
    expected = oracle.grid_sample(some_channels, some_positions, *attributes)
    assert_matches(Y, expected, grid.dtype, mode, padding_mode)


# Against sessions


@pytest.mark.parametrize("X_type", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("target", "casts"),
    [
        ("ort_gridsample", 2),
        pytest.param(
            "compiled",
            0,
            marks=pytest.mark.skipif("compiled" not in PATHS, reason="there are no compiled ops"),
        ),
    ],
)
def test_half_precision_is_cast_for_python_ops_only(X_type: str, target: str, casts: int) -> None:
    model = grid_sample_model(X_type, "float32", 2, [Attributes("linear", "border")])
    before = [node.op_type for node in model.graph.node].count("Cast")
    patched = ogs.patch_model(model, target=target)  # type: ignore[call-overload]
    assert [node.op_type for node in patched.graph.node].count("Cast") == before + casts


# Arrays


@pytest.mark.parametrize("case", FLOAT_CASES, ids=str)
def test_grid_sample_does_not_write_to_its_inputs(case: Case) -> None:
    X = case.X.copy()
    grid = case.grid.copy()
    sample(case)
    assert_identical(case.X, X)
    assert_identical(case.grid, grid)


@pytest.mark.parametrize("case", FLOAT_CASES, ids=str)
def test_output_of_grid_sample_is_a_new_writable_array(case: Case) -> None:
    Y = sample(case)
    assert Y.flags.writeable
    assert Y.flags.c_contiguous
    assert not np.shares_memory(Y, case.X)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "complex128"])
@pytest.mark.parametrize("side", [128, 131])
def test_large_output_begins_at_a_cache_line(dtype: str, side: int) -> None:
    """Vectors that cross cache lines take longer to store."""
    X = np.ones((1, 16, 4, 4), dtype)
    kept = [ogs.grid_sample(X, np.zeros((1, 128, side, 2), np.float32)) for _ in range(4)]
    for Y in kept:
        assert Y.ctypes.data % 64 == 0
        assert (Y == 1).all()


STRINGS = [
    np.dtype("U8"),
    *([np.dtypes.StringDType()] if hasattr(np.dtypes, "StringDType") else []),
]
LAYOUTS = {
    "fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed": lambda a: np.ascontiguousarray(a[::-1, ..., ::-1])[::-1, ..., ::-1],
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "unaligned": lambda a: (
        np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape)
    ),
    "subclass": lambda a: a.view(np.recarray),
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
}


LAYOUT_ATTRIBUTES = [Attributes("nearest"), Attributes("linear", "border", True)]
#: (X type, grid type) that are also tested on the NumPy core, which compiles nothing.
MORE_TYPES = [("int16", "float64"), ("complex64", "float32")]


@pytest.mark.parametrize("attributes", LAYOUT_ATTRIBUTES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("core", "X_type", "grid_type"),
    [
        (core, *types)
        for core in CORES
        for types in (*USUAL, *(MORE_TYPES if core == "numpy" else ()))
    ],
    indirect=["core"],
)
def test_grid_sample_of_any_layout_has_identical_outputs(
    X_type: str, grid_type: str, layout: str, attributes: Attributes
) -> None:
    change = LAYOUTS[layout]
    case = Case(X_type, grid_type, 2, attributes)
    X = change(case.X)
    grid = change(case.grid)
    expected = sample(case, X.astype(X_type), grid.astype(grid_type))
    assert_identical(sample(case, X, grid), expected)


@on_cores("integer", [("int64",)], usual=())
def test_grid_sample_accepts_lists(integer: str) -> None:
    Y = grid_sample([[[1, 2, 4]]], [[[0.0], [1.0]]], "nearest")
    assert_identical(Y, np.array([[[2, 4]]], integer))


@pytest.mark.parametrize("dtype", STRINGS, ids=str)
def test_grid_sample_accepts_every_type_of_strings(dtype: np.dtype) -> None:
    case = Case("str", "float32", 2, Attributes("nearest"))
    assert sample(case, case.X.astype(dtype)).tolist() == sample(case).tolist()


#: Shapes of X and grid with an empty output.
EMPTY = [
    ((0, 3, 4, 5), (0, 6, 7, 2)),
    ((2, 0, 4, 5), (2, 6, 7, 2)),
    ((2, 3, 4, 5), (2, 0, 7, 2)),
    ((2, 3, 4, 5), (2, 6, 0, 2)),
    ((2, 3, 0, 5), (2, 6, 0, 2)),
    ((0, 0, 0), (0, 0, 1)),
]
ZERO_PADDED = [values for values in ATTRIBUTES if values.padding_mode == "zeros"]


def assert_zeros(
    path: Function | Model,
    X_shape: tuple[int, ...],
    grid_shape: tuple[int, ...],
    attributes: Sequence[Attributes],
) -> None:
    """Assert that the outputs for an X of ones have the right shape and only zeros."""
    X = np.ones(X_shape, np.uint8)
    outputs = path.grid_samples(X, np.ones(grid_shape, np.float32), attributes)
    expected = np.zeros((*X_shape[:2], *grid_shape[1:-1]), np.uint8)
    for Y, values in zip(outputs, attributes, strict=True):
        with about((X_shape, grid_shape, values)):
            assert_identical(Y, expected)


@pytest.mark.parametrize(("X_shape", "grid_shape"), EMPTY)
def test_empty_outputs_have_their_shape(
    X_shape: tuple[int, ...], grid_shape: tuple[int, ...], path: Function | Model
) -> None:
    assert_zeros(path, X_shape, grid_shape, ATTRIBUTES)


def test_image_without_pixels_is_zeros(path: Function | Model) -> None:
    assert_zeros(path, (1, 2, 0, 3), (1, 2, 2, 2), ZERO_PADDED)


TYPES_AND_MODES = [
    (X_type, mode)
    for X_type, mode in itertools.product(spec.TYPES, spec.MODES)
    if is_defined(X_type, mode)
]
without_pixels = pytest.mark.parametrize("lengths", [(0, 5), (4, 0), (0, 0)])


@pytest.mark.parametrize(("X_type", "mode"), TYPES_AND_MODES)
@without_pixels
def test_image_without_pixels_of_every_type_is_zeros(
    lengths: tuple[int, int], X_type: str, mode: str
) -> None:
    X = np.zeros((1, 2, *lengths), dtype_of(X_type))
    grid = np.zeros((1, 3, 1, 2), np.float32)
    zero = "" if X_type == "str" else 0
    assert_identical(grid_sample(X, grid, mode), np.full((1, 2, 3, 1), zero, X.dtype))


@without_pixels
@pytest.mark.parametrize("padding_mode", ["border", "reflection"])
def test_image_without_pixels_is_refused_if_the_padding_needs_one(
    padding_mode: str, lengths: tuple[int, int]
) -> None:
    grid = np.zeros((1, 3, 1, 2), np.float32)
    for X_type, mode in TYPES_AND_MODES:
        X = np.zeros((1, 2, *lengths), dtype_of(X_type))
        error = refusal(grid_sample, X, grid, mode, padding_mode)
        assert (error.argument, error.found) == ("X", f"of shape {X.shape}")
        needs = f"as padding_mode '{padding_mode}' needs a pixel"
        assert error.expected == f"no spatial axis of length 0, {needs}"


# Values


@on_cores_by_type(INTEGERS)
def test_constant_integers_stay_exactly_constant(X_type: str) -> None:
    limits = np.iinfo(X_type)
    values = {limits.min, limits.max, limits.max - 1, limits.max // 2 + 1, limits.max // 3, 1, 0}
    if limits.bits == 64:
        values |= {2**62 + 1, 2**53 + 1, 2**61 - 1}
    for lengths in ((9,), (9, 8), (9, 8, 8), (8, 8, 8, 8)):
        r = len(lengths)
        grid = generator("constant").uniform(-0.4, 0.4, (1, 200, *[1] * (r - 1), r))
        grid = grid.astype(np.float32)
        for value, mode, padding_mode in itertools.product(values, spec.MODES, spec.PADDING_MODES):
            Y = grid_sample(np.full((1, 1, *lengths), value, X_type), grid, mode, padding_mode)
            assert (np.array(value, X_type) == Y).all(), (lengths, value, mode, padding_mode)


@on_cores_by_type(INTEGERS)
def test_integers_are_truncated_toward_zero(X_type: str) -> None:
    signs = (1, -1) if np.iinfo(X_type).min else (1,)
    for sign in signs:
        X = np.array([[[2, 5]]], X_type) * sign
        assert grid_sample(X, np.zeros((1, 1, 1), np.float32)).item() == 3 * sign


@on_cores_by_type(INTEGERS)
def test_integers_are_saturated(X_type: str) -> None:
    """Cubic overshoots next to a step, here beyond both limits."""
    limits = np.iinfo(X_type)
    step = np.array([[[limits.min, limits.min, limits.max, limits.max]]], X_type)
    Y = grid_sample(step, np.array([[[-0.45], [0.45]]], np.float32), "cubic", "border")
    assert Y.tolist() == [[[limits.min, limits.max]]]


@pytest.mark.parametrize("mode", spec.MODES)
def test_nan_and_infinity_spread_only_to_positions_that_read_them(mode: str) -> None:
    for case in matrix(["float32"], ["float32"]):
        if case.attributes.mode != mode:
            continue
        lengths = case.X.shape[2:]
        taps = oracle.grid_taps(case.grid, lengths, *astuple(case.attributes))
        all_pixels = [*np.ndindex(lengths)]
        middle = tuple(n // 2 for n in lengths)
        for pixels in (all_pixels[:1], all_pixels[-1:], [middle], all_pixels):
            assert_spread(case, pixels, taps)


def assert_spread(
    case: Case, pixels: list[tuple[int, ...]], taps: list[list[list[oracle.Tap]]]
) -> None:
    """Assert that outputs are finite exactly where none of ``pixels`` is read.

    A pixel that is read with the weight 0 may spread or not.
    """
    is_unread = [
        [all(index not in pixels for index, _ in position) for position in batch] for batch in taps
    ]
    is_read = [
        [any(index in pixels and weight for index, weight in position) for position in batch]
        for batch in taps
    ]
    for value in (np.nan, np.inf):
        X = case.X.copy()
        X[(..., *np.transpose(pixels))] = value
        Y = sample(case, X).reshape(*X.shape[:2], -1).swapaxes(1, 2)
        with about((case, pixels, value)):
            assert np.isfinite(Y[is_unread]).all()
            assert not np.isfinite(Y[is_read]).any()


@on_cores("grid_type", [(name,) for name in spec.FLOATS], usual=[("float32",), ("float16",)])
def test_far_coordinate_is_the_nearest_edge_or_zero(grid_type: str) -> None:
    X = np.array([[[3.0, 5.0, 7.0]]], "float64" if grid_type == "float64" else "float32")
    infinite = [-np.inf, np.inf]
    finite = [-1e10, 1e10, -3e38, 3e38, -6e4, 6e4]
    with np.errstate(over="ignore"):
        far = np.array([*infinite, *finite]).astype(dtype_of(grid_type))[None, :, None]
    for mode, align_corners in itertools.product(spec.MODES, (False, True)):
        border = grid_sample(X, far, mode, "border", align_corners)
        assert border.tolist() == [[[3.0, 7.0] * 4]]
        reflected = grid_sample(X, far[:, :2], mode, "reflection", align_corners)
        assert reflected.tolist() == [[[3.0, 7.0]]]
        assert not grid_sample(X, far, mode, "zeros", align_corners).any()


@on_cores_by_type(["float16", "bfloat16"])
def test_halves_are_rounded_once(X_type: str) -> None:
    X = image(X_type, (1, 4, 6, 6))
    grid = generator("halves").uniform(-1, 1, (1, 20, 20, 2)).astype(np.float32)
    for mode in ("linear", "cubic"):
        expected = grid_sample(X.astype(np.float32), grid, mode).astype(X.dtype)
        assert_identical(grid_sample(X, grid, mode), expected)


# Errors


class Mistake(NamedTuple):
    """Arguments of a function, and the parts of the error."""

    arguments: tuple[object, ...]
    argument: str
    found: str
    expected: str


X = np.zeros((1, 1, 4, 5), np.float32)
GRID = np.zeros((1, 2, 3, 2), np.float32)
X_1D = np.zeros((1, 1, 4), np.float32)
GRID_1D = np.zeros((1, 3, 1), np.float32)
ANY_TYPE = f"one of {', '.join(spec.TYPES)}"
ANY_FLOAT = "one of float32, float64, float16, bfloat16"
ONLY_NEAREST = f"{COPYING_MODES}, the only mode that is defined for str X"
SPATIAL_AXIS = "shape (N, C, D1, …, Dr) with at least one spatial axis"
GRID_OF_2 = "shape (N, D1_out, D2_out, 2), as X of shape (1, 1, 4, 5) has 2 spatial axes"
GRID_OF_1 = "shape (N, D1_out, 1), as X of shape (1, 1, 4) has 1 spatial axis"
STRUCTURED = np.zeros((1, 1, 4), "f4,f4")
GRID_SAMPLE_MISTAKES = {
    "mode": Mistake((X, GRID, NO_MODE), "mode", repr(NO_MODE), ANY_MODE),
    "padding": Mistake(
        (X, GRID, "linear", NO_PADDING), "padding_mode", repr(NO_PADDING), ANY_PADDING
    ),
    "mode in a list": Mistake((X, GRID, ["linear"]), "mode", "['linear']", ANY_MODE),
    "string linear": Mistake((X.astype(str), GRID, "linear"), "mode", "'linear'", ONLY_NEAREST),
    "X type": Mistake((X.astype("datetime64[s]"), GRID), "X", "of type datetime64[s]", ANY_TYPE),
    "X structured": Mistake(
        (STRUCTURED, GRID_1D), "X", "of type [('f0', '<f4'), ('f1', '<f4')]", ANY_TYPE
    ),
    "integer grid": Mistake((X, GRID.astype(np.int64)), "grid", "of type int64", ANY_FLOAT),
    "X rank": Mistake((X[0, 0], GRID), "X", "of shape (4, 5)", SPATIAL_AXIS),
    "X scalar": Mistake((np.float32(1), GRID), "X", "of shape ()", SPATIAL_AXIS),
    "grid rank": Mistake((X, GRID[0]), "grid", "of shape (2, 3, 2)", GRID_OF_2),
    "grid last axis": Mistake((X, GRID[..., :1]), "grid", "of shape (1, 2, 3, 1)", GRID_OF_2),
    "grid last axis, one axis": Mistake((X_1D, GRID[0]), "grid", "of shape (2, 3, 2)", GRID_OF_1),
    "batch": Mistake(
        (X, GRID.repeat(2, 0)),
        "grid",
        "of shape (2, 2, 3, 2)",
        "N = 1 in axis 0, as X is of shape (1, 1, 4, 5)",
    ),
}
THETA = np.zeros((2, 2, 3), np.float32)
THETA_3D = np.zeros((2, 3, 4))
THETA_SHAPES = "shape (N, 2, 3) or (N, 3, 4)"
AS_THETA = "as theta is of shape (2, 2, 3)"
SIZE_OF_3D = "(N, C, D, H, W), as theta is of shape (2, 3, 4)"
AFFINE_GRID_MISTAKES = {
    "theta type": Mistake((THETA.astype(int), (2, 1, 3, 4)), "theta", "of type int64", ANY_FLOAT),
    "theta rank": Mistake((THETA[0], (2, 1, 3, 4)), "theta", "of shape (2, 3)", THETA_SHAPES),
    "theta shape": Mistake(
        (np.zeros((2, 3, 3)), (2, 1, 3, 4)), "theta", "of shape (2, 3, 3)", THETA_SHAPES
    ),
    "size rank": Mistake(
        (THETA, (2, 1, 3, 4, 5)), "size", "(2, 1, 3, 4, 5)", f"(N, C, H, W), {AS_THETA}"
    ),
    "size too short": Mistake((THETA_3D, (2, 1, 3, 4)), "size", "(2, 1, 3, 4)", SIZE_OF_3D),
    "size batch": Mistake(
        (THETA, (3, 1, 3, 4)), "size", "(3, 1, 3, 4)", f"N = 2 as its first element, {AS_THETA}"
    ),
    "negative": Mistake(
        (THETA, (2, 1, -3, 4)),
        "size",
        "(2, 1, -3, 4), where H = -3",
        f"(N, C, H, W) with lengths of at least 0, {AS_THETA}",
    ),
    "float size": Mistake(
        (THETA, np.ones(4)), "size", "of type float64 and shape (4)", "a row of integers"
    ),
    "size of two axes": Mistake(
        (THETA, np.ones((1, 4), int)), "size", "of type int64 and shape (1, 4)", "a row of integers"
    ),
}
MISTAKES = [
    *(
        pytest.param(grid_sample, mistake, id=name)
        for name, mistake in GRID_SAMPLE_MISTAKES.items()
    ),
    *(
        pytest.param(affine_grid, mistake, id=name)
        for name, mistake in AFFINE_GRID_MISTAKES.items()
    ),
]


@pytest.mark.parametrize(("function", "mistake"), MISTAKES)
def test_function_of_a_wrong_argument_is_refused(
    function: Callable[..., np.ndarray], mistake: Mistake
) -> None:
    default = refusal(function, *mistake.arguments)
    named = refusal(function, *mistake.arguments, where="the node")
    assert (default.where, named.where) == (function.__name__, "the node")
    for error in (default, named):
        assert (error.argument, error.found) == (mistake.argument, mistake.found)
        assert error.expected == mistake.expected


def test_error_is_a_value_error_with_a_sentence_and_can_be_pickled() -> None:
    error = refusal(grid_sample, X, GRID, padding_mode=NO_PADDING)
    assert isinstance(error, ValueError)
    sentence = f"grid_sample: padding_mode is '{NO_PADDING}', expected {ANY_PADDING}"
    assert str(error) == sentence
    unpickled = pickle.loads(pickle.dumps(error))
    assert str(unpickled) == sentence
    assert unpickled.args == error.args


def test_error_with_a_verb_keeps_it_in_a_pickle() -> None:
    error = ogs.GridSampleError("f", "X", "a hole", "no hole", verb="contains")
    assert str(error) == "f: X contains a hole, expected no hole"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# AffineGrid


#: Sizes with axes of one pixel, which is in the middle if corners are aligned, and of none.
SIZES = [
    (2, 3, 4, 5),
    (1, 1, 1, 1),
    (2, 1, 1, 6),
    (1, 2, 7, 1),
    (2, 3, 3, 4, 5),
    (1, 1, 1, 5, 1),
    (3, 0, 2, 2),
    (0, 3, 4, 5),
    (2, 3, 0, 5),
    (2, 3, 4, 0, 5),
]


@pytest.mark.parametrize("theta_type", spec.FLOATS)
def test_affine_grid_matches_the_oracle(theta_type: str) -> None:
    dtype = dtype_of(theta_type)
    compute_eps = np.finfo(spec.TYPES[theta_type].compute).eps
    for size, align_corners in itertools.product(SIZES, (False, True)):
        r = len(size) - 2
        theta = generator("theta", r).normal(size=(size[0], r, r + 1)).astype(dtype)
        grid = affine_grid(theta, size, align_corners)
        expected = oracle.affine_grid(theta, size, align_corners)
        assert (grid.dtype, grid.shape) == (dtype, expected.shape)
        scale = abs(theta.astype(np.float64)).sum(-1).reshape(size[0], *(1,) * r, r)
        error = 4 * compute_eps * scale
        if finfo(dtype).bits < 32:
            error = error + finfo(dtype).eps / 2 * abs(expected)
        assert (abs(grid.astype(np.float64) - expected) <= error).all(), (size, align_corners)


def test_affine_grid_accepts_any_row_of_integers_as_size() -> None:
    size = (2, 1, 3, 4)
    arrays = [np.array(size, name) for name in ("int32", "int64", "uint8")]
    for row in (size, list(size), *arrays):
        assert affine_grid(THETA, row).shape == (2, 3, 4, 2)


def test_affine_grid_that_overflows_is_infinite_without_a_warning() -> None:
    theta = np.full((2, 2, 3), np.finfo(np.float32).max)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grid = affine_grid(theta, (2, 1, 3, 4), align_corners=True)
    assert np.isinf(grid).any()


# The shapes of a node's inputs, as far as they are known

check_theta_and_size = partial(validation.check_affine_grid_shapes, "node")
check_x_and_grid = partial(validation.check_grid_sample_shapes, "node")


def test_theta_of_unknown_lengths_may_have_a_size_of_two_or_three_axes() -> None:
    check_theta_and_size(("N", None, None), [1, 2, 3, 4])
    check_theta_and_size(("N", None, None), [1, 2, 3, 4, 5])


def test_theta_of_three_rows_and_a_size_of_two_axes_are_refused() -> None:
    error = refusal(check_theta_and_size, ("N", None, 4), [1, 2, 3, 4])
    assert (error.argument, error.found) == ("size", "(1, 2, 3, 4)")


def test_right_size_or_grid_without_the_other_input_is_accepted() -> None:
    check_theta_and_size(None, [0, 1, 0, 4])
    check_x_and_grid(None, (1, "h", "w", None))


ANY_SIZE = "(N, C, H, W) or (N, C, D, H, W)"
ANY_GRID = "shape (N, D1_out, …, Dr_out, r)"


@pytest.mark.parametrize(
    ("check", "shape", "argument", "found", "expected"),
    [
        (
            check_theta_and_size,
            (1, 1, -1, 4),
            "size",
            "(1, 1, -1, 4), where H = -1",
            f"{ANY_SIZE} with lengths of at least 0",
        ),
        (check_theta_and_size, (1, 1, 4), "size", "(1, 1, 4)", ANY_SIZE),
        (check_x_and_grid, (1, None), "grid", "of shape (1, ?)", ANY_GRID),
        (check_x_and_grid, (1, "h", 2), "grid", "of shape (1, h, 2)", ANY_GRID),
    ],
    ids=["negative size", "short size", "grid of two axes", "grid of another last axis"],
)
def test_wrong_size_or_grid_without_the_other_input_is_refused(
    check: Callable[..., None],
    shape: tuple[object, ...],
    argument: str,
    found: str,
    expected: str,
) -> None:
    error = refusal(check, None, shape)
    assert (error.where, error.argument) == ("node", argument)
    assert (error.found, error.expected) == (found, expected)
