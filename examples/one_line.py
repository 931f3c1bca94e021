"""Run a model with nodes patched in memory.

Usage: python examples/one_line.py MODEL.onnx NAME=ARRAY.npy …
"""

import sys

import numpy as np

import ort_gridsample as ogs

if len(sys.argv) < 2:
    sys.exit(__doc__)
path, *inputs = sys.argv[1:]
session = ogs.InferenceSession(path)  # replaces onnxruntime.InferenceSession
feeds = {name: np.load(file) for name, _, file in (pair.partition("=") for pair in inputs)}
for output, array in zip(session.get_outputs(), session.run(None, feeds), strict=True):
    print(output.name, array.dtype, array.shape)
