"""The operators as ops of machine code, which ONNX Runtime calls without Python: floats, integers and bool.

``c_api`` is the C interface, for Python, and ``calls`` for compiled code; ``sampling``, ``affine`` and
``affine_sampling`` are what runs, with the lanes of the core; ``ops`` makes them known to ONNX Runtime.
"""
