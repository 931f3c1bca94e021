"""Let onnxruntime's quantization run models that onnxruntime itself cannot run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import onnxruntime

from ..custom_ops.plain_session import PLAIN_SESSION
from . import standard_files
from .session import InferenceSession

#: The package whose modules import onnxruntime's session by its name.
_QUANTIZATION = "onnxruntime.quantization"
_NAME = "InferenceSession"
_lock = threading.Lock()
#: The number of contexts that are active.
_depth = 0
#: Whether the class was this package's before the first of them (``ort-gridsample exec``).
_was_replaced = False


@contextmanager
def quantization_sessions() -> Iterator[None]:
    """Let ``onnxruntime.quantization`` use :class:`ort_gridsample.InferenceSession`.

    In this context, calibration and ``quant_pre_process`` run models that onnxruntime does not run.
    Such models can be quantized first and patched last. ``onnxruntime.InferenceSession`` is this
    package's class in the context, for the whole process.

    >>> with quantization_sessions():
    ...     onnxruntime.InferenceSession is InferenceSession
    True
    >>> onnxruntime.InferenceSession is InferenceSession
    False

    A file that ``quant_pre_process`` writes has standard operators, for which onnx infers types. If
    the opset of the model is too old for them, the file has this package's ops.
    :func:`ort_gridsample.patch_model` translates both to any target.

    ``onnxruntime.InferenceSession`` is onnxruntime's class again when the last context exits. A
    module that is imported inside of the context, and imports the class by its name, keeps this
    package's class.
    """
    global _depth, _was_replaced
    with _lock:
        if _depth == 0:
            _was_replaced = onnxruntime.InferenceSession is InferenceSession
        _depth += 1
    try:
        with _lock:
            _replace(PLAIN_SESSION, InferenceSession)
            standard_files.enabled = True
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                standard_files.enabled = False
                if not _was_replaced:
                    _replace(InferenceSession, PLAIN_SESSION)


def _replace(old: type, new: type) -> None:
    """Replace ``old`` by ``new`` in onnxruntime and its quantization modules that are imported."""
    modules = ["onnxruntime", _QUANTIZATION]
    modules += [name for name in list(sys.modules) if name.startswith(f"{_QUANTIZATION}.")]
    for name in modules:
        module = sys.modules.get(name)
        if getattr(module, _NAME, None) is old:
            setattr(module, _NAME, new)
