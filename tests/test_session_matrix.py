"""Every type that ONNX Runtime can hold, through a session, against the function: bit for bit, as both are one core."""

import numpy as np

import ort_gridsample as ogs
from cases import ATTRIBUTES, RANKS, SESSION_TYPES, Attributes, Case, dtype_of, is_defined
from compare import about, assert_identical, finfo
from conftest import with_slow
from models import grid_sample_model
from ort_gridsample import spec
from paths import PATHS, function_answer, open_patched_file, open_session, run
from test_function import USUAL, on_cores_by_type

HALVES = ("float16", "bfloat16")
COMPILED = [X_type for X_type, _ in USUAL]


@on_cores_by_type(SESSION_TYPES)
def test_session_answers_as_the_function(core: str, X_type: str) -> None:
    """With each type of grid; ranks, opsets, and sessions of the model or of a patched file, in turns."""
    attributes = [each for each in ATTRIBUTES if is_defined(X_type, each.mode)]
    compiled = core == "jit" and X_type in COMPILED
    turn = SESSION_TYPES.index(X_type)
    for i, grid_type in enumerate([X_type if X_type in HALVES else "float32"] if compiled else spec.FLOATS):
        rank, open_model = RANKS[(turn + i) % 4], (open_session, open_patched_file)[(turn // 2 + i) % 2]
        opset = 22 if "bfloat16" in (X_type, grid_type) else (16, 20, None)[(turn + i) % 3]
        cases = [Case(X_type, grid_type, rank, each) for each in attributes]
        session = open_model(grid_sample_model(X_type, grid_type, rank, attributes, opset))
        for case, Y in zip(cases, run(session, cases[0].X.dtype, cases[0].X, cases[0].grid), strict=True):
            with about(f"{case}, opset {opset}, {open_model.__name__}"):
                expected = function_answer(case, core)
                assert (Y.dtype, Y.shape) == (expected.dtype, expected.shape)
                # Halves that are added up reach the op as float32, and are added up otherwise.
                if X_type not in HALVES or case.attributes.mode == "nearest":
                    assert_identical(Y, expected)
                else:
                    rounding = float(finfo(Y.dtype).eps)
                    np.testing.assert_allclose(Y.astype("f"), expected.astype("f"), rtol=rounding, atol=rounding)


@with_slow("X_type,bit", [("float16", 2**-9), ("bfloat16", 2**-6)], [("float16", 2**-9)])
def test_half_precision(X_type: str, bit: float) -> None:
    """Through Casts to and from float32 on a Python op, as it is on a compiled one; the answer is the function's."""
    model = grid_sample_model(X_type, "float32", 2, [Attributes("linear", "border")])
    outside = [node.op_type for node in model.graph.node if node.op_type != "GridSample"]
    for target, casts in (("ort_gridsample", 2), ("compiled", 0))[: 2 if "compiled" in PATHS else 1]:
        patched = [node.op_type for node in ogs.patch_model(model, target=target).graph.node]
        assert patched.count("Cast") == len(outside) + casts, target
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1, 2, 5, 6)).astype(dtype_of(X_type))
    grid = rng.uniform(-1.2, 1.2, (1, 3, 4, 2)).astype(np.float32)
    expected = ogs.grid_sample(X, grid, "linear", "border")
    for name, path in PATHS.items():
        found = path.grid_sample(X, grid, "linear", "border", False)
        assert found.dtype == X.dtype, name
        np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=0, atol=bit, err_msg=name)
