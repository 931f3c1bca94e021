"""The functions against the oracle, sessions against them: every type, rank, mode and padding, and all odd arrays."""

import itertools
import pickle
import warnings
from collections.abc import Iterable
from dataclasses import astuple

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from conftest import CORES, with_slow, with_sweep
from ort_gridsample import affine_grid, grid_sample, patch_model, spec
from ort_gridsample.functions import validation
from support import oracle
from support.cases import (
    ATTRIBUTES,
    RANKS,
    SESSION_TYPES,
    USUAL,
    Attributes,
    Case,
    dtype_of,
    generator,
    image,
    is_defined,
    matrix,
)
from support.compare import about, assert_identical, assert_matches, finfo, refusal
from support.models import grid_sample_model
from support.paths import (
    PATHS,
    Function,
    Model,
    function_answer,
    needs_python_ops,
    open_patched_file,
    open_session,
    run,
)

pytestmark = pytest.mark.usefixtures("core")

FLOAT_CASES = matrix(["float32"], ["float32"])
INTEGERS = [name for name in spec.TYPES if "int" in name]


def on_cores(
    names: str, values: Iterable[tuple[str, ...]], usual: Iterable[tuple[str, ...]]
) -> pytest.MarkDecorator:
    """Every core with these ``values``; those beside the ``usual`` ones are in the sweep on the compiled core."""
    each = [(core, *value) for core, value in itertools.product(CORES, values)]
    quick = [(core, *value) for core, *value in each if core != "jit" or tuple(value) in usual]
    return with_sweep(f"core,{names}", each, quick, indirect=["core"])


def on_cores_by_type(names: Iterable[str]) -> pytest.MarkDecorator:
    return on_cores("X_type", [(name,) for name in names], [(name,) for name, _ in USUAL])


def sample(case: Case, X: np.ndarray | None = None, grid: np.ndarray | None = None) -> np.ndarray:
    return grid_sample(
        case.X if X is None else X, case.grid if grid is None else grid, *astuple(case.attributes)
    )


def assert_is_the_oracles(X: np.ndarray, grid: np.ndarray, attributes: Attributes) -> None:
    expected = oracle.grid_sample(X, grid, *astuple(attributes))
    with about((X.shape, attributes)):
        Y = grid_sample(X, grid, *astuple(attributes))
        assert_matches(Y, expected, grid.dtype, attributes.mode, attributes.padding_mode)


@on_cores("X_type,grid_type", itertools.product(spec.TYPES, spec.FLOATS), USUAL)
def test_matches_the_oracle(X_type: str, grid_type: str, core: str) -> None:
    for case in matrix([X_type], [grid_type]):
        with about(case):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                Y = function_answer(case, core)
            assert Y.dtype == case.X.dtype
            assert_matches(
                Y,
                case.expected,
                case.grid.dtype,
                case.attributes.mode,
                case.attributes.padding_mode,
            )


#: Halves, which no weight of float32 makes subnormal.
finite = st.floats(-6e4, 6e4, width=16)
#: Any number whose pixel coordinate is finite, often nearby, and what is none.
anything = st.one_of(
    *(st.floats(-x, x, width=32) for x in (1.5, 2.0**120)),
    st.sampled_from([np.nan, np.inf, -np.inf]),
)


@settings(max_examples=400)
@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from(ATTRIBUTES))
def test_any_arrays_match_the_oracle(
    data: st.DataObject, lengths: list[int], attributes: Attributes
) -> None:
    """X lies between numbers that are none: a tap that leaves it would show."""
    r = len(lengths)
    X = data.draw(arrays.arrays(np.float32, (2, 2, *lengths), elements=finite, fill=finite))
    grid = data.draw(
        arrays.arrays(np.float32, (2, *(1,) * (r - 1), 6, r), elements=anything, fill=anything)
    )
    around = np.full(X.size, np.nan, np.float32)
    fenced = np.concatenate([around, X.reshape(-1), around])[X.size : -X.size].reshape(X.shape)
    expected = oracle.grid_sample(X, grid, *astuple(attributes))
    Y = grid_sample(fenced, grid, *astuple(attributes))
    assert_matches(Y, expected, grid.dtype, attributes.mode, attributes.padding_mode)


