"""onnx2torch: a PyTorch module made of an ONNX model."""

import sys
import types

try:
    import torchvision  # noqa: F401
except (
    ImportError,
    RuntimeError,
):  # built for another PyTorch; only NonMaxSuppression and RoiAlign need it
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    sys.modules["torchvision"] = types.ModuleType("torchvision")
    sys.modules["torchvision.ops"] = types.ModuleType("torchvision.ops")
    sys.modules["torchvision.ops"].roi_align = None

import onnx2torch
import torch


def load(path, inputs, outputs):
    module = onnx2torch.convert(path).eval()

    def run(feed):
        with torch.no_grad():
            answer = module(*map(torch.from_numpy, feed.values()))
        return [
            value.numpy() for value in (answer if isinstance(answer, (tuple, list)) else [answer])
        ]

    return run
