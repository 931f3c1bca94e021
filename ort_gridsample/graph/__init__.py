"""ONNX graphs: scopes, uses and definitions, files and weights. Nothing here depends on the sampling operators."""
