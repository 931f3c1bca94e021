"""Run a model in MNN.

Its converter is called directly: the script around it reports to MNN's makers over the network.
"""

import os

import _tools
import MNN
import numpy as np

TYPES = {"float32": MNN.expr.float, "int32": MNN.expr.int, "int64": MNN.expr.int64}


def variable(value):
    placeholder = MNN.expr.placeholder(value.shape, MNN.expr.NCHW, TYPES[value.dtype.name])
    placeholder.write(np.ascontiguousarray(value))
    return placeholder


def load(path, inputs, outputs):
    converted = f"{path}.mnn"
    _tools.mnnconvert(
        ["mnnconvert", "-f", "ONNX", "--modelFile", path, "--MNNModel", converted, "--bizCode", "x"]
    )
    if not os.path.exists(converted):
        raise RuntimeError("mnnconvert wrote nothing")
    module = MNN.nn.load_module_from_file(converted, list(inputs), outputs)

    def run(feed):
        answers = module.forward([variable(value) for value in feed.values()])
        return [np.array(MNN.expr.convert(answer, MNN.expr.NCHW).read()) for answer in answers]

    return run
