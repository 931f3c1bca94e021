"""Test the examples and sentences of the specification texts on every path, and onnx's node tests.

The tests are named after the texts.
"""

import itertools
from dataclasses import astuple
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.backend.test.case.test_case import TestCase
from onnx.reference import ReferenceEvaluator

import ort_gridsample as ogs
from ort_gridsample import spec
from support import faults, oracle
from support.cases import Attributes, generator, image
from support.compare import assert_identical, assert_matches
from support.models import parsed
from support.node_tests import NODE_TESTS
from support.paths import (
    HAS_COMPILED_OPS,
    HAS_PROVIDER,
    Function,
    Model,
    Open,
    open_compiled,
    open_native,
    open_patched_file,
    open_provider,
    open_session,
    run,
)

# The examples of onnx-gridsample-16-first-draft.rst. The text repeats X and the grids.

PIXELS_4x4 = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
PIXELS_3x2 = np.arange(6, dtype=np.float32).reshape(1, 1, 3, 2)
STEPS = np.array([-1.0, -0.6, -0.2, 0.2, 0.6, 1.0], np.float32)
GRID_6x6 = np.stack(np.meshgrid(STEPS, STEPS), -1)[None]


def diagonal(*rows: list[float]) -> np.ndarray:
    """Return a grid with x = y at each position."""
    return np.array(rows, np.float32)[None, ..., None].repeat(2, -1)


GRID_OUTSIDE = diagonal([-10, -5, -0.2, 10], [10, -0.2, 5, 10])
GRID_INSIDE = diagonal([-1, -0.5, -0.2, 0], [0, -0.2, 0.5, 1])

GRIDSAMPLE = [
    [0.0000, 0.1500, 0.5500, 0.9500, 1.3500, 0.7500],
    [0.6000, 1.5000, 2.3000, 3.1000, 3.9000, 2.1000],
    [2.2000, 4.7000, 5.5000, 6.3000, 7.1000, 3.7000],
    [3.8000, 7.9000, 8.7000, 9.5000, 10.3000, 5.3000],
    [5.4000, 11.1000, 11.9000, 12.7000, 13.5000, 6.9000],
    [3.0000, 6.1500, 6.5500, 6.9500, 7.3500, 3.7500],
]
PADDINGS = {
    "zeros": [[0.0, 0.0, 1.7, 0.0], [0.0, 1.7, 0.0, 0.0]],
    "border": [[0.0, 0.0, 1.7, 5.0], [5.0, 1.7, 5.0, 5.0]],
    "reflection": [[2.5, 0.0, 1.7, 2.5], [2.5, 1.7, 5.0, 2.5]],
}
MODES = {
    "bilinear": [[0.0, 0.5, 1.7, 2.5], [2.5, 1.7, 4.5, 1.25]],
    "nearest": [[0, 0, 2, 2], [2, 2, 5, 0]],
    "bicubic": [[-0.1406, 0.3828, 1.7556, 2.9688], [2.9688, 1.7556, 5.1445, 1.3906]],
}
ALIGNED = [[0.0, 1.25, 2.0, 2.5], [2.5, 2.0, 3.75, 5.0]]
#: X, the grid, the attributes and the output.
DraftExample: TypeAlias = tuple[np.ndarray, np.ndarray, Attributes, list[list[float]]]
FIRST_DRAFT: list[DraftExample] = [
    (PIXELS_4x4, GRID_6x6, Attributes("bilinear", "zeros", False), GRIDSAMPLE),
    *(
        (PIXELS_3x2, GRID_OUTSIDE, Attributes(padding_mode=name), expected)
        for name, expected in PADDINGS.items()
    ),
    *((PIXELS_3x2, GRID_INSIDE, Attributes(name), expected) for name, expected in MODES.items()),
    (PIXELS_3x2, GRID_INSIDE, Attributes("bilinear", align_corners=True), ALIGNED),
]


