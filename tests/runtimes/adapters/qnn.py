"""Run a model on onnxruntime's QNN provider alone: its wheel for Linux emulates the HTP."""

import functools

import onnxruntime
import onnxruntime_qnn

NAME = onnxruntime_qnn.get_ep_name()
onnxruntime.register_execution_provider_library(NAME, onnxruntime_qnn.get_library_path())
DEVICES = [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]
#: An architecture whose graphs the emulator finalizes; without it, those of float32 fail.
OPTIONS = {
    "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
    "htp_arch": "73",
    "soc_model": "43",
}


def load(path, inputs, outputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_provider_for_devices(DEVICES, OPTIONS)
    session = onnxruntime.InferenceSession(path, options)
    return functools.partial(session.run, outputs)
