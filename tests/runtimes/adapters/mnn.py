"""MNN, after its converter."""

import os
import subprocess
import sys

import MNN
import numpy as np


def load(path, inputs, outputs):
    converted = f"{path}.mnn"
    program = os.path.join(os.path.dirname(sys.executable), "mnnconvert")
    command = [program, "-f", "ONNX", "--modelFile", path, "--MNNModel", converted, "--bizCode", "x"]
    done = subprocess.run(command, capture_output=True, text=True)
    if not os.path.exists(converted) or "Converted Success" not in done.stdout:
        raise RuntimeError("mnnconvert: " + " ".join((done.stdout + done.stderr).split("\n")[-6:]))
    module = MNN.nn.load_module_from_file(converted, list(inputs), outputs)

    def variable(value):
        placeholder = MNN.expr.placeholder(value.shape, MNN.expr.NCHW, types[value.dtype.name])
        placeholder.write(np.ascontiguousarray(value))
        return placeholder

    types = {"float32": MNN.expr.float, "int32": MNN.expr.int, "int64": MNN.expr.int64}

    def run(feed):
        answers = module.forward([variable(value) for value in feed.values()])
        return [np.array(MNN.expr.convert(answer, MNN.expr.NCHW).read()) for answer in answers]

    return run