@pytest.mark.parametrize(
    "example", FIRST_DRAFT, ids=[f"{len(grid)} {values}" for _, grid, values, _ in FIRST_DRAFT]
)
@pytest.mark.parametrize("opset", spec.OPERATORS["GridSample"])
def test_onnx_gridsample_16_first_draft(
    opset: int, example: DraftExample, path: Function | Model
) -> None:
    X, grid, attributes, expected = example
    Y = path.grid_sample(X, grid, *astuple(attributes), opset=min(opset, faults.OPSET))
    assert Y.shape == (1, 1, *np.shape(expected))
    # The text has four decimals.
    np.testing.assert_allclose(Y[0, 0], expected, rtol=0, atol=6e-5)


def floats(*numbers: float) -> np.ndarray:
    """Return an X of one row."""
    return np.array([[numbers]], np.float32)


def row(*coordinates: float) -> np.ndarray:
    """Return a grid of one axis. All coordinates of the tests are exact in float32."""
    return np.array(coordinates, np.float32)[None, :, None]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("mode", spec.MODES)
def test_onnx_gridsample_22__minus_3_5_reflects_to_1_5_and_then_0_5(
    mode: str, align_corners: bool, path: Function | Model
) -> None:
    X = image("float32", (1, 2, 7))
    Y = path.grid_sample(X, row(-3.5, 1.5, 0.5), mode, "reflection", align_corners)
    np.testing.assert_allclose(Y[..., :2], Y[..., 2:].repeat(2, -1), rtol=2e-6)


CORNERS = floats(2, 3, 5, 7)
#: Whether corners are aligned -> the normalized coordinate of the last pixel's centre.
LAST_CENTRE = {True: 1.0, False: 0.75}
VOLUME = np.arange(24, dtype=np.float32).reshape(1, 1, 2, 3, 4)
#: x = 3 of W, y = 0 of H, z = 1 of D.
POSITION = np.array([[[[[1, -1, 1]]]]], np.float32)
HALFWAY = row(-0.75, -0.25, 0.25, 0.75)
#: The weights of the taps at the pixel coordinate -0.5, from Keys' kernel for a = -0.75.
INNER = 0.59375
OUTER = -0.09375
#: The value at the pixel coordinate -0.5 of the row 1, 2, 4, 8, 16, for each padding.
PADDED = {
    "zeros": INNER * 1 + OUTER * 2,
    "border": OUTER * 1 + INNER * 1 + INNER * 1 + OUTER * 2,
    "reflection": OUTER * 4 + INNER * 2 + INNER * 1 + OUTER * 2,
}


class Example(NamedTuple):
    """The arguments of a call, and the output."""

    X: np.ndarray
    grid: np.ndarray
    mode: str
    padding_mode: str
    align_corners: bool
    expected: list[float]


