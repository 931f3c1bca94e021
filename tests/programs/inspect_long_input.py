"""Inspect a model with an input of 600 million numbers; print X's types and the memory in bytes."""

import resource
import sys

from onnx import parser

import ort_gridsample as ogs

MODEL = """<ir_version: 9, opset_import: ["": 20]>
    g (float[600000000] long, float[1,1,4,4] X, float[1,2,2,2] G, int64[1] i)
    => (float[1,1,2,2] Y, float[M] Z) {
        Y = GridSample (X, G)
        row = Gather (long, i)
        Z = Add (long, row) }"""


def peak_bytes() -> int:
    """Return the largest resident size of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


model = parser.parse_model(MODEL)
before = peak_bytes()
(record,) = ogs.inspect_model(model)
print(record.types["X"])
print(peak_bytes() - before)
