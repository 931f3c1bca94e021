"""Run a patched file with the Python op of deformable attention, without onnxruntime-extensions.

Prints JSON: the largest error of its output, and the error of weights of a wrong shape.
"""

import json

import numpy as np
import onnx.parser
import onnxruntime

import ort_gridsample as ogs
from ort_gridsample.functions.attention import attend
from support.attention_models import LEVELS, operands
from support.programs import result_or_error

MODEL = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "ort_gridsample": 1]>
    g (float[] value, int64[] levels, float[] locations, float[] weights) => (float[] Y) {
    unguarded, status = ort_gridsample.DeformableAttention
        <align_corners = 1, node = "a", num_threads = 0> (value, levels, locations, weights)
    Y = GatherND (unguarded, status) }""")

levels = LEVELS["planes"]
value, locations, weights = operands(levels)
feeds = {"value": value, "levels": levels, "locations": locations, "weights": weights}
session = onnxruntime.InferenceSession(MODEL.SerializeToString(), ogs.register())
expected = attend(value, levels, locations, weights, True, where="test", num_threads=1)
(Y,) = session.run(None, feeds)
error = result_or_error(session.run, None, feeds | {"weights": weights[:, :, :1]})
print(json.dumps([float(np.abs(Y - expected).max()), error]))