SENTENCES = {
    # "If index 0 represents the margin pixel". Centres of pixels are 0.5 apart.
    "the_value_at_index_minus_1_is_the_one_at_index_1": [
        Example(floats(2, 3, 5, 7, 11), row(-1.5, 1.5), mode, "reflection", True, [3, 7])
        for mode in spec.MODES
    ],
    "the_extrema_are_centers_or_corners": [
        *(
            Example(CORNERS, row(-x, x), mode, "zeros", align_corners, [2, 7])
            for mode in spec.MODES
            for align_corners, x in LAST_CENTRE.items()
        ),
        # The outer corner of a corner pixel is halfway to the padding: the mean of both.
        Example(CORNERS, row(-1, 1), "linear", "zeros", False, [1, 3.5]),
    ],
    "the_grid_lists_the_innermost_axis_first": [
        Example(VOLUME, POSITION, "nearest", "zeros", True, [15])
    ],
    "nearest_rounds_halfway_to_even": [
        Example(floats(*range(5)), HALFWAY, "nearest", "zeros", True, [0, 2, 2, 4])
    ],
    # The pixel coordinate -1.5 is reflected to 0.5, which is rounded to 0. Rounded first, it would
    # be -2, and reflected 1.
    "nearest_reflects_before_it_rounds": [
        Example(floats(*range(4)), row(-1.5), "nearest", "reflection", False, [0])
    ],
    "cubic_pads_each_tap": [
        Example(floats(1, 2, 4, 8, 16), row(-1.25), "cubic", padding_mode, True, [Y])
        for padding_mode, Y in PADDED.items()
    ],
    # The values are 3.25, 8.25 and 3.5.
    "integers_are_computed_as_floating_point_and_cast": [
        Example(
            X=np.array([[[4, 3, 10]]], np.uint8),
            grid=row(-0.25, 0.75, -0.5),
            mode="linear",
            padding_mode="zeros",
            align_corners=True,
            expected=[3, 8, 3],
        )
    ],
}


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, id=f"{sentence}-{Attributes(*example[2:5])}")
        for sentence, examples in SENTENCES.items()
        for example in examples
    ],
)
def test_onnx_gridsample_22(example: Example, path: Function | Model) -> None:
    X, grid, mode, padding_mode, align_corners, values = example
    Y = path.grid_sample(X, grid, mode, padding_mode, align_corners)
    assert_identical(Y, np.array(values, X.dtype).reshape(1, 1, *grid.shape[1:-1]))


@pytest.mark.parametrize("open_model", [open_session, open_patched_file])
@pytest.mark.parametrize("opset", (16, 17, 20) if faults.OPSET < 22 else (16, 17, 20, 21, 22, 23))
def test_onnx_gridsample_22_20_16__defaults(opset: int, open_model: Open) -> None:
    X = image("float32", (1, 1, 4, 4))
    grid = GRID_6x6 * np.float32(1.3)
    expected = oracle.grid_sample(X, grid)
    graph = """
        g (float[1,1,4,4] X, float[1,6,6,2] grid) => (float[1,1,6,6] Y) {
            Y = GridSample (X, grid) }"""
    (Y,) = run(open_model(parsed(graph, opset)), X.dtype, X, grid)
    assert_matches(Y, expected, grid.dtype, "linear", "zeros")


VERSIONS = [
    (operator, opset) for operator, versions in spec.OPERATORS.items() for opset in versions
]
every_version = pytest.mark.parametrize(("operator", "opset"), VERSIONS)


@every_version
def test_attributes_of_the_package_are_those_of_the_schema(operator: str, opset: int) -> None:
    version = spec.OPERATORS[operator][opset]
    schema = onnx.defs.get_schema(operator, opset)
    assert schema.since_version == opset
    defaults = {}
    for name, attribute in schema.attributes.items():
        default = onnx.helper.get_attribute_value(attribute.default_value)
        defaults[name] = default.decode() if isinstance(default, bytes) else default
    assert {name: value.default for name, value in version.attributes.items()} == defaults


@every_version
def test_types_of_the_package_are_those_of_the_schema(operator: str, opset: int) -> None:
    version = spec.OPERATORS[operator][opset]
    schema = onnx.defs.get_schema(operator, opset)
    allowed = {
        constraint.type_param_str: set(constraint.allowed_type_strs)
        for constraint in schema.type_constraints
    }
    for argument in schema.inputs:
        types = {f"tensor({spec.TYPES[name].onnx})" for name in version.types[argument.name]}
        assert types == allowed.get(argument.type_str, {argument.type_str}), argument.name


AFFINE_SIZES = [(2, 3, 4, 5), (3, 1, 2, 7), (2, 2, 3, 4, 5), (2, 1, 1, 3, 2)]


