"""ONNX graphs: scopes, uses and definitions, files and weights. Independent of operators."""