@pytest.mark.parametrize("r", [5, 6])
def test_higher_ranks_match_the_oracle(r: int) -> None:
    X = image("float32", (1, 1, *(2, 3, 2, 1, 2, 3)[:r]))
    grid = generator(r).uniform(-1.6, 1.6, (1, 2, *(1,) * (r - 1), r)).astype(np.float32)
    for attributes in ATTRIBUTES:
        # 4096 taps a position are the oracle's limit, not the function's.
        if attributes.align_corners and (r, attributes.mode) != (6, "cubic"):
            assert_is_the_oracles(X, grid, attributes)


@pytest.mark.parametrize("mode", spec.MODES)
def test_many_positions_and_channels_match_the_oracle(mode: str) -> None:
    """More output than any block or chunk of a core holds; the oracle looks at some of it."""
    X, grid = (
        image("float32", (1, 70, 6, 7)),
        generator("many").uniform(-1.5, 1.5, (1, 150, 131, 2)).astype("float32"),
    )
    some = np.ascontiguousarray(grid[:, ::37, ::26])
    for padding_mode, align_corners in itertools.product(spec.PADDING_MODES, (False, True)):
        Y = grid_sample(X, grid, mode, padding_mode, align_corners)[:, ::23, ::37, ::26]
        expected = oracle.grid_sample(X[:, ::23], some, mode, padding_mode, align_corners)
        with about((padding_mode, align_corners)):
            assert_matches(Y, expected, grid.dtype, mode, padding_mode)


@needs_python_ops
@on_cores_by_type(SESSION_TYPES)
def test_session_answers_as_the_function(core: str, X_type: str) -> None:
    """With each type of grid; ranks, opsets, and sessions of the model or of a patched file, in turns."""
    attributes = [each for each in ATTRIBUTES if is_defined(X_type, each.mode)]
    usual, is_half = dict(USUAL).get(X_type) if core == "jit" else None, X_type.endswith("float16")
    turn = SESSION_TYPES.index(X_type)
    for i, grid_type in enumerate([usual] if usual else spec.FLOATS):
        rank, open_model = (
            RANKS[(turn + i) % 4],
            (open_session, open_patched_file)[(turn // 2 + i) % 2],
        )
        opset = 22 if "bfloat16" in (X_type, grid_type) else (16, 20, None)[(turn + i) % 3]
        cases = [Case(X_type, grid_type, rank, each) for each in attributes]
        session = open_model(grid_sample_model(X_type, grid_type, rank, attributes, opset))
        for case, Y in zip(
            cases, run(session, cases[0].X.dtype, cases[0].X, cases[0].grid), strict=True
        ):
            with about(f"{case}, opset {opset}, {open_model.__name__}"):
                expected = function_answer(case, core)
                assert (Y.dtype, Y.shape) == (expected.dtype, expected.shape)
                # Halves that are added up reach the op as float32, and are added up otherwise.
                if not is_half or case.attributes.mode == "nearest":
                    assert_identical(Y, expected)
                else:
                    rounding = float(finfo(Y.dtype).eps)
                    np.testing.assert_allclose(
                        Y.astype("f"), expected.astype("f"), rtol=rounding, atol=rounding
                    )


@with_slow("X_type,bit", [("float16", 2**-9), ("bfloat16", 2**-6)], [("float16", 2**-9)])
def test_half_precision(X_type: str, bit: float) -> None:
    """Through Casts to and from float32 on a Python op, as it is on a compiled one; the answer is the function's."""
    model = grid_sample_model(X_type, "float32", 2, [Attributes("linear", "border")])
    outside = [node.op_type for node in model.graph.node if node.op_type != "GridSample"]
    for target, casts in (("ort_gridsample", 2), ("compiled", 0))[
        : 2 if "compiled" in PATHS else 1
    ]:
        patched = [node.op_type for node in patch_model(model, target=target).graph.node]
        assert patched.count("Cast") == len(outside) + casts, target
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1, 2, 5, 6)).astype(dtype_of(X_type))
    grid = rng.uniform(-1.2, 1.2, (1, 3, 4, 2)).astype(np.float32)
    expected = grid_sample(X, grid, "linear", "border")
    for name, path in PATHS.items():
        found = path.grid_sample(X, grid, "linear", "border", False)
        assert found.dtype == X.dtype, name
        np.testing.assert_allclose(
            found.astype(float), expected.astype(float), rtol=0, atol=bit, err_msg=name
        )


