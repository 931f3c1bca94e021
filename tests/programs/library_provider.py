"""Run models on the execution provider of a library, without Numba, onnx and this package.

Arguments: a folder of models (NAME.onnx) with their feeds (NAME.npz), and the library. The first
output of each model is written to NAME.npy. Print the providers of each model's nodes, and the
shape of an output of a session whose library was unregistered.
"""

# ruff: noqa: E402 (modules are hidden before the imports)

import sys

for name in ("numba", "onnx", "ort_gridsample"):
    sys.modules[name] = None  # type: ignore[assignment]

from pathlib import Path

import numpy as np
import onnxruntime

folder, library = sys.argv[1:]
onnxruntime.register_execution_provider_library("library", library)
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
devices = [
    device
    for device in onnxruntime.get_ep_devices()
    if device.ep_name == "GridSampleExecutionProvider"
]
options.add_provider_for_devices(devices, {})
for path in sorted(Path(folder).glob("*.onnx")):
    session = onnxruntime.InferenceSession(path, options)
    feeds = dict(np.load(path.with_suffix(".npz")))
    np.save(path.with_suffix(".npy"), session.run(None, feeds)[0])
    print(*sorted({part.ep_name for part in session.get_provider_graph_assignment_info()}))
onnxruntime.unregister_execution_provider_library("library")
print(session.run(None, feeds)[0].shape)
