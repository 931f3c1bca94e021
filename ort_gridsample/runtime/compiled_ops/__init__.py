"""The operators as ops of machine code, which ONNX Runtime calls without Python: floats, integers and bool.

``c_api`` is the C interface, ``pointers`` what Numba needs to speak it; ``grid_sample`` and ``affine_grid`` are what
runs, made of functions that are compiled a type at a time; ``ops`` makes them known to ONNX Runtime.
"""
