"""Sample a pixel of int8 where a build of onnxruntime with another name is installed.

Prints the pixel, and what the session's node runs on.
"""

import importlib.metadata

import numpy as np
import onnx.parser

import ort_gridsample as ogs

names = [distribution.metadata["Name"] for distribution in importlib.metadata.distributions()]
assert "onnxruntime" not in names, names
MODEL = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 20]>
    g (int8[1,1,2,2] X, float[1,1,1,2] G) => (int8[1,1,1,1] Y) {
    Y = GridSample <mode = "nearest"> (X, G) }""")
FEEDS = {
    "X": np.arange(4, dtype=np.int8).reshape(1, 1, 2, 2),
    "G": np.full((1, 1, 1, 2), 0.5, np.float32),
}
session = ogs.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
print(session.run(None, FEEDS)[0].item(), session.placements[0].runs_on)
