"""The operators as compiled ops, which ONNX Runtime calls without Python.

``catalog`` lists the ops. ``sampling``, ``affine``, ``program_grids`` and ``attention`` are
compiled by Numba: they check a call's inputs and run the workers of :mod:`ort_gridsample.kernels`.
``requests``, ``creation`` and ``sentences`` are what they have in common. ``registry`` registers
the ops with ONNX Runtime, through the library that ``trampoline`` makes. ``c_api`` describes ONNX
Runtime's C API for Python, and ``api_functions`` for compiled code.
"""
