"""The functions against the oracle: every type, rank, mode and padding, and everything that can be odd about arrays."""

from __future__ import annotations

import itertools
import re
import warnings
from dataclasses import astuple

import numpy as np
import pytest

import oracle
from cases import ATTRIBUTES, Attributes, Case, by_types_and_rank, dtype_of, generator, image, matrix
from compare import about, assert_identical, assert_matches, finfo
from ort_gridsample import GridSampleError, affine_grid, checks, grid_sample, spec
from paths import function_answer

pytestmark = pytest.mark.usefixtures("core")

MATRIX = by_types_and_rank(matrix())
FLOAT_CASES = matrix(["float32"], ["float32"])
INTEGERS = [name for name in spec.TYPES if "int" in name]
SMOOTH = ("linear", "cubic")


def sample(case: Case, X: np.ndarray | None = None, grid: np.ndarray | None = None) -> np.ndarray:
    """The case, with other arrays than its own where given."""
    return grid_sample(case.X if X is None else X, case.grid if grid is None else grid, *astuple(case.attributes))


@pytest.mark.parametrize("group", MATRIX)
def test_matches_the_oracle(group: str, core: str) -> None:
    for case in MATRIX[group]:
        with about(case):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                Y = function_answer(case, core)
            assert Y.dtype == case.X.dtype
            assert_matches(Y, case.expected, case.grid.dtype, case.attributes.mode, case.attributes.padding_mode)


@pytest.mark.parametrize("r", [5, 6])
@pytest.mark.parametrize("attributes", [a for a in ATTRIBUTES if a.align_corners], ids=str)
def test_higher_ranks_match_the_oracle(r: int, attributes: Attributes) -> None:
    if r == 6 and attributes.mode == "cubic":
        r = 5  # 4096 taps a position are the oracle's limit, not the function's
    X = image("float64", (1, 1, *(2, 3, 2, 1, 2, 3)[:r]))
    grid = generator(r).uniform(-1.6, 1.6, (1, 2, *(1,) * (r - 1), r))
    Y = grid_sample(X, grid, *astuple(attributes))
    expected = oracle.grid_sample(X, grid, *astuple(attributes))
    assert_matches(Y, expected, grid.dtype, attributes.mode, attributes.padding_mode)


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_many_positions_and_channels_match_the_oracle(attributes: Attributes) -> None:
    # More output than any block or chunk of a core holds; the oracle looks at some of it.
    X, grid = image("float32", (1, 70, 6, 7)), generator("many").uniform(-1.5, 1.5, (1, 150, 131, 2)).astype("float32")
    Y = grid_sample(X, grid, *astuple(attributes))
    some = np.s_[:, ::37, ::26]
    expected = oracle.grid_sample(X[:, ::23], np.ascontiguousarray(grid[some]), *astuple(attributes))
    assert_matches(Y[:, ::23][:, :, ::37, ::26], expected, grid.dtype, attributes.mode, attributes.padding_mode)


@pytest.mark.parametrize("synonym", spec.MODE_SYNONYMS)
def test_synonyms(synonym: str) -> None:
    case = Case("float32", "float32", 3, ATTRIBUTES[0])
    expected = grid_sample(case.X, case.grid, spec.MODE_SYNONYMS[synonym])
    assert_identical(grid_sample(case.X, case.grid, synonym), expected)


def test_defaults_are_the_specification_s() -> None:
    case = Case("float32", "float32", 2, Attributes("linear", "zeros", False))
    assert_identical(grid_sample(case.X, case.grid), sample(case))


# Arrays as they come


@pytest.mark.parametrize("case", FLOAT_CASES, ids=str)
def test_inputs_are_read_only_and_stay_as_they_are(case: Case) -> None:
    X, grid = case.X.copy(), case.grid.copy()
    assert not case.X.flags.writeable
    assert not case.grid.flags.writeable
    Y = sample(case)
    assert_identical(case.X, X)
    assert_identical(case.grid, grid)
    assert Y.flags.writeable
    assert Y.flags.c_contiguous
    assert not np.shares_memory(Y, case.X)


