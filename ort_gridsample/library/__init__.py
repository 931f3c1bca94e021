"""Build shared libraries of compiled ops for programs in other languages."""

from ..versions import check_module

check_module("onnxruntime")
