"""Run patched files without onnxruntime-extensions, and compare with this package's session.

Arguments: the target of ``ogs.patch_model``, and a list of cases in JSON: the type of X, the mode
and the number of spatial axes. Prints JSON: the cases with wrong outputs, the largest error of
AffineGrid, the error of a wrong grid, the shape of an output in the session, and whether
onnxruntime-extensions was loaded.
"""

import json
import sys

import numpy as np
import onnx
import onnxruntime

import ort_gridsample as ogs
from support import faults
from support.cases import Attributes, dtype_of
from support.models import affine_grid_model, grid_sample_model
from support.paths import quiet_options, run
from support.programs import shape_or_error

TARGET = sys.argv[1]
RNG = np.random.default_rng(0)


def open_file(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    patched = ogs.patch_model(model, target=TARGET).SerializeToString()
    return onnxruntime.InferenceSession(patched, ogs.register(quiet_options()))


def is_right(X_type: str, mode: str, rank: int) -> bool:
    model = grid_sample_model(X_type, "float32", rank, [Attributes(mode)])
    X = (10 * RNG.random((2, 3, *(5, 6, 7)[:rank]))).astype(dtype_of(X_type))
    grid = RNG.uniform(-1.2, 1.2, (2, *(3, 4, 5)[:rank], rank)).astype(np.float32)
    (Y,) = run(open_file(model), X.dtype, X, grid)
    (expected,) = run(ogs.InferenceSession(model, nodes="all"), X.dtype, X, grid)
    is_close = np.allclose(Y.astype(np.float64), expected.astype(np.float64), atol=1e-6)
    return bool(Y.dtype == expected.dtype and is_close)


def affine_grid_error() -> float:
    theta = RNG.random((2, 2, 3)).astype(np.float32)
    size = np.array([2, 1, 4, 5])
    session = open_file(affine_grid_model("float32", 2, True))
    (grid,) = run(session, theta.dtype, theta, size)
    return float(np.abs(grid - ogs.affine_grid(theta, size, True)).max())


def main() -> None:
    cases = json.loads(sys.argv[2])
    if faults.OPSET < 22:  # this onnxruntime does not read the first opset with bfloat16
        cases = [case for case in cases if case[0] != "bfloat16"]
    wrong_cases = [case for case in cases if not is_right(*case)]
    session = open_file(grid_sample_model("uint8", "float32", 1, [Attributes("nearest")]))
    error = shape_or_error(session, np.ones((2, 3, 5), np.uint8), np.zeros((1, 3, 1), np.float32))
    is_loaded = "onnxruntime_extensions._ocos" in sys.modules
    shape = session.get_outputs()[0].shape
    print(json.dumps([wrong_cases, affine_grid_error(), error, shape, is_loaded]))


main()
