"""Which core does the work: the compiled one where Numba is installed, unless something else is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import Any, Literal, TypeAlias, get_args

from .. import versions
from .wishes import Wish

ENVIRONMENT_VARIABLE = "ORT_GRIDSAMPLE_CORE"

CoreName: TypeAlias = Literal["auto", "numpy", "jit"]
CORES: tuple[str, ...] = get_args(CoreName)

logger = logging.getLogger("ort_gridsample")

_wish = Wish("the core", CORES, ENVIRONMENT_VARIABLE)
_core: Any = None


def set_core(name: CoreName | None) -> None:
    """Choose the core that :func:`ort_gridsample.grid_sample`, and with it every session, runs on from now on.

    ``"jit"`` is the compiled core, which needs Numba; ``"numpy"`` needs nothing but NumPy;
    ``"auto"`` is ``"jit"`` where Numba is installed. None goes back to the environment variable
    ``ORT_GRIDSAMPLE_CORE``, or to ``"auto"``. Numba itself is imported by the first call that needs it.

    Raises:
        ValueError: there is no such core.
        ImportError: ``"jit"`` was asked for and Numba is not installed.
    """
    global _core
    if name is not None:
        _wish.check(name)
    if name == "jit" and not _numba_is_installed():
        raise ImportError(_MISSING)
    _wish.asked, _core = name, None


def get_core() -> Literal["numpy", "jit"]:
    """The core that the next call runs on, ``"numpy"`` or ``"jit"``; how it is chosen: :func:`set_core`."""
    if _core is not None:
        return "numpy" if _core.__name__.endswith(".numpy_core") else "jit"
    asked = _wish.name()
    return "jit" if asked == "jit" or (asked == "auto" and _numba_is_installed()) else "numpy"


def core() -> Any:
    """The module of the chosen core, imported; its contract is in :mod:`ort_gridsample.core`.

    Raises:
        ImportError: ``"jit"`` was asked for and Numba is not installed or cannot be imported.
    """
    global _core
    if _core is None:
        _core = _import(_wish.name())
    return _core


_MISSING = "the core 'jit' needs Numba: pip install numba"


def _import(asked: str) -> Any:
    if asked == "jit" and not _numba_is_installed():
        raise ImportError(_MISSING)
    if asked == "jit" or (asked == "auto" and _numba_is_installed()):
        try:
            need_numba()
            return importlib.import_module(".jit_core", __package__)
        except Exception as error:  # Numba may refuse a newer NumPy with more than an ImportError
            if asked == "jit":
                raise ImportError(f"the core 'jit' needs Numba, which cannot be imported: {error}") from error
            logger.warning("Numba is installed but cannot be imported, the core 'numpy' is used: %s", error)
    return importlib.import_module(".numpy_core", __package__)


def need_numba() -> None:
    """Import Numba.

    Raises:
        ImportError: it is not installed, or too old. A newer one than there was may refuse NumPy with other errors.
    """
    complaint = versions.complaint("numba", importlib.import_module("numba").__version__)
    if complaint:
        raise ImportError(complaint)


def _numba_is_installed() -> bool:
    return importlib.util.find_spec("numba") is not None
