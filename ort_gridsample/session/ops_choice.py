"""The ops that sessions use for the nodes that the ops support."""

from __future__ import annotations

from typing import Literal

from .. import settings
from ..custom_ops.compiled_ops import registry
from ..settings import OpsName


def set_ops(name: OpsName | None) -> None:
    """Choose the ops of sessions that are created afterwards.

    ``"auto"`` selects compiled ops where they are available. None restores the environment variable
    ``ORT_GRIDSAMPLE_OPS``, or ``"auto"``.

    Args:
        name: ``"compiled"`` for ops compiled to machine code, which need the extra
            ``ort-gridsample[jit]`` or a library; nodes that they do not support, such as those of
            strings, run on Python ops. ``"python"`` for ops defined in Python, which run anywhere.
            ``"auto"`` or None as described above.

    Raises:
        GridSampleError: there are no such ops.
        ImportError: ``"compiled"`` was given and compiled ops are not available. The error has the
            reason.
    """
    if name == "compiled":
        compiled_ops_unavailable_reason(name)
    settings.OPS.set(name)


def get_ops() -> Literal["compiled", "python"]:
    """Return the ops that new sessions use for the nodes that these ops support.

    Raises:
        GridSampleError: the environment variable is not one of the names.
        ImportError: the environment variable requires ``"compiled"``, and compiled ops are not
            available.
    """
    return "python" if compiled_ops_unavailable_reason() else "compiled"


def compiled_ops_unavailable_reason(requested: OpsName | None = None) -> str:
    """Return why a session has no compiled ops, or "" if it has.

    Args:
        requested: the ops to use, or None for those of the settings.

    Raises:
        GridSampleError: the environment variable is not one of the names.
        ImportError: compiled ops are required and not available.
    """
    ops = requested or settings.OPS.get()
    if ops == "python":
        return "Python ops were asked for"
    reason = registry.unavailable_reason()
    if reason and ops == "compiled":
        raise ImportError(f"compiled ops are unavailable: {reason}")
    return reason
