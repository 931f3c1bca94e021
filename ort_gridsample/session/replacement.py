"""The class that replaces ``onnxruntime.InferenceSession`` in a program of ``ort-gridsample exec``.

startup/sitecustomize.py calls :func:`session_class` when the program first reads onnxruntime's.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from ..errors import GridSampleError
from ..functions.validation import format_choices
from . import report

#: An option of the command. ``session``: the class is this package's. ``provider``: the class is
#: onnxruntime's, and its sessions use the execution provider. ``report``: the placements of all
#: sessions are printed at the end of the process.
Option: TypeAlias = Literal["session", "provider", "report"]


def session_class(options: str) -> type[Any]:
    """Return the class for the ``options`` in the environment variable.

    Raises:
        GridSampleError: an option is unknown.
    """
    words = options.split(",")
    if not set(words) <= set(get_args(Option)):
        expected = format_choices(get_args(Option))
        raise GridSampleError("environment", report.VARIABLE, repr(options), expected)
    if "report" in words:
        report.enable()
    if "provider" in words:
        from .provider_session import ProviderSession

        return ProviderSession
    from .session import InferenceSession

    return InferenceSession
