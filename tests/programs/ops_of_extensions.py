"""Run a model with an op of onnxruntime-extensions and a GridSample; print each session's outputs.

Arguments: which package is imported first, and the target of ``ogs.patch_model``, or ``session``
to open only a session of this package whose options no library was registered with. Prints a JSON
list with the strings, and whether Y is right, of each session.
"""

import importlib
import json
import sys

importlib.import_module(sys.argv[1])

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
from onnxruntime_extensions import get_library_path  # noqa: E402

import ort_gridsample as ogs  # noqa: E402
from support.models import parsed  # noqa: E402
from support.programs import GRID, X  # noqa: E402

MODEL = parsed("""g (string[N] a, float[1,2,64,64] X, float[1,64,64,2] grid)
    => (string[N] b, float[1,2,64,64] Y) {
    b = ai.onnx.contrib.StringUpper (a)
    Y = GridSample (X, grid) }""")


def outputs(session: onnxruntime.InferenceSession) -> list[object]:
    """Return the strings of a session's output, and whether Y is right."""
    b, Y = session.run(None, {"a": np.array(["ab"], object), "X": X, "grid": GRID})
    return [b.tolist(), bool(np.array_equal(Y, ogs.grid_sample(X, GRID)))]


def registered_options(are_extensions_first: bool) -> onnxruntime.SessionOptions:
    """Return options with the ops of both packages, registered in one order or the other."""
    options = onnxruntime.SessionOptions()
    if are_extensions_first:
        options.register_custom_ops_library(get_library_path())
        ogs.register(options)
    else:
        ogs.register(options)
        options.register_custom_ops_library(get_library_path())
    return options


def patched_outputs(target: str) -> list[list[object]]:
    patched = ogs.patch_model(MODEL, target=target).SerializeToString()
    results = []
    for are_extensions_first in (True, False):
        options = registered_options(are_extensions_first)
        for _ in range(2):
            results.append(outputs(onnxruntime.InferenceSession(patched, options)))
        options = registered_options(are_extensions_first)
        results.append(outputs(ogs.InferenceSession(MODEL, options, nodes="all")))
        options = registered_options(are_extensions_first)
        results.append(outputs(ogs.InferenceSession(patched, options)))
    return results


if sys.argv[2] == "session":
    print(json.dumps([outputs(ogs.InferenceSession(MODEL, nodes="all"))]))
else:
    print(json.dumps(patched_outputs(sys.argv[2])))
