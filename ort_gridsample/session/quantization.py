"""Let onnxruntime's quantization run models that onnxruntime itself cannot run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import onnxruntime

from .session import InferenceSession

#: The package whose modules take onnxruntime's session by its name when they are imported.
_QUANTIZATION = "onnxruntime.quantization"
_NAME = "InferenceSession"
_plain_session = onnxruntime.InferenceSession
_lock = threading.Lock()
#: How many ``with`` blocks are entered.
_depth = 0


@contextmanager
def quantization_sessions() -> Iterator[None]:
    """Let ``onnxruntime.quantization`` make its sessions with :class:`ort_gridsample.InferenceSession`.

    Calibration and ``quant_pre_process`` run the model, which onnxruntime cannot where it has no kernel for a sampling
    node. Inside of this context they can, so that such a model is quantized first, and patched last. Pass the nodes
    that :func:`ort_gridsample.coordinate_nodes` lists as ``nodes_to_exclude``. A file that ``quant_pre_process`` writes
    has this package's ops; :func:`ort_gridsample.patch_model` translates these to any target.

    Inside of the context ``onnxruntime.InferenceSession`` is this package's class for the whole process, in every
    thread. It is onnxruntime's again when the last context is left. A module that is imported inside of the context,
    and takes the class by its name, keeps this package's.

    >>> with quantization_sessions():
    ...     onnxruntime.InferenceSession is InferenceSession
    True
    >>> onnxruntime.InferenceSession is InferenceSession
    False
    """
    global _depth
    with _lock:
        _depth += 1
        _replace(_plain_session, InferenceSession)
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _replace(InferenceSession, _plain_session)


def _replace(old: type, new: type) -> None:
    """Let onnxruntime, and its modules of quantization that are imported, have ``new`` where they have ``old``."""
    modules = [name for name in sys.modules if name == _QUANTIZATION or name.startswith(f"{_QUANTIZATION}.")]
    for name in ("onnxruntime", *modules):
        module = sys.modules[name]
        if getattr(module, _NAME, None) is old:
            setattr(module, _NAME, new)
