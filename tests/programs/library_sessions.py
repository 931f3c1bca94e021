"""Open sessions with the library in ORT_GRIDSAMPLE_LIBRARY; print a line of JSON.

If the argument is "without extensions", onnxruntime-extensions cannot be imported.
"""

import json
import os
import sys

if sys.argv[1] == "without extensions":
    sys.modules["onnxruntime_extensions"] = None  # type: ignore[assignment]

import numpy as np
import onnxruntime

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
from support.programs import result_or_error

X = np.ones((1, 2, 4, 4), np.float32)
GRID = np.zeros((1, 3, 3, 2), np.float32)
FEEDS = {"X": X, "grid": GRID}
model = grid_sample_model("float32", "float32", 2, [Attributes()])
patched = ogs.patch_model(model, target="compiled").SerializeToString()
session = ogs.InferenceSession(model)
(placement,) = session.placements
plain_sessions = [onnxruntime.InferenceSession(patched, ogs.register()) for _ in range(2)]
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(os.environ["ORT_GRIDSAMPLE_LIBRARY"])
plain_sessions.append(onnxruntime.InferenceSession(patched, options))
is_numba_imported = "numba" in sys.modules


def run_strings() -> tuple[int, ...]:
    strings = grid_sample_model("str", "float32", 2, [Attributes("nearest")])
    feeds = {"X": X.astype(str).astype(object), "grid": GRID}
    return ogs.InferenceSession(strings).run(None, feeds)[0].shape


results = {
    "shape": session.run(None, FEEDS)[0].shape,
    "runs_on": placement.runs_on,
    "library": placement.library,
    "plain shapes": [plain.run(None, FEEDS)[0].shape for plain in plain_sessions],
    "inferred shape": plain_sessions[0].get_outputs()[0].shape,
    "is_numba_imported": is_numba_imported,
    "strings": result_or_error(run_strings),
}
print(json.dumps(results))
