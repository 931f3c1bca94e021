"""The inference session: where each node runs, what onnxruntime can run, and the registration of ops."""
