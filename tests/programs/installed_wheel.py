"""Use an installed wheel that has a library inside; print a line of JSON.

No kernel can be compiled: Numba is not installed. An argument, if any, is the type of X.
"""

import importlib.util
import json
import sys

import numpy as np
import onnx.parser

import ort_gridsample as ogs

types = {"float32": "float", "float64": "double"}
X_type = sys.argv[1] if len(sys.argv) > 1 else "float32"
X = np.arange(8, dtype=X_type).reshape(1, 1, 2, 2, 2)
GRID = np.full((1, 1, 1, 1, 3), 0.25, X_type)
MODEL = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 20]>
    g ({types[X_type]}[1,1,2,2,2] X, {types[X_type]}[1,1,1,1,3] grid)
    => ({types[X_type]}[1,1,1,1,1] Y) {{ Y = GridSample <mode = "linear"> (X, grid) }}""")
session = ogs.InferenceSession(MODEL, nodes="all")
(placement,) = session.placements
results = {
    "has_numba": importlib.util.find_spec("numba") is not None,
    "runs_on": placement.runs_on,
    "library": placement.library,
    "core": ogs.get_core(),
    "session": session.run(None, {"X": X, "grid": GRID})[0].item(),
    "function": ogs.grid_sample(X, GRID, "linear").item(),
}
print(json.dumps(results))
