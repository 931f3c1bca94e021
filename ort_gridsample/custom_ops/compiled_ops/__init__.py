"""The operators as ops of machine code, which ONNX Runtime calls without Python: floats, integers and bool.

``c_api`` is the C interface, for Python, and ``requests`` for compiled code; ``sampling``, ``affine`` and
``program_grids`` are what runs, with the workers of the core; ``registry`` registers them with ONNX Runtime,
through the library that ``trampoline`` makes.
"""
