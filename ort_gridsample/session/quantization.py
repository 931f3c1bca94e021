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

    Calibration and ``quant_pre_process`` run the model. onnxruntime cannot run a model if it has no
    kernel for a sampling node. Inside of this context it can, so that such a model is quantized
    first and patched last. Pass the nodes that :func:`ort_gridsample.coordinate_nodes` returns as
    ``nodes_to_exclude``. A file that ``quant_pre_process`` writes has standard operators, for which
    onnx infers types. If the opset of the model is too old for them, the file has this package's
    ops. :func:`ort_gridsample.patch_model` translates both to any target.

    Inside of the context ``onnxruntime.InferenceSession`` is this package's class, in every thread
    of the process. It is onnxruntime's class again when the last context exits. A module that is
    imported inside of the context, and imports the class by its name, keeps this package's class.

    >>> with quantization_sessions():
    ...     onnxruntime.InferenceSession is InferenceSession
    True
    >>> onnxruntime.InferenceSession is InferenceSession
    False
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
