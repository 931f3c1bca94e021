"""What the specification texts show and say, on every path, tests named after the texts; and onnx's own node tests."""

import importlib
import itertools
from dataclasses import astuple

import numpy as np
import onnx
import pytest
from onnx.backend.test.case import node as node_cases
from onnx.reference import ReferenceEvaluator

import ort_gridsample as ogs
from ort_gridsample import spec
from ort_gridsample.custom_ops.compiled_ops.registry import unavailable_reason
from support import faults, oracle
from support.cases import Attributes, generator, image
from support.compare import about, assert_identical, assert_matches
from support.models import parsed
from support.paths import (
    Function,
    Model,
    open_compiled,
    open_native,
    open_patched_file,
    open_session,
    run,
)

# onnx-gridsample-16-first-draft.rst: its examples. Only the shared X and grids are named here; the text repeats them.

PIXELS_4x4 = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
PIXELS_3x2 = np.arange(6, dtype=np.float32).reshape(1, 1, 3, 2)
STEPS = np.array([-1.0, -0.6, -0.2, 0.2, 0.6, 1.0], np.float32)
#: In the names of onnx's own node tests.
EXPANDED = "_expanded"
GRID_6x6 = np.stack(np.meshgrid(STEPS, STEPS), -1)[None]


def diagonal(*rows: list[float]) -> np.ndarray:
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
FIRST_DRAFT = [
    (PIXELS_4x4, GRID_6x6, Attributes("bilinear", "zeros", False), GRIDSAMPLE),
    *(
        (PIXELS_3x2, GRID_OUTSIDE, Attributes(padding_mode=name), expected)
        for name, expected in PADDINGS.items()
    ),
    *((PIXELS_3x2, GRID_INSIDE, Attributes(name), expected) for name, expected in MODES.items()),
    (PIXELS_3x2, GRID_INSIDE, Attributes("bilinear", align_corners=True), ALIGNED),
]


def test_onnx_gridsample_16_first_draft(path: Function | Model) -> None:
    for opset, (X, grid, attributes, expected) in itertools.product(
        spec.OPERATORS["GridSample"], FIRST_DRAFT
    ):
        Y = path.grid_sample(X, grid, *astuple(attributes), opset=min(opset, faults.OPSET))
        assert Y.shape == (1, 1, *np.shape(expected))
        with about((attributes, opset)):
            np.testing.assert_allclose(
                Y[0, 0], expected, rtol=0, atol=6e-5
            )  # the text prints four digits


def floats(*numbers: float) -> np.ndarray:
    """An X of one row, of a type that most tests have kernels for."""
    return np.array([[numbers]], np.float32)


def at(*coordinates: float) -> np.ndarray:
    """A grid of one axis; float32 is exact at all that are given here."""
    return np.array(coordinates, np.float32)[None, :, None]


def test_onnx_gridsample_22__minus_3_5_reflects_to_1_5_and_then_0_5(path: Function | Model) -> None:
    for mode, align_corners in itertools.product(spec.MODES, (False, True)):
        Y = path.grid_sample(
            image("float32", (1, 2, 7)), at(-3.5, 1.5, 0.5), mode, "reflection", align_corners
        )
        with about((mode, align_corners)):
            np.testing.assert_allclose(Y[..., :2], Y[..., 2:].repeat(2, -1), rtol=2e-6)