# If corners are aligned, the body divides by 0 on an axis of one pixel, or moves it to -1. The
# package has it at 0, like PyTorch.
@pytest.mark.parametrize(
    ("size", "align_corners"),
    [(size, False) for size in AFFINE_SIZES]
    + [(size, True) for size in AFFINE_SIZES if 1 not in size[2:]],
    ids=str,
)
@pytest.mark.parametrize("theta_type", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_onnx_affinegrid_20__function_body(
    theta_type: str, size: tuple[int, ...], align_corners: bool, path: Function | Model
) -> None:
    body = ReferenceEvaluator(onnx.defs.get_schema("AffineGrid", 20).function_body)
    atol = 1e-6 if theta_type == "float32" else 1e-14
    r = len(size) - 2
    theta = generator("affine", r).normal(size=(size[0], r, r + 1)).astype(theta_type)
    inputs = {"theta": theta, "size": np.array(size)}
    (expected,) = body.run(None, inputs, attributes={"align_corners": int(align_corners)})
    grid = path.affine_grid(theta, size, align_corners)
    assert grid.dtype == theta.dtype
    np.testing.assert_allclose(grid, expected, rtol=0, atol=atol)


def test_onnx_affinegrid_20__illustration(path: Function | Model) -> None:
    theta = np.eye(2, 3, dtype=np.float32)[None]
    aligned = path.affine_grid(theta, (1, 1, 1, 4), True)
    np.testing.assert_allclose(aligned[0, 0, :, 0], [-1, -1 / 3, 1 / 3, 1], rtol=1e-7)
    unaligned = path.affine_grid(theta, (1, 1, 1, 4), False)
    np.testing.assert_allclose(unaligned[0, 0, :, 0], [-0.75, -0.25, 0.25, 0.75], rtol=1e-7)


#: In the names of tests whose model is the function body of the operator.
EXPANDED = "_expanded"
OPERATOR_TESTS = [name for name in NODE_TESTS if EXPANDED not in name]
EXPANDED_TESTS = [name for name in NODE_TESTS if EXPANDED in name]
assert len(NODE_TESTS) >= 26
assert EXPANDED_TESTS


def assert_case_passes(sessions: list[onnxruntime.InferenceSession], case: TestCase) -> None:
    for session, (inputs, outputs) in itertools.product(sessions, case.data_sets):
        for Y, expected in zip(run(session, inputs[0].dtype, *inputs), outputs, strict=True):
            assert (Y.dtype, Y.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(Y, expected, rtol=case.rtol, atol=max(case.atol, 1e-6))


def operator_types(model: onnx.ModelProto) -> set[tuple[str, str]]:
    return {(node.domain, node.op_type) for node in model.graph.node}


STANDARD = {("", op_type) for op_type in spec.OPERATORS}


@pytest.mark.parametrize("name", OPERATOR_TESTS)
def test_node_test_passes_on_every_op(name: str) -> None:
    case = NODE_TESTS[name]
    patched = operator_types(ogs.patch_model(case.model))
    assert patched.isdisjoint(STANDARD)
    assert "ort_gridsample" in {domain for domain, _ in patched}
    sessions = [open_session(case.model), open_patched_file(case.model)]
    if HAS_COMPILED_OPS:
        sessions.append(open_compiled(case.model))
        if HAS_PROVIDER:
            sessions.append(open_provider(case.model))
    assert_case_passes(sessions, case)


@pytest.mark.parametrize("name", EXPANDED_TESTS)
def test_expanded_node_test_passes_on_the_ops_and_in_onnxruntime(name: str) -> None:
    """There is nothing to patch in a function body. The operator itself has the same outputs."""
    case = NODE_TESTS[name]
    operator_model = NODE_TESTS[name.partition(EXPANDED)[0]].model
    patched = operator_types(ogs.patch_model(case.model))
    assert patched.isdisjoint(STANDARD)
    assert "ort_gridsample" not in {domain for domain, _ in patched}
    sessions = [
        open_session(operator_model),
        open_patched_file(operator_model),
        open_native(case.model),
        open_session(case.model),
    ]
    assert_case_passes(sessions, case)
