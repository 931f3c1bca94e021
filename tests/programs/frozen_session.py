"""Run a session on each kind of op; print what its node runs on, and its output.

Arguments: kinds of ops.
"""

import logging
import sys

import numpy as np
import onnx.parser

import ort_gridsample as ogs

logging.basicConfig(level="WARNING", stream=sys.stdout, format="%(message)s")
MODEL = onnx.parser.parse_model(
    '<ir_version: 9, opset_import: ["": 20]>'
    " g (float[1,1,3,3,3] X, float[1,1,1,1,3] G) => (float[] Y)"
    ' { Y = GridSample <mode = "cubic"> (X, G) }'
)
FEEDS = {
    "X": np.arange(27, dtype=np.float32).reshape(1, 1, 3, 3, 3),
    "G": np.zeros((1, 1, 1, 1, 3), np.float32),
}
for ops in sys.argv[1:]:
    ogs.set_ops("compiled" if ops == "compiled" else "python")
    session = ogs.InferenceSession(MODEL)
    (Y,) = session.run(None, FEEDS)
    print(session.placements[0].runs_on, Y.item())
