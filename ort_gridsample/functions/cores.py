"""The choice between two cores, NumPy and compiled. A core maps NumPy arrays to NumPy arrays.

A core is a module with three functions::

    grid_sample(X, grid, Y, plan, num_threads) -> None
    deformable_attention(value, levels, locations, weights, Y, plan, num_threads) -> None
    prepare(dtype, grid_dtype, mode) -> None

- ``X``: (N, C, D1, …, Dr), C-contiguous, of any type of :data:`ort_gridsample.spec.TYPES`, no axis of length 0;
- ``grid``: (N, P, r), floating point, normalized coordinates, innermost axis first;
- ``Y``: (N, C, P), C-contiguous, of X's type: every element is written;
- ``plan``: a :class:`~ort_gridsample.reference.plan.Plan`; ``num_threads``: at most so many threads.

It raises MemoryError where there is no room for scratch memory.

Of deformable attention, all in C order:

- ``value``: (B, S, H, D), floating point, the pixels of all levels of H heads;
- ``levels``: (L, 1 + r), int64, each level's points, P in all, and its lengths;
- ``locations``: (B, Q, H, P, r), floating point, in [0, 1], innermost axis first;
- ``weights``: (B, Q or 1, H, P), of value's type;
- ``Y``: (B, Q, H, D), of value's type: every element is written; no axis of any array has length 0;
- ``plan``: that of linear and zeros for value's type.

:func:`prepare` compiles ahead what the first call for an X and a grid of these types would otherwise wait for.
What a caller may hand in is checked before, in :mod:`ort_gridsample.functions.operators`.

Paddings (:mod:`~ort_gridsample.reference.coordinates`) and modes (:mod:`~ort_gridsample.reference.taps`) are rows of
tables. The NumPy core (:mod:`ort_gridsample.reference.sampler`) computes a table of the pixels that each position
reads, and adds up their values (:mod:`~ort_gridsample.reference.sums`). The compiled core
(:mod:`ort_gridsample.kernels.jit_core`) does the same with the compiled :mod:`~ort_gridsample.kernels.workers`, which
the compiled ops share.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any, Literal

from .. import settings, versions
from ..settings import CoreName

logger = logging.getLogger("ort_gridsample")

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
    if name == "jit" and not _numba_is_installed():
        raise _missing_numba()
    settings.CORE.set(name)
    _core = None


def get_core() -> Literal["numpy", "jit"]:
    """The core that the next call runs on, ``"numpy"`` or ``"jit"``; how it is chosen: :func:`set_core`."""
    if _core is not None:
        return "numpy" if _core.__name__.endswith(".sampler") else "jit"
    wanted = settings.CORE.get()
    return "jit" if wanted == "jit" or (wanted == "auto" and _numba_is_installed()) else "numpy"


def load_core() -> Any:
    """The module of the chosen core, imported; ImportError where it is ``"jit"`` by name, and Numba cannot be."""
    global _core
    if _core is not None:
        return _core
    needed = settings.CORE.get() == "jit"
    if needed and not _numba_is_installed():
        raise _missing_numba()
    try:
        if get_core() == "jit":
            need_numba()
            from ..kernels import jit_core

            _core = jit_core
    except Exception as error:  # Numba may refuse a newer NumPy with more than an ImportError
        if needed:
            raise ImportError(f"the core 'jit' needs Numba, which cannot be imported: {error}") from error
        logger.warning("Numba is installed but cannot be imported, the core 'numpy' is used: %s", error)
    if _core is None:
        from ..reference import sampler

        _core = sampler
    return _core


def need_numba() -> None:
    """Import Numba; ImportError: it is not there, or of an untried release. It may refuse NumPy with other errors."""
    complaint = versions.complaint("numba", importlib.import_module("numba").__version__)
    if complaint:
        raise ImportError(complaint)


def _missing_numba() -> ImportError:
    return ImportError(f"the core 'jit' needs Numba: {versions.missing('numba', 'pip install numba')}")


def _numba_is_installed() -> bool:
    return importlib.util.find_spec("numba") is not None
