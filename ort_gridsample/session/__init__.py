"""The inference session: placement of nodes, probes of onnxruntime, and registration of ops."""

from ..versions import check_module

check_module("onnxruntime")