def test_inputs_are_read_only_and_stay_as_they_are() -> None:
    for case in FLOAT_CASES:
        X, grid = case.X.copy(), case.grid.copy()
        Y = sample(case)
        with about(case):
            assert_identical(case.X, X)
            assert_identical(case.grid, grid)
            assert (Y.flags.writeable, Y.flags.c_contiguous, np.shares_memory(Y, case.X)) == (
                True,
                True,
                False,
            )


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_answers_the_same(layout: str, core: str) -> None:
    for X_type, grid_type in [
        *USUAL,
        *[("int16", "float64"), ("complex64", "float32")] * (core == "numpy"),
    ]:
        for case in matrix(
            [X_type],
            [grid_type],
            [2],
            [Attributes("nearest"), Attributes("linear", "border", True)],
        ):
            X, grid = LAYOUTS[layout](case.X), LAYOUTS[layout](case.grid)
            with about(case):
                assert_identical(
                    sample(case, X, grid), sample(case, X.astype(X_type), grid.astype(grid_type))
                )


@on_cores("wide", [("int64",)], usual=())
def test_array_likes_and_every_type_of_strings(wide: str) -> None:
    assert_identical(
        grid_sample([[[1, 2, 4]]], [[[0.0], [1.0]]], "nearest"), np.array([[[2, 4]]], wide)
    )
    case = Case("str", "float32", 2, Attributes("nearest", "zeros", False))
    for dtype in STRINGS:
        assert sample(case, case.X.astype(dtype)).tolist() == sample(case).tolist()


EMPTY = [((0, 3, 4, 5), (0, 6, 7, 2)), ((2, 0, 4, 5), (2, 6, 7, 2)), ((2, 3, 4, 5), (2, 0, 7, 2))]
EMPTY += [((2, 3, 4, 5), (2, 6, 0, 2)), ((2, 3, 0, 5), (2, 6, 0, 2)), ((0, 0, 0), (0, 0, 1))]
NO_PIXEL = ((1, 2, 0, 3), (1, 2, 2, 2))


def test_empty_outputs(path: Function | Model) -> None:
    """And one that is not, of an image without pixels."""
    for X, grid in [*EMPTY, NO_PIXEL]:
        attributes = [
            each for each in ATTRIBUTES if (X, grid) != NO_PIXEL or each.padding_mode == "zeros"
        ]
        answers = path.grid_samples(np.ones(X, "u1"), np.ones(grid, "f"), attributes)
        for Y, each in zip(answers, attributes, strict=True):
            with about((X, grid, each)):
                assert_identical(Y, np.zeros((*X[:2], *grid[1:-1]), np.uint8))


@pytest.mark.parametrize("lengths", [(0, 5), (4, 0), (0, 0)])
def test_no_pixel_to_read(lengths: tuple[int, int]) -> None:
    grid = np.zeros((1, 3, 1, 2), np.float32)
    for X_type, mode in filter(
        lambda each: is_defined(*each), itertools.product(spec.TYPES, spec.MODES)
    ):
        X = np.zeros((1, 2, *lengths), dtype_of(X_type))
        with about((X_type, mode)):
            assert_identical(
                grid_sample(X, grid, mode),
                np.full((1, 2, 3, 1), "" if X_type == "str" else 0, X.dtype),
            )
        for padding_mode in ("border", "reflection"):
            needs = f"expected no spatial axis of length 0, as padding_mode '{padding_mode}' needs a pixel"
            assert f"X is of shape {X.shape}, {needs}" in str(
                refusal(grid_sample, X, grid, mode, padding_mode)
            )


