"""The operators as Python-defined ops, through onnxruntime-extensions: run anywhere, on any core."""
