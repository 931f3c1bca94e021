"""onnxruntime on the CPU."""

import os

import onnxruntime


def load(path, inputs, outputs):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", 0))  # 0: the default
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(outputs, feed)
