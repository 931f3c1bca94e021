"""The choice between the two cores: NumPy and compiled.

A core is a module with the names of :class:`Core`. The functions of this folder check all
arguments before they call a core.

Both cores use the tables of paddings (:mod:`~ort_gridsample.reference.coordinates`) and modes
(:mod:`~ort_gridsample.reference.taps`). The NumPy core (:mod:`ort_gridsample.reference.sampler`)
computes a table of the pixels that each position reads, and adds up their values
(:mod:`~ort_gridsample.reference.sums`). The compiled core (:mod:`ort_gridsample.kernels.jit_core`)
does the same with the compiled :mod:`~ort_gridsample.kernels.workers`, which the compiled ops
share.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Literal, Protocol, SupportsIndex

import numpy as np

from .. import settings, versions
from ..kernels.library_kernels import library_kernels
from ..reference.arrays import Array, Floats, Indices
from ..reference.plan import Plan
from ..settings import CoreName

logger = logging.getLogger("ort_gridsample")


class Core(Protocol):
    """The module of a core."""

    @property
    def NAME(self) -> Literal["numpy", "jit"]:  # noqa: N802 -- a constant of a module
        """The name of the core, as :func:`set_core` takes it."""

    def grid_sample(
        self, X: Array, grid: Floats, Y: Array, plan: Plan, num_threads: SupportsIndex | None
    ) -> None:
        """Sample ``X`` at ``grid`` into ``Y``.

        Args:
            X: (N, C, D1, …, Dr), C-contiguous, of any type of :data:`ort_gridsample.spec.TYPES`. No
                axis has length 0.
            grid: (N, …, r), floating point. Normalized coordinates, innermost axis first. The axes
                between are those of the positions.
            Y: (N, C, …), C-contiguous, of X's type, with the axes of the positions. Every element
                is written.
            plan: the mode and the padding, for X's type.
            num_threads: the maximum number of threads; None selects the default. A small call
                takes one, and does not read the default.

        Raises:
            MemoryError: scratch memory cannot be allocated.
        """

    def deformable_attention(
        self,
        value: Array,
        levels: Indices,
        locations: Floats,
        weights: Floats,
        Y: Array,
        plan: Plan,
        num_threads: int,
    ) -> None:
        """Add up weighted samples of ``value`` into ``Y``.

        All arrays but Y are in C order. No axis of any array has length 0.

        Args:
            value: (B, S, H, D), floating point. The pixels of all levels, for H heads.
            levels: (L, 1 + r), int64. The number of points of each level, P in all, and its
                lengths.
            locations: (B, Q, H, P, r), floating point, in [0, 1], innermost axis first.
            weights: (B, Q or 1, H, P), of value's type.
            Y: (B, Q, H, D), of value's type. It is in C order, or a view of an array (B, H, D, Q)
                in C order. Every element is written.
            plan: the plan of linear and zeros for value's type.
            num_threads: the maximum number of threads.

        Raises:
            MemoryError: scratch memory cannot be allocated.
        """

    def prepare(
        self, dtype: np.dtype[np.generic], grid_dtype: np.dtype[np.generic], mode: str
    ) -> None:
        """Compile what the first call with an X and a grid of these types would compile."""


#: The core that was loaded; None before the first call and after a new choice.
_core: Core | None = None


def set_core(name: CoreName | None) -> None:
    """Choose the code that samples in functions and Python ops, which is called a core.

    ``"auto"`` is ``"jit"`` if Numba is installed or there is a library of compiled ops, else
    ``"numpy"``. None restores the environment variable ``ORT_GRIDSAMPLE_CORE``, or ``"auto"``.

    >>> set_core("numpy")
    >>> get_core()
    'numpy'
    >>> set_core(None)

    Args:
        name: ``"jit"`` is the compiled core, which needs Numba or a library of compiled ops. Of a
            library, it uses the kernels that the library has; without Numba, all else runs on
            NumPy. ``"numpy"`` needs only NumPy. ``"auto"`` or None as described above. Numba is
            imported by the first call that needs it.

    Raises:
        GridSampleError: there is no such core.
        ImportError: ``name`` is ``"jit"``, Numba is not installed, and there is no library.
    """
    global _core
    if name == "jit" and not _has_kernels():
        raise _missing_numba()
    settings.CORE.set(name)
    _core = None


def get_core() -> Literal["numpy", "jit"]:
    """Return the name of the core that the next call uses.

    >>> get_core() in ("numpy", "jit")
    True

    With ``"auto"`` it imports Numba, if Numba is installed, to find out whether it can be used.

    Returns:
        ``"numpy"`` or ``"jit"``.

    Raises:
        GridSampleError: the environment variable ``ORT_GRIDSAMPLE_CORE`` is not a core's name.
    """
    if _core is None and settings.CORE.get() != "auto":
        return "jit" if settings.CORE.get() == "jit" else "numpy"
    return load_core().NAME


def load_core() -> Core:
    """Import the module of the chosen core and return it.

    With ``"auto"`` it is the NumPy core if Numba cannot be imported; a warning is logged.

    Raises:
        ImportError: the core ``"jit"`` was chosen by name, and Numba cannot be imported.
        GridSampleError: the environment variable ``ORT_GRIDSAMPLE_CORE`` is not a core's name.
    """
    global _core
    if _core is not None:
        return _core
    choice = settings.CORE.get()
    is_required = choice == "jit"
    if is_required and not _has_kernels():
        raise _missing_numba()
    try:
        if is_required or (choice == "auto" and _has_kernels()):
            if library_kernels() is None:
                need_numba()
            from ..kernels import jit_core

            _core = jit_core
    except Exception as error:  # Numba may refuse a newer NumPy with more than an ImportError
        if is_required:
            message = f"the core 'jit' needs Numba, which cannot be used: {error}"
            raise ImportError(message) from error
        logger.warning(
            "Numba is installed but cannot be used; the core 'numpy' is used: %s",
            error,
        )
    if _core is None:
        from ..reference import sampler

        _core = sampler
    return _core


def need_numba() -> None:
    """Import Numba.

    Raises:
        ImportError: Numba is not installed, or its release is not supported.
        Exception: Numba refuses the installed NumPy, which it does with errors of several types.
    """
    release = importlib.import_module("numba").__version__
    message = versions.incompatibility_message("numba", release)
    if message:
        raise ImportError(message)


def _missing_numba() -> ImportError:
    message = versions.missing_module_message("numba", "pip install numba")
    return ImportError(f"the core 'jit' needs Numba or a library: {message}")


def _has_kernels() -> bool:
    """Whether there may be a compiled core: a library has kernels, or Numba compiles them."""
    return _is_numba_installed() or library_kernels() is not None


def _is_numba_installed() -> bool:
    return importlib.util.find_spec("numba") is not None
