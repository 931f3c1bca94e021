"""Run an unmodified model on the provider of the wheel, without Numba, onnx and this package.

Arguments: the model, its feeds (.npz), and the file for the first output (.npy). Print the
providers of the model's nodes.
"""

# ruff: noqa: E402 (modules are hidden before the imports)

import sys

for name in ("numba", "onnx", "ort_gridsample"):
    sys.modules[name] = None  # type: ignore[assignment]

import numpy as np
import onnxruntime
import onnxruntime_ep_gridsample as ep

model, feeds, output = sys.argv[1:]
(provider,) = ep.get_ep_names()
onnxruntime.register_execution_provider_library(provider, ep.get_library_path())
devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
options.add_provider_for_devices(devices, {})
session = onnxruntime.InferenceSession(model, options)
np.save(output, session.run(None, dict(np.load(feeds)))[0])
print(*sorted({part.ep_name for part in session.get_provider_graph_assignment_info()}))
