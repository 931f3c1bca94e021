"""The operators as ONNX Runtime custom ops: Python ops and compiled ops."""
