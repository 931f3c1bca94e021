"""Register Python ops of another package before and after ours; print what all sessions return.

Arguments: names of functions in support.paths. The output is JSON: the outputs of the ops that were
defined before and after, and for each session the results of a right and of a wrong grid.
"""

import json
import sys

import numpy as np
import onnxruntime
from onnxruntime_extensions import PyCustomOpDef, get_library_path, onnx_op

import ort_gridsample as ogs
from support import paths
from support.models import parsed
from support.programs import GRID, WRONG_GRID, X, open_sampling, shape_or_error


def define_doubling_op(name: str) -> None:
    @onnx_op(op_type=name, inputs=[PyCustomOpDef.dt_float], outputs=[PyCustomOpDef.dt_float])
    def double(x: np.ndarray) -> np.ndarray:
        return 2 * x


def new_options() -> onnxruntime.SessionOptions:
    """Return options with all ops that are defined; existing options lack newer ops."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(get_library_path())
    return options


def doubled_ones(name: str, options: onnxruntime.SessionOptions) -> list[float]:
    model = parsed(f"g (float[N] a) => (float[N] b) {{ b = ai.onnx.contrib.{name} (a) }}")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, {"a": np.ones(3, np.float32)})[0].tolist()


def main(openers: list[str]) -> None:
    define_doubling_op("Before")
    sessions_before = [open_sampling(getattr(paths, name)) for name in openers]
    doubled_before = doubled_ones("Before", new_options())
    for index in range(50):
        define_doubling_op(f"After{index}")
    doubled_after = doubled_ones("After49", ogs.register(new_options()))
    sessions_after = [open_sampling(getattr(paths, name)) for name in openers]
    results = [
        [name, shape_or_error(session, X, GRID), shape_or_error(session, X, WRONG_GRID)]
        for sessions in (sessions_before, sessions_after)
        for name, session in zip(openers, sessions, strict=True)
    ]
    print(json.dumps([doubled_before, doubled_after, results]))


main(sys.argv[1:])
