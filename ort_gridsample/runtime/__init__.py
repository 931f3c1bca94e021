"""What ONNX Runtime calls, what it is asked, and the session."""
