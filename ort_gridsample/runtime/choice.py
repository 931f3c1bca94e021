"""Which ops a session's nodes run on: compiled ones where they can be had, unless something else is asked for."""

from __future__ import annotations

import os
from typing import Literal, get_args

from .compiled_ops import ops

ENVIRONMENT_VARIABLE = "ORT_GRIDSAMPLE_OPS"

OpsName = Literal["auto", "compiled", "python"]
OPS: tuple[str, ...] = get_args(OpsName)

_asked: str | None = None


def set_ops(name: OpsName | None) -> None:
    """Choose the ops that the nodes of every :class:`ort_gridsample.InferenceSession` run on that is made from now on.

    ``"compiled"`` are the ops of machine code, of the extra ``ort-gridsample[jit]``, and what they cannot do, strings,
    is left to ``"python"``, the ops defined in Python, which run anywhere; ``"auto"`` is ``"compiled"`` where those can
    be had. None goes back to the environment variable ``ORT_GRIDSAMPLE_OPS``, or to ``"auto"``.

    Raises:
        ValueError: there are no such ops.
        ImportError: ``"compiled"`` was asked for and cannot be had; it says why.
    """
    global _asked
    if name is not None:
        _check(name, "the ops")
    if name == "compiled":
        _need()
    _asked = name


def get_ops() -> Literal["compiled", "python"]:
    """The ops that the next session's nodes run on, if they can; how they are chosen: :func:`set_ops`.

    Raises:
        ImportError: the environment variable asks for ``"compiled"``, and they cannot be had.
    """
    return "python" if why_not() else "compiled"


def why_not() -> str:
    """Why the next session has no compiled ops; empty where it has.

    Raises:
        ImportError: as :func:`get_ops`.
    """
    wanted = _wanted()
    if wanted == "python":
        return "Python ops were asked for"
    if wanted == "compiled":
        _need()
    return ops.why_not()


def _wanted() -> str:
    if _asked is not None:
        return _asked
    name = os.environ.get(ENVIRONMENT_VARIABLE) or "auto"
    _check(name, f"the environment variable {ENVIRONMENT_VARIABLE}")
    return name


def _need() -> None:
    reason = ops.why_not()
    if reason:
        raise ImportError(f"compiled ops cannot be had: {reason}")


def _check(name: str, what: str) -> None:
    if name not in OPS:
        raise ValueError(f"{what} are {name!r}, expected one of {', '.join(map(repr, OPS))}")
