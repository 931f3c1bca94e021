"""A replacement of ml_dtypes, which onnx imports and PyPI does not have for Pyodide.

It has the names and the sizes of the types, which is what onnx needs to read models. An array of
such a type can be stored and copied. Arithmetic and conversions raise an error, so that no value
can be wrong. page.py reads constants of bfloat16 as float32.
"""

import numpy as np

_SIZES = {
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float6_e2m3fn": 1,
    "float6_e3m2fn": 1,
    "float4_e2m1fn": 1,
    "int4": 1,
    "uint4": 1,
    "int2": 1,
    "uint2": 1,
}

for _name, _size in _SIZES.items():
    globals()[_name] = np.dtype(f"V{_size}")
