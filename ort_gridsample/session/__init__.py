"""The inference session: placement of nodes, probes of onnxruntime, and registration of ops."""