LAYOUTS = {
    "fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed": lambda a: np.ascontiguousarray(a[::-1, ..., ::-1])[::-1, ..., ::-1],
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
    "subclass": lambda a: a.view(np.recarray),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", matrix(["float32", "float64", "int16", "complex64"], ["float64"], [2]), ids=str)
def test_any_layout_answers_the_same(case: Case, layout: str) -> None:
    X, grid = LAYOUTS[layout](case.X), LAYOUTS[layout](case.grid)
    assert_identical(sample(case, X, grid), sample(case))


def test_broadcast_inputs() -> None:
    case = Case("float32", "float32", 2, ATTRIBUTES[-1])
    X, grid = np.broadcast_to(case.X[:1], case.X.shape), np.broadcast_to(case.grid[:1], case.grid.shape)
    assert_identical(sample(case, X, grid), sample(case, X.copy(), grid.copy()))


def test_array_likes() -> None:
    Y = grid_sample([[[1, 2, 4]]], [[[0.0], [1.0]]], "nearest")
    assert Y.dtype == np.int64
    assert Y.tolist() == [[[2, 4]]]


@pytest.mark.parametrize("dtype", ["U8", np.dtypes.StringDType() if hasattr(np.dtypes, "StringDType") else "U9"])
def test_every_string_type_is_copied(dtype: object) -> None:
    case = Case("str", "float32", 2, Attributes("nearest", "zeros", False))
    assert sample(case, case.X.astype(dtype)).tolist() == sample(case).tolist()


# Empty and degenerate


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
@pytest.mark.parametrize(
    ("X", "grid"),
    [
        ((0, 3, 4, 5), (0, 6, 7, 2)),
        ((2, 0, 4, 5), (2, 6, 7, 2)),
        ((2, 3, 4, 5), (2, 0, 7, 2)),
        ((2, 3, 4, 5), (2, 6, 0, 2)),
        ((2, 3, 0, 5), (2, 6, 0, 2)),
        ((0, 0, 0), (0, 0, 1)),
    ],
)
def test_empty_outputs(X: tuple[int, ...], grid: tuple[int, ...], attributes: Attributes) -> None:
    Y = grid_sample(np.ones(X, np.int16), np.ones(grid, np.float16), *astuple(attributes))
    assert_identical(Y, np.ones((*X[:2], *grid[1:-1]), np.int16))


@pytest.mark.parametrize("X_type", spec.TYPES)
@pytest.mark.parametrize("lengths", [(0, 5), (4, 0), (0, 0)])
def test_no_pixel_to_read(X_type: str, lengths: tuple[int, int]) -> None:
    X, grid = np.zeros((1, 2, *lengths), dtype_of(X_type)), np.zeros((1, 3, 1, 2), np.float32)
    for mode in spec.MODES if X_type != "str" else ("nearest",):
        zero = "" if X_type == "str" else 0
        assert_identical(grid_sample(X, grid, mode), np.full((1, 2, 3, 1), zero, X.dtype))
        for padding_mode in ("border", "reflection"):
            with pytest.raises(GridSampleError, match=r"X is of shape .*length 0"):
                grid_sample(X, grid, mode, padding_mode)


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
@pytest.mark.parametrize("lengths", [(1,), (1, 1), (1, 4), (5, 1), (2, 1, 3), (2, 2)])
def test_axes_of_length_1_and_2(lengths: tuple[int, ...], attributes: Attributes) -> None:
    r = len(lengths)
    X = image("float32", (1, 2, *lengths))
    grid = generator("degenerate", r).choice(
        [-7.5, -2, -1, -0.5, 0, 0.25, 1, 1.5, 3, np.inf, -np.inf, np.nan], (1, *(3,) * r, r)
    )
    grid = grid.astype(np.float32)
    Y = grid_sample(X, grid, *astuple(attributes))
    expected = oracle.grid_sample(X, grid, *astuple(attributes))
    assert_matches(Y, expected, grid.dtype, attributes.mode, attributes.padding_mode)


# Values


@pytest.mark.parametrize("X_type", INTEGERS)
@pytest.mark.parametrize("mode", spec.MODES)
def test_constant_integers_stay_exactly_constant(X_type: str, mode: str) -> None:
    limits = np.iinfo(X_type)
    values = {limits.min, limits.max, limits.max - 1, limits.max // 2 + 1, limits.max // 3, 1, 0}
    if limits.bits == 64:
        values |= {2**62 + 1, 2**53 + 1, 2**61 - 1}
    grid = generator("constant").uniform(-0.4, 0.4, (1, 40, 40, 2)).astype(np.float32)
    for value, padding_mode in itertools.product(values, spec.PADDING_MODES):
        Y = grid_sample(np.full((1, 1, 9, 8), value, X_type), grid, mode, padding_mode)
        assert (np.array(value, X_type) == Y).all(), (value, padding_mode)


@pytest.mark.parametrize("X_type", INTEGERS)
def test_integers_truncate_toward_zero_and_saturate(X_type: str) -> None:
    limits = np.iinfo(X_type)
    middle = np.zeros((1, 1, 1))
    assert grid_sample(np.array([[[2, 5]]], X_type), middle).item() == 3
    if limits.min:
        assert grid_sample(np.array([[[-2, -5]]], X_type), middle).item() == -3
    # Cubic overshoots beside a step: beyond both limits.
    step = np.array([[[limits.min, limits.min, limits.max, limits.max]]], X_type)
    Y = grid_sample(step, np.array([[[-0.45], [0.45]]]), "cubic", "border")
    assert Y.tolist() == [[[limits.min, limits.max]]]


@pytest.mark.parametrize("mode", SMOOTH)
def test_bool_is_true_where_the_sum_is_not_zero(mode: str) -> None:
    X = np.array([[[False, False, False, True, False, False, False]]])
    x = np.array([0.5, 1.5, 2.0, 2.25, 3.0, 3.5, 4.5, 5.75])  # pixel coordinates
    Y = grid_sample(X, (x / 3 - 1)[None, :, None], mode, "border", True)
    reach = 1 if mode == "linear" else 2
    assert Y[0, 0].tolist() == [abs(at - 3) < reach and at not in (2.0, 4.0) for at in x]


@pytest.mark.parametrize("case", FLOAT_CASES, ids=str)
def test_nan_and_infinity_show_only_where_they_are_read(case: Case) -> None:
    lengths = case.X.shape[2:]
    taps = oracle.grid_taps(case.grid, lengths, *astuple(case.attributes))
    for pixel in [
        tuple(0 for _ in lengths),
        tuple(length - 1 for length in lengths),
        tuple(length // 2 for length in lengths),
    ]:
        for value in (np.nan, np.inf):
            X = case.X.copy()
            X[(slice(None), slice(None), *pixel)] = value
            Y = sample(case, X).reshape(*X.shape[:2], -1)
            unread = [[all(index != pixel for index, _ in position) for position in batch] for batch in taps]
            read = [[any(index == pixel and w for index, w in position) for position in batch] for batch in taps]
            for channel in range(X.shape[1]):
                assert np.isfinite(Y[:, channel][unread]).all()
                assert not np.isfinite(Y[:, channel][read]).any()


@pytest.mark.parametrize("mode", spec.MODES)
@pytest.mark.parametrize("align_corners", [False, True])
def test_zeros_padding_is_0_beside_infinite_edges(mode: str, align_corners: bool) -> None:
    X = np.full((1, 1, 3, 3), np.inf, np.float32)
    grid = np.array([[-9.0, 0], [9, 0], [0, -9], [0, 9], [np.inf, 0], [-np.inf, np.inf], [1e30, -1e30]])[None, :, None]
    assert_identical(grid_sample(X, grid, mode, "zeros", align_corners), np.zeros((1, 1, 7, 1), np.float32))


@pytest.mark.parametrize("mode", spec.MODES)
@pytest.mark.parametrize("grid_type", spec.FLOATS)
def test_a_far_coordinate_is_the_edge_it_lies_beyond(mode: str, grid_type: str) -> None:
    X = np.array([[[3.0, 5.0, 7.0]]])
    far = np.array([-1e10, 1e10, -3e38, 3e38, -np.inf, np.inf, -6e4, 6e4])
    with np.errstate(over="ignore"):
        grid = far.astype(dtype_of(grid_type))[None, :, None]
    for align_corners in (False, True):
        assert grid_sample(X, grid, mode, "border", align_corners)[0, 0].tolist() == [3.0, 7.0] * 4
        infinite = grid[:, 4:6]
        assert grid_sample(X, infinite, mode, "reflection", align_corners)[0, 0].tolist() == [3.0, 7.0]
        assert not grid_sample(X, grid, mode, "zeros", align_corners).any()


@pytest.mark.parametrize("case", matrix(["float64"], ["float32", "float16"], [2]), ids=str)
def test_nan_in_the_grid_counts_as_minus_1(case: Case) -> None:
    minus_1 = np.where(np.isnan(case.grid), case.grid.dtype.type(-1), case.grid)
    with_nan = np.where(minus_1 == -1, case.grid.dtype.type(np.nan), minus_1)
    assert np.isnan(with_nan).any()
    assert_identical(sample(case, grid=with_nan), sample(case, grid=minus_1))


@pytest.mark.parametrize("grid_type", ["float16", "bfloat16"])
def test_coordinates_of_half_grids_are_computed_in_float32(grid_type: str) -> None:
    # 3125.125; a half has no numbers between 3124 and 3126 there, a bfloat16 none between 3120 and 3136.
    grid = np.array([[[0.25]]], dtype_of(grid_type))
    assert grid_sample(np.arange(5001)[None, None], grid, "nearest").item() == 3125


@pytest.mark.parametrize("X_type", ["float16", "bfloat16"])
def test_halves_are_rounded_once(X_type: str) -> None:
    dtype = dtype_of(X_type)
    X = image(X_type, (1, 4, 6, 6))
    grid = generator("halves").uniform(-1, 1, (1, 20, 20, 2)).astype(np.float32)
    for mode in SMOOTH:
        assert_identical(grid_sample(X, grid, mode), grid_sample(X.astype(np.float32), grid, mode).astype(dtype))


# Mistakes


ONE = np.zeros((1, 1, 4, 5), np.float32)
TWO = np.zeros((1, 2, 3, 2), np.float32)
MISTAKES = {
    "mode": ((ONE, TWO, "lanczos"), "mode", "'lanczos'", "'nearest', 'linear', 'cubic'"),
    "padding": ((ONE, TWO, "linear", "wrap"), "padding_mode", "'wrap'", "'zeros', 'border' or 'reflection'"),
    "string linear": ((ONE.astype(str), TWO, "linear"), "mode", "'linear'", "'nearest'"),
    "string cubic": ((ONE.astype(object), TWO, "bicubic"), "mode", "'bicubic'", "'nearest'"),
    "X type": ((ONE.astype("datetime64[s]"), TWO), "X", "datetime64", "float32"),
    "X structured": ((np.zeros((1, 1, 4, 5), "f4,f4"), TWO), "X", "f4", "float32"),
    "integer grid": ((ONE, TWO.astype(np.int64)), "grid", "int64", "float32, float64, float16, bfloat16"),
    "complex grid": ((ONE, TWO.astype(complex)), "grid", "complex128", "float32"),
    "X rank": ((ONE[0, 0], TWO), "X", "(4, 5)", "(N, C, D1"),
    "X scalar": ((np.float32(1), TWO), "X", "()", "(N, C, D1"),
    "grid rank": ((ONE, TWO[0]), "grid", "(2, 3, 2)", "(N, D1_out, D2_out, 2)"),
    "grid last axis": ((ONE, TWO[..., :1]), "grid", "(1, 2, 3, 1)", "(N, D1_out, D2_out, 2)"),
    "batch": ((ONE, np.repeat(TWO, 2, 0)), "grid", "(2, 2, 3, 2)", "N = 1"),
    "no broadcast of X": ((np.repeat(ONE, 3, 0), TWO), "grid", "(1, 2, 3, 2)", "N = 3"),
}
LINE, POINTS = np.zeros((1, 1, 4), np.float32), np.zeros((1, 3, 1), np.float32)
MISTAKES |= {
    "grid rank, one axis": (
        (LINE, POINTS[0]),
        "grid",
        "(3, 1)",
        "(N, D1_out, 1), as X of shape (1, 1, 4) has 1 spatial axis",
    ),
    "grid rank, two axes": ((ONE, TWO[0]), "grid", "(2, 3, 2)", "as X of shape (1, 1, 4, 5) has 2 spatial axes"),
    "grid last axis, one axis": ((LINE, np.zeros((1, 3, 2))), "grid", "(1, 3, 2)", "has 1 spatial axis"),
}
THETA = np.zeros((2, 2, 3), np.float32)
AFFINE_MISTAKES = {
    "theta type": ((THETA.astype(int), (2, 1, 3, 4)), "theta", "int64", "float32"),
    "theta rank": ((THETA[0], (2, 1, 3, 4)), "theta", "(2, 3)", "(N, 2, 3) or (N, 3, 4)"),
    "theta shape": ((np.zeros((2, 3, 3)), (2, 1, 3, 4)), "theta", "(2, 3, 3)", "(N, 2, 3) or (N, 3, 4)"),
    "size rank": ((THETA, (2, 1, 3, 4, 5)), "size", "[2, 1, 3, 4, 5]", "(2, 2, 3)"),
    "size too short": ((THETA, (2, 3, 4)), "size", "[2, 3, 4]", "(2, 2, 3)"),
    "size batch": ((THETA, (3, 1, 3, 4)), "size", "[3, 1, 3, 4]", "(2, 2, 3)"),
    "negative size": ((THETA, (2, 1, -3, 4)), "size", "[2, 1, -3, 4]", "(2, 2, 3)"),
    "float size": ((THETA, np.ones(4)), "size", "float64", "integers"),
}


@pytest.mark.parametrize(
    ("function", "mistake"),
    [(grid_sample, m) for m in MISTAKES.values()] + [(affine_grid, m) for m in AFFINE_MISTAKES.values()],
    ids=[*MISTAKES, *AFFINE_MISTAKES],
)
def test_a_mistake_names_argument_found_and_expected(function, mistake) -> None:
    arguments, argument, found, expected = mistake
    with pytest.raises(GridSampleError) as raised:
        function(*arguments)
    error = raised.value
    assert isinstance(error, ValueError)
    assert error.where == function.__name__
    assert error.argument == argument
    as_found = re.sub(r"[()\[\]]", "", error.found)
    assert re.sub(r"[()\[\]]", "", found) in as_found
    assert expected in error.expected
    for part in (error.where, error.argument, error.found, error.expected):
        assert part in str(error)


# AffineGrid


SIZES = [(2, 3, 4, 5), (1, 1, 1, 1), (2, 1, 1, 6), (1, 2, 7, 1), (2, 3, 3, 4, 5), (1, 1, 1, 5, 1), (3, 0, 2, 2)]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("theta_type", spec.FLOATS)
def test_affine_grid_matches_the_oracle(theta_type: str, size: tuple[int, ...], align_corners: bool) -> None:
    r, dtype = len(size) - 2, dtype_of(theta_type)
    theta = generator("theta", r).normal(size=(size[0], r, r + 1)).astype(dtype)
    grid = affine_grid(theta, size, align_corners)
    expected = oracle.affine_grid(theta, size, align_corners)
    assert grid.dtype == dtype
    compute = np.finfo(spec.TYPES[theta_type].compute).eps
    scale = abs(theta.astype(np.float64)).sum(-1).reshape(size[0], *(1,) * r, r)
    error = 4 * compute * scale + (finfo(dtype).eps / 2 * abs(expected) if finfo(dtype).bits < 32 else 0)
    assert (abs(grid.astype(np.float64) - expected) <= error).all()


@pytest.mark.parametrize("size", [(0, 3, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0, 5)], ids=str)
def test_affine_grid_of_nothing(size: tuple[int, ...]) -> None:
    r = len(size) - 2
    assert affine_grid(np.ones((size[0], r, r + 1)), size).shape == (size[0], *size[2:], r)


def test_affine_grid_centres_an_aligned_axis_of_one_pixel() -> None:
    theta = np.array([[[1.0, 0, 0.25], [0, 1, -0.5]]])
    assert affine_grid(theta, (1, 1, 1, 1), True).tolist() == [[[[0.25, -0.5]]]]


@pytest.mark.parametrize("size_type", [np.int32, np.int64, np.uint8, tuple, list])
def test_size_may_be_any_row_of_integers(size_type) -> None:
    size = size_type((2, 1, 3, 4)) if size_type in (tuple, list) else np.array((2, 1, 3, 4), size_type)
    assert affine_grid(THETA, size).shape == (2, 3, 4, 2)


def test_a_size_alone_may_be_empty_and_not_negative() -> None:
    """What is known of a model's AffineGrid whose theta is not."""
    checks.affine_grid_shapes("here", None, [0, 1, 0, 4])
    with pytest.raises(GridSampleError, match=r"here: size is \(1, 1, -1, 4\), expected"):
        checks.affine_grid_shapes("here", None, [1, 1, -1, 4])
    with pytest.raises(GridSampleError, match=r"here: size is \(1, 1, 4\), expected"):
        checks.affine_grid_shapes("here", None, [1, 1, 4])


def test_a_theta_that_overflows_is_no_warning() -> None:
    theta = np.full((1, 2, 3), np.finfo(np.float32).max)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grid = affine_grid(theta.astype(np.float32), (1, 1, 3, 3), align_corners=True)
    assert np.isinf(grid).any()
