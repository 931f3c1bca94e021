"""tinygrad's ONNX runner, on the CPU."""

import os

os.environ.setdefault("CPU", "1")

from tinygrad import Tensor
from tinygrad.nn.onnx import OnnxRunner


def load(path, inputs, outputs):
    runner = OnnxRunner(path)

    def run(feed):
        answer = runner({name: Tensor(value) for name, value in feed.items()})
        return [answer[name].numpy() for name in outputs]

    return run
