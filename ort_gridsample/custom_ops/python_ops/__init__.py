"""The operators as Python ops, through onnxruntime-extensions, on any core."""
