"""onnxruntime on the CPU."""

import onnxruntime


def load(path, inputs, outputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(outputs, feed)
