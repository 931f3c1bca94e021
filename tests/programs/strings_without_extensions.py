"""Sample tensors of strings without onnxruntime-extensions.

Prints JSON: the shapes that the function and a lowered model return, and the errors of a session
and of a patched file.
"""

import json

import numpy as np
import onnxruntime

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
from support.programs import result_or_error, shape_or_error

MODEL = grid_sample_model("str", "float32", 2, [Attributes("nearest")])
X = np.full((1, 2, 4, 4), "a", object)
GRID = np.zeros((1, 3, 3, 2), np.float32)

patched = ogs.patch_model(MODEL).SerializeToString()
lowered = ogs.patch_model(MODEL, target="primitives").SerializeToString()
results = {
    "function": ogs.grid_sample(X, GRID, mode="nearest").shape,
    "lowered model": shape_or_error(onnxruntime.InferenceSession(lowered), X, GRID),
    "session": result_or_error(ogs.InferenceSession, MODEL),
    "patched file": result_or_error(lambda: onnxruntime.InferenceSession(patched, ogs.register())),
}
print(json.dumps(results))