@on_cores_by_type(INTEGERS)
def test_constant_integers_stay_exactly_constant(X_type: str) -> None:
    limits = np.iinfo(X_type)
    values = {limits.min, limits.max, limits.max - 1, limits.max // 2 + 1, limits.max // 3, 1, 0}
    if limits.bits == 64:
        values |= {2**62 + 1, 2**53 + 1, 2**61 - 1}
    for lengths in ((9,), (9, 8), (9, 8, 8), (8, 8, 8, 8)):
        positions = generator("constant").uniform(
            -0.4, 0.4, (1, 200, *[1] * (len(lengths) - 1), len(lengths))
        )
        for value, mode, padding_mode in itertools.product(values, spec.MODES, spec.PADDING_MODES):
            Y = grid_sample(
                np.full((1, 1, *lengths), value, X_type), positions.astype("f"), mode, padding_mode
            )
            assert (np.array(value, X_type) == Y).all(), (lengths, value, mode, padding_mode)


@on_cores_by_type(INTEGERS)
def test_integers_truncate_toward_zero_and_saturate(X_type: str) -> None:
    limits = np.iinfo(X_type)
    for sign in (1, -1) if limits.min else (1,):
        assert (
            grid_sample(np.array([[[2, 5]]], X_type) * sign, np.zeros((1, 1, 1), "f")).item()
            == 3 * sign
        )
    # Cubic overshoots beside a step: beyond both limits.
    step = np.array([[[limits.min, limits.min, limits.max, limits.max]]], X_type)
    Y = grid_sample(step, np.array([[[-0.45], [0.45]]], np.float32), "cubic", "border")
    assert Y.tolist() == [[[limits.min, limits.max]]]


@pytest.mark.parametrize("mode", spec.MODES)
def test_nan_and_infinity_show_only_where_they_are_read(mode: str) -> None:
    for case in [case for case in FLOAT_CASES if case.attributes.mode == mode]:
        lengths = case.X.shape[2:]
        taps = oracle.grid_taps(case.grid, lengths, *astuple(case.attributes))
        every = [*np.ndindex(lengths)]
        for pixels in (every[:1], every[-1:], [tuple(n // 2 for n in lengths)], every):
            unread = [
                [all(index not in pixels for index, _ in position) for position in batch]
                for batch in taps
            ]
            read = [
                [any(index in pixels and w for index, w in position) for position in batch]
                for batch in taps
            ]
            for value in (np.nan, np.inf):
                X = case.X.copy()
                X[(..., *np.transpose(pixels))] = value
                Y = sample(case, X).reshape(*X.shape[:2], -1).swapaxes(1, 2)
                assert np.isfinite(Y[unread]).all(), (case, pixels, value)
                assert not np.isfinite(Y[read]).any(), (case, pixels, value)


@on_cores("grid_type", [(name,) for name in spec.FLOATS], usual=[("float32",), ("float16",)])
def test_a_far_coordinate_is_the_edge_it_lies_beyond(grid_type: str) -> None:
    X = np.array([[[3.0, 5.0, 7.0]]], "float64" if grid_type == "float64" else "float32")
    far = np.array([-1e10, 1e10, -3e38, 3e38, -np.inf, np.inf, -6e4, 6e4])
    with np.errstate(over="ignore"):
        grid = far.astype(dtype_of(grid_type))[None, :, None]
    for mode, align_corners in itertools.product(spec.MODES, (False, True)):
        assert grid_sample(X, grid, mode, "border", align_corners)[0, 0].tolist() == [3.0, 7.0] * 4
        assert grid_sample(X, grid[:, 4:6], mode, "reflection", align_corners)[0, 0].tolist() == [
            3.0,
            7.0,
        ]
        assert not grid_sample(X, grid, mode, "zeros", align_corners).any()


@on_cores_by_type(["float16", "bfloat16"])
def test_halves_are_rounded_once(X_type: str) -> None:
    X = image(X_type, (1, 4, 6, 6))
    grid = generator("halves").uniform(-1, 1, (1, 20, 20, 2)).astype(np.float32)
    for mode in ("linear", "cubic"):
        assert_identical(
            grid_sample(X, grid, mode),
            grid_sample(X.astype(np.float32), grid, mode).astype(X.dtype),
        )


ONE = np.zeros((1, 1, 4, 5), np.float32)
TWO = np.zeros((1, 2, 3, 2), np.float32)
LINE, POINTS = np.zeros((1, 1, 4), np.float32), np.zeros((1, 3, 1), np.float32)
TYPES, FLOATS = f"one of {', '.join(spec.TYPES)}", "one of float32, float64, float16, bfloat16"
FOR_TEXT = "'nearest', the only mode that is defined for str X"
NO_AXIS = "shape (N, C, D1, …, Dr) with at least one spatial axis"
IN_TWO = "shape (N, D1_out, D2_out, 2), as X of shape (1, 1, 4, 5) has 2 spatial axes"
IN_ONE = "shape (N, D1_out, 1), as X of shape (1, 1, 4) has 1 spatial axis"
#: Arguments -> which of them is wrong, what was found, and what was expected.
MISTAKES = {
    "mode": (
        (ONE, TWO, "lanczos"),
        "mode",
        "'lanczos'",
        "'nearest', 'linear', 'cubic', 'bilinear' or 'bicubic'",
    ),
    "padding": (
        (ONE, TWO, "linear", "wrap"),
        "padding_mode",
        "'wrap'",
        "'zeros', 'border' or 'reflection'",
    ),
    "mode in a list": (
        (ONE, TWO, ["linear"]),
        "mode",
        "['linear']",
        "'nearest', 'linear', 'cubic', 'bilinear' or 'bicubic'",
    ),
    "string linear": ((ONE.astype(str), TWO, "linear"), "mode", "'linear'", FOR_TEXT),
    "X type": ((ONE.astype("datetime64[s]"), TWO), "X", "of type datetime64[s]", TYPES),
    "X structured": (
        (np.zeros((1, 1, 4), "f4,f4"), POINTS),
        "X",
        "of type [('f0', '<f4'), ('f1', '<f4')]",
        TYPES,
    ),
    "integer grid": ((ONE, TWO.astype(np.int64)), "grid", "of type int64", FLOATS),
    "X rank": ((ONE[0, 0], TWO), "X", "of shape (4, 5)", NO_AXIS),
    "X scalar": ((np.float32(1), TWO), "X", "of shape ()", NO_AXIS),
    "grid rank": ((ONE, TWO[0]), "grid", "of shape (2, 3, 2)", IN_TWO),
    "grid last axis": ((ONE, TWO[..., :1]), "grid", "of shape (1, 2, 3, 1)", IN_TWO),
    "grid last axis, one axis": ((LINE, TWO[0]), "grid", "of shape (2, 3, 2)", IN_ONE),
    "batch": (
        (ONE, TWO.repeat(2, 0)),
        "grid",
        "of shape (2, 2, 3, 2)",
        "N = 1 first, as X is of shape (1, 1, 4, 5)",
    ),
}
THETA = np.zeros((2, 2, 3), np.float32)
THETAS, AS_THETA = "shape (N, 2, 3) or (N, 3, 4)", "as theta is of shape (2, 2, 3)"
IN_SPACE = "(N, C, D, H, W), as theta is of shape (2, 3, 4)"
AFFINE_MISTAKES = {
    "theta type": ((THETA.astype(int), (2, 1, 3, 4)), "theta", "of type int64", FLOATS),
    "theta rank": ((THETA[0], (2, 1, 3, 4)), "theta", "of shape (2, 3)", THETAS),
    "theta shape": ((np.zeros((2, 3, 3)), (2, 1, 3, 4)), "theta", "of shape (2, 3, 3)", THETAS),
    "size rank": ((THETA, (2, 1, 3, 4, 5)), "size", "(2, 1, 3, 4, 5)", f"(N, C, H, W), {AS_THETA}"),
    "size too short": ((np.zeros((2, 3, 4)), (2, 1, 3, 4)), "size", "(2, 1, 3, 4)", IN_SPACE),
    "size batch": ((THETA, (3, 1, 3, 4)), "size", "(3, 1, 3, 4)", f"N = 2 first, {AS_THETA}"),
    "negative": (
        (THETA, (2, 1, -3, 4)),
        "size",
        "(2, 1, -3, 4)",
        f"(N, C, H, W), nothing negative, {AS_THETA}",
    ),
    "float size": (
        (THETA, np.ones(4)),
        "size",
        "of type float64 and shape (4)",
        "a row of integers",
    ),
    "size of two axes": (
        (THETA, np.ones((1, 4), int)),
        "size",
        "of type int64 and shape (1, 4)",
        "a row of integers",
    ),
}


@pytest.mark.parametrize("mistake", [*MISTAKES, *AFFINE_MISTAKES])
def test_a_mistake_names_argument_found_and_expected(mistake: str) -> None:
    function, mistakes = (
        (grid_sample, MISTAKES) if mistake in MISTAKES else (affine_grid, AFFINE_MISTAKES)
    )
    arguments, argument, found, expected = mistakes[mistake]
    for where, named in ((function.__name__, {}), ("the node", {"where": "the node"})):
        error = refusal(function, *arguments, **named)
        assert isinstance(error, ValueError)
        assert (error.where, error.argument, error.found, error.expected) == (
            where,
            argument,
            found,
            expected,
        )
        for each in (error, pickle.loads(pickle.dumps(error))):
            assert str(each) == f"{where}: {argument} is {found}, expected {expected}"


#: Some have axes of one pixel, which is in the middle where corners are aligned, or of none.
SIZES = [
    (2, 3, 4, 5),
    (1, 1, 1, 1),
    (2, 1, 1, 6),
    (1, 2, 7, 1),
    (2, 3, 3, 4, 5),
    (1, 1, 1, 5, 1),
    (3, 0, 2, 2),
]
SIZES += [(0, 3, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0, 5)]


@pytest.mark.parametrize("theta_type", spec.FLOATS)
def test_affine_grid_matches_the_oracle(theta_type: str) -> None:
    dtype, compute = dtype_of(theta_type), np.finfo(spec.TYPES[theta_type].compute).eps
    for size, align_corners in itertools.product(SIZES, (False, True)):
        r = len(size) - 2
        theta = generator("theta", r).normal(size=(size[0], r, r + 1)).astype(dtype)
        grid, expected = (
            affine_grid(theta, size, align_corners),
            oracle.affine_grid(theta, size, align_corners),
        )
        assert (grid.dtype, grid.shape) == (dtype, expected.shape)
        scale = abs(theta.astype(np.float64)).sum(-1).reshape(size[0], *(1,) * r, r)
        error = 4 * compute * scale + (
            finfo(dtype).eps / 2 * abs(expected) if finfo(dtype).bits < 32 else 0
        )
        assert (abs(grid.astype(np.float64) - expected) <= error).all(), (size, align_corners)


def test_size_may_be_any_row_of_integers_and_theta_any_number() -> None:
    size = (2, 1, 3, 4)
    for row in (size, list(size), *(np.array(size, name) for name in ("int32", "int64", "uint8"))):
        assert affine_grid(THETA, row).shape == (2, 3, 4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(
            affine_grid(np.full((2, 2, 3), np.finfo(np.float32).max), size, align_corners=True)
        ).any()


def test_size_selects_the_axes_of_a_theta_of_unknown_lengths() -> None:
    validation.check_affine_grid_shapes("here", ("N", None, None), [1, 2, 3, 4, 5])
    validation.check_affine_grid_shapes("here", ("N", None, None), [1, 2, 3, 4])
    error = refusal(validation.check_affine_grid_shapes, "here", ("N", None, 4), [1, 2, 3, 4])
    assert (error.argument, error.found) == ("size", "(1, 2, 3, 4)")


def test_a_size_or_a_grid_alone_is_checked() -> None:
    """What is known of a model's node whose other input is not."""
    validation.check_affine_grid_shapes("here", None, [0, 1, 0, 4])
    validation.check_grid_sample_shapes("here", None, (1, "h", "w", None))
    sizes, grids = "(N, C, H, W) or (N, C, D, H, W)", "expected shape (N, D1_out, …, Dr_out, r)"
    for check, shape, said in (
        (
            validation.check_affine_grid_shapes,
            (1, 1, -1, 4),
            f"size is (1, 1, -1, 4), expected {sizes}, nothing negative",
        ),
        (validation.check_affine_grid_shapes, (1, 1, 4), f"size is (1, 1, 4), expected {sizes}"),
        (validation.check_grid_sample_shapes, (1, None), f"grid is of shape (1, ?), {grids}"),
        (validation.check_grid_sample_shapes, (1, "h", 2), f"grid is of shape (1, h, 2), {grids}"),
    ):
        assert str(refusal(check, "here", None, shape)) == f"here: {said}"
