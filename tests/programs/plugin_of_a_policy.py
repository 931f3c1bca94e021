"""Open a session whose options prefer the CPU's devices, with the plugin that refuses nodes.

The process has no other plugin, among which the policy would choose. Prints where the node is
placed, and the provider that runs it.
"""

import onnxruntime

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
from support.refusing_plugin import refusing_plugin

onnxruntime.register_execution_provider_library("a library of a test", str(refusing_plugin()))
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
options.set_provider_selection_policy(onnxruntime.OrtExecutionProviderDevicePolicy.PREFER_CPU)
model = grid_sample_model("float32", "float32", 2, [Attributes("linear")])
session = ogs.InferenceSession(model, options)
print(*(placement.runs_on for placement in session.placements))
print(*{part.ep_name for part in session.get_provider_graph_assignment_info()})
