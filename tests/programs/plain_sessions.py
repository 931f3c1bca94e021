"""Use plain sessions after registration; print which of their methods defer signals.

Also reload the modules that wrap these methods, and print whether they are wrapped only once.
"""

import importlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime

import ort_gridsample as ogs
from ort_gridsample.custom_ops import signals
from ort_gridsample.session import registration
from support.models import parsed

MODEL = parsed("g (float[1] X) => (float[1] Y) { Y = Relu (X) }").SerializeToString()


def deferred_methods() -> list[str]:
    """Return the names of the methods that defer signals, of three sessions.

    Only the last session has options that were registered.
    """
    original = signals.with_signals_deferred
    names = []

    def with_signals_deferred(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        names.append(function.__name__)
        return original(function, *args, **kwargs)

    signals.with_signals_deferred = with_signals_deferred
    for options in None, onnxruntime.SessionOptions(), ogs.register():
        session = onnxruntime.InferenceSession(MODEL, options)
        del session._sess_options_initial  # an internal attribute of onnxruntime
        session.run(None, {"X": np.ones(1, np.float32)})
    return names


def are_wrapped_once() -> list[bool]:
    """Return whether the original methods are unwrapped after three reloads."""
    names = ("__init__", "run")
    session_class = onnxruntime.InferenceSession
    originals = {name: signals.unwrapped(getattr(session_class, name)) for name in names}
    for _ in range(3):
        importlib.reload(signals)
        importlib.reload(registration).register()
    return [signals.unwrapped(getattr(session_class, name)) is originals[name] for name in names]


ogs.register()
print(json.dumps([deferred_methods(), are_wrapped_once()]))
