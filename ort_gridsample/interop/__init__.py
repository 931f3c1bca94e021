"""The operators for other libraries: onnx's evaluator, PyTorch's exporters and OpenVINO.

Each library is imported by the first call that needs it.
"""
