"""Use the package without onnxruntime-extensions and Numba, in the current folder.

Prints JSON: the shapes that the function and a session return, what runs the session's node, the
exceptions where ops are needed, and the exit status and output of each command.
"""

import contextlib
import io
import json

import numpy as np
import onnx

import ort_gridsample as ogs
from ort_gridsample.cli import main as cli
from ort_gridsample.dialects.registry import target_names
from support.cases import Attributes
from support.models import grid_sample_model

MODEL = grid_sample_model("float32", "float32", 2, [Attributes()])
X = np.ones((1, 2, 4, 4), np.float32)
GRID = np.zeros((1, 3, 3, 2), np.float32)
COMMANDS = {
    "inspect": ["inspect", "model.onnx"],
    "patch to primitives": ["patch", "model.onnx", "lowered.onnx", "--target", "primitives"],
    "patch": ["patch", "model.onnx", "patched.onnx"],
    "run model": ["run", "model.onnx", "--random"],
    "run lowered": ["run", "lowered.onnx", "--random"],
    "run patched": ["run", "patched.onnx", "--random"],
}


def import_error(function: object, *args: object, **kwargs: object) -> list[str | None]:
    """Return the module that an ImportError names, and its message."""
    try:
        function(*args, **kwargs)
    except ImportError as error:
        return [error.name, str(error)]
    return [None, "no exception"]


def run_command(words: list[str]) -> list[object]:
    """Return the exit status of a command, and what it writes to stderr."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        status = cli(words)
    return [status, errors.getvalue().strip()]


for target in target_names():
    for nodes in "all", "unsupported":
        ogs.patch_model(MODEL, target=target, nodes=nodes)
(placement,) = ogs.InferenceSession(MODEL).placements
lowered = ogs.patch_model(MODEL, target="primitives")
onnx.save(MODEL, "model.onnx")
results = {
    "function": ogs.grid_sample(X, GRID).shape,
    "records": len(ogs.inspect_model(MODEL)),
    "runs on": placement.runs_on,
    "session": ogs.InferenceSession(lowered).run(None, {"X": X, "grid": GRID})[0].shape,
    "register": import_error(ogs.register),
    "session of all nodes": import_error(ogs.InferenceSession, MODEL, nodes="all"),
    "commands": {name: run_command(words) for name, words in COMMANDS.items()},
}
print(json.dumps(results))