CORNERS, CENTERS = floats(2, 3, 5, 7), ((True, 1.0), (False, 0.75))
VOLUME, POSITION = (
    np.arange(24, dtype=np.float32).reshape(1, 1, 2, 3, 4),
    np.array([[[[[1, -1, 1]]]]], np.float32),
)
HALFWAY = at(-0.75, -0.25, 0.25, 0.75)
PADDED = {
    "zeros": 0.59375 - 2 * 0.09375,
    "border": 2 * 0.59375 - 3 * 0.09375,
    "reflection": 3 * 0.59375 - 6 * 0.09375,
}
#: Sentence -> X, grid, mode, padding and alignment, and the answer.
SENTENCES = {
    # "If index 0 represents the margin pixel": -1 and 1 are the centres of the corner pixels, 0.5 apart.
    "the_value_at_index_minus_1_is_the_one_at_index_1": [
        (floats(2, 3, 5, 7, 11), at(-1.5, 1.5), mode, "reflection", True, [3, 7])
        for mode in spec.MODES
    ],
    # The outer corner of a corner pixel is halfway to the padding: linear answers the mean of both.
    "the_extrema_are_centers_or_corners": [
        *(
            (CORNERS, at(-x, x), mode, "zeros", aligned, [2, 7])
            for mode in spec.MODES
            for aligned, x in CENTERS
        ),
        (CORNERS, at(-1, 1), "linear", "zeros", False, [1, 3.5]),
    ],
    # x = 3 of W, y = 0 of H, z = 1 of D.
    "the_grid_lists_the_innermost_axis_first": [(VOLUME, POSITION, "nearest", "zeros", True, [15])],
    "nearest_rounds_halfway_to_even": [
        (floats(*range(5)), HALFWAY, "nearest", "zeros", True, [0, 2, 2, 4])
    ],
    # The pixel coordinate -1.5 is reflected to 0.5, halfway, which rounds to 0; rounded first it would be -2, then 1.
    "nearest_reflects_before_it_rounds": [
        (floats(*range(4)), at(-1.5), "nearest", "reflection", False, [0])
    ],
    # At the pixel coordinate -0.5 the taps -2, -1, 0 and 1 have the weights of Keys' kernel for a = -0.75.
    "cubic_pads_each_tap": [
        (floats(1, 2, 4, 8, 16), at(-1.25), "cubic", padding_mode, True, [Y])
        for padding_mode, Y in PADDED.items()
    ],
    "integers_are_computed_as_floating_point_and_cast": [  # 3.25, 8.25 and 3.5
        (
            np.array([[[4, 3, 10]]], np.uint8),
            at(-0.25, 0.75, -0.5),
            "linear",
            "zeros",
            True,
            [3, 8, 3],
        )
    ],
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_onnx_gridsample_22(sentence: str, path: Function | Model) -> None:
    for X, grid, *how, expected in SENTENCES[sentence]:
        with about(how):
            Y = path.grid_sample(X, grid, *how)
            assert_identical(Y, np.array(expected, X.dtype).reshape(1, 1, *grid.shape[1:-1]))


def test_onnx_gridsample_22_20_16__defaults() -> None:
    X, grid = image("float32", (1, 1, 4, 4)), GRID_6x6 * np.float32(1.3)
    expected = oracle.grid_sample(X, grid)
    graph = "g (float[1,1,4,4] X, float[1,6,6,2] grid) => (float[1,1,6,6] Y) { Y = GridSample (X, grid) }"
    opsets = (16, 17, 20) if faults.OPSET < 22 else (16, 17, 20, 21, 22, 23)
    for opset, open_model in itertools.product(opsets, (open_session, open_patched_file)):
        session = open_model(parsed(graph, opset))
        with about((opset, open_model.__name__)):
            assert_matches(
                run(session, X.dtype, X, grid)[0], expected, grid.dtype, "linear", "zeros"
            )


def test_onnx_gridsample_22_20_16__the_package_s_table_is_the_schema_s() -> None:
    for operator, versions in spec.OPERATORS.items():
        for opset, version in versions.items():
            schema = onnx.defs.get_schema(operator, opset)
            assert (schema.since_version, set(version.attributes)) == (
                opset,
                set(schema.attributes),
            )
            for name, attribute in version.attributes.items():
                default = onnx.helper.get_attribute_value(schema.attributes[name].default_value)
                assert attribute.default == (
                    default.decode() if isinstance(default, bytes) else default
                )
            allowed = {
                each.type_param_str: set(each.allowed_type_strs) for each in schema.type_constraints
            }
            for argument in schema.inputs:
                types = {
                    f"tensor({spec.TYPES[name].onnx})" for name in version.types[argument.name]
                }
                assert types == allowed.get(argument.type_str, {argument.type_str}), argument.name


@pytest.mark.parametrize("theta_type", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_onnx_affinegrid_20__function_body(theta_type: str, path: Function | Model) -> None:
    body = ReferenceEvaluator(onnx.defs.get_schema("AffineGrid", 20).function_body)
    sizes = [(2, 3, 4, 5), (3, 1, 2, 7), (2, 2, 3, 4, 5), (2, 1, 1, 3, 2)]
    for size, align_corners in itertools.product(sizes, (False, True)):
        # Aligned, the body divides by 0 on an axis of one pixel or puts it at -1: the package puts it at 0, as PyTorch.
        if not (align_corners and 1 in size[2:]):
            r = len(size) - 2
            theta = generator("affine", r).normal(size=(size[0], r, r + 1)).astype(theta_type)
            inputs = {"theta": theta, "size": np.array(size)}
            [expected] = body.run(None, inputs, attributes={"align_corners": int(align_corners)})
            grid = path.affine_grid(theta, size, align_corners)
            assert grid.dtype == theta.dtype
            with about((size, align_corners)):
                np.testing.assert_allclose(
                    grid, expected, rtol=0, atol=1e-6 if theta_type == "float32" else 1e-14
                )


def test_onnx_affinegrid_20__illustration(path: Function | Model) -> None:
    for align_corners, marks in (
        (True, [-1, -1 / 3, 1 / 3, 1]),
        (False, [-0.75, -0.25, 0.25, 0.75]),
    ):
        grid = path.affine_grid(np.eye(2, 3, dtype=np.float32)[None], (1, 1, 1, 4), align_corners)
        np.testing.assert_allclose(grid[0, 0, :, 0], marks, rtol=1e-7)


# Importing an operator's module is what registers its tests; all operators take 15 s.
for _operator in spec.OPERATORS:
    importlib.import_module(f"{node_cases.__name__}.{_operator.lower()}")
WANTED = ("test_gridsample", "test_affine_grid")
CASES = {case.name: case for case in node_cases._NodeTestCases if case.name.startswith(WANTED)}
assert len(CASES) >= 26
assert any(EXPANDED in name for name in CASES)


@pytest.mark.parametrize("name", CASES)
def test_node(name: str) -> None:
    """Or the operator's function body, in which there is nothing to patch: onnxruntime and the op agree with it."""
    case, op = CASES[name], CASES[name.partition(EXPANDED)[0]]
    patched = {(node.domain, node.op_type) for node in ogs.patch_model(case.model).graph.node}
    assert patched.isdisjoint(("", op_type) for op_type in spec.OPERATORS)
    assert any(domain == "ort_gridsample" for domain, _ in patched) == (case is op)
    sessions = [open_session(op.model), open_patched_file(op.model)]
    if case is not op:
        sessions += [open_native(case.model), open_session(case.model)]
    elif not unavailable_reason():
        sessions.append(open_compiled(op.model))
    for session, (inputs, outputs) in itertools.product(sessions, case.data_sets):
        for Y, expected in zip(run(session, inputs[0].dtype, *inputs), outputs, strict=True):
            assert (Y.dtype, Y.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(Y, expected, rtol=case.rtol, atol=max(case.atol, 1e-6))
