"""A probe process in which all providers run everything right, on the CPU, and GridSamples slowly.

It stands in for ``ort_gridsample/session/provider_script.py``.
"""

import os
import time
from typing import Any

import onnx
import onnxruntime

from ort_gridsample.session import provider_script

PlainSession = vars(onnxruntime)["InferenceSession"]


class SlowSession(PlainSession):  # type: ignore[misc]
    """A session on the CPU. A run of a model with a GridSample takes 20 ms more."""

    def __init__(self, model: bytes, *_: Any) -> None:
        super().__init__(model, providers=["CPUExecutionProvider"])
        nodes = onnx.load_model_from_string(model).graph.node
        self._is_slow = any(node.op_type == "GridSample" for node in nodes)

    def run(self, *arguments: Any) -> Any:
        if self._is_slow:
            time.sleep(0.02)
        return super().run(*arguments)


onnxruntime.InferenceSession = SlowSession
if "SLOW_PROVIDER_STARTS" in os.environ:
    with open(os.environ["SLOW_PROVIDER_STARTS"], "a", encoding="utf-8") as log:
        log.write("start\n")
provider_script.main()
