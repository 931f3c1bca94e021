"""Which ops a session's nodes run on: compiled ones where they can be had, unless something else is asked for."""

from __future__ import annotations

from typing import Literal, get_args

from ..core.wishes import Wish
from .compiled_ops import ops

ENVIRONMENT_VARIABLE = "ORT_GRIDSAMPLE_OPS"

OpsName = Literal["auto", "compiled", "python"]
OPS: tuple[str, ...] = get_args(OpsName)

_wish = Wish("the choice of ops", OPS, ENVIRONMENT_VARIABLE)


def set_ops(name: OpsName | None) -> None:
    """Choose the ops that the nodes of every :class:`ort_gridsample.InferenceSession` run on that is made from now on.

    ``"compiled"`` are the ops of machine code, of the extra ``ort-gridsample[jit]``, and what they cannot do, strings,
    is left to ``"python"``, the ops defined in Python, which run anywhere; ``"auto"`` is ``"compiled"`` where those can
    be had. None goes back to the environment variable ``ORT_GRIDSAMPLE_OPS``, or to ``"auto"``.

    Raises:
        ValueError: there are no such ops.
        ImportError: ``"compiled"`` was asked for and cannot be had; it says why.
    """
    if name is not None:
        _wish.check(name)
    if name == "compiled":
        _need()
    _wish.asked = name


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
    wanted = _wish.name()
    if wanted == "python":
        return "Python ops were asked for"
    if wanted == "compiled":
        _need()
    return ops.why_not()


def _need() -> None:
    reason = ops.why_not()
    if reason:
        raise ImportError(f"compiled ops cannot be had: {reason}")
