"""What this package takes of onnxruntime-extensions, without what importing that leaves behind.

It sets an environment variable that makes protobuf, in every process started from then on, several times slower.
"""

from __future__ import annotations

import os

_PROTOBUF = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
_before = os.environ.get(_PROTOBUF)

from onnxruntime_extensions import PyCustomOpDef, get_library_path, onnx_op  # noqa: E402

if _before is None:
    os.environ.pop(_PROTOBUF, None)
else:
    os.environ[_PROTOBUF] = _before

__all__ = ["PyCustomOpDef", "get_library_path", "onnx_op"]
