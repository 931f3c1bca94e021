"""Options that know this package's ops: the caller's come in, and the same go out."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any
from weakref import ref

import onnxruntime
from onnx import helper

from ..errors import GridSampleError
from ..model.dialects import DOMAIN, EXTENSIONS_DOMAIN, VERSION
from . import interrupts
from .compiled_ops import ops as compiled_ops
from .compiled_ops.catalog import NAMES
from .native import one_node
from .options import loaded

# Before anyone's options: they know the ops that are there by then.
with suppress(ImportError):  # who needs the ops is told
    from .python_ops import ops  # noqa: F401
with suppress(GridSampleError):  # who needs them is told, too
    compiled_ops.add()

#: The options that went through here, by their identity. Not a WeakSet: it learns of an end in a callback, and there
#: Python loses the exception of a signal's handler.
_registered: dict[int, ref[onnxruntime.SessionOptions]] = {}


def register(session_options: onnxruntime.SessionOptions | None = None) -> onnxruntime.SessionOptions:
    """Let sessions made with ``session_options`` run patched models.

    >>> onnxruntime.InferenceSession("patched.onnx", register())    # doctest: +SKIP

    Any number of calls on the same options do the same as one. While such a session runs on the main thread, Python's
    signal handlers (Ctrl-C's) wait for the end of the run.

    Args:
        session_options: new ones where None.

    Returns:
        The same options.

    Raises:
        ImportError: there is no onnxruntime-extensions, which the ops need that are no library's.
        GridSampleError: there is a library, which is of no use.
    """
    if session_options is None:
        return register_anew(onnxruntime.SessionOptions())
    if _is_registered(session_options):
        return session_options
    try:
        loaded(session_options, _probe())
    except Exception:
        return register_anew(session_options)
    return register_anew(session_options, known=True)  # to register onnxruntime-extensions again would break them


def register_anew(options: onnxruntime.SessionOptions, known: bool = False) -> onnxruntime.SessionOptions:
    """As :func:`register`, of options that nobody registered onnxruntime-extensions with, unless it is ``known``."""
    compiled_ops.know_api()
    if not known:
        path: Any = compiled_ops.alone()  # the library of the compiled ops, or onnxruntime-extensions'
        if path is None:
            from .python_ops.ops import library_path as path
        interrupts.undisturbed(options.register_custom_ops_library, str(path))  # asks every compiled op for its name
    for key in [key for key, each in list(_registered.items()) if each() is None]:
        _registered.pop(key, None)
    _registered[id(options)] = ref(options)
    interrupts.defer_in_sessions(_is_registered)
    return options


def _is_registered(options: onnxruntime.SessionOptions | None) -> bool:
    found = _registered.get(id(options))
    return found is not None and found() is options


@cache
def _probe() -> bytes:
    """A model that onnxruntime can read where it knows the ops."""
    if compiled_ops.alone() is None:
        node = helper.make_node("AffineGrid", [], ["status"], domain=DOMAIN, align_corners=0, node="", num_threads=0)
    else:
        node = helper.make_node(NAMES["AffineGrid"], [], [], domain=EXTENSIONS_DOMAIN)
    types = ("theta", "float32"), ("size", "int64")
    return one_node(node, [("", 20), (node.domain, VERSION)], types, [None, None]).SerializeToString()
