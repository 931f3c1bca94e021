"""How kernels are compiled, and kept on disk so that the next process loads them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import caching as untyped_caching

FunctionCache: Any = untyped_caching.FunctionCache

#: The files that kernels are made of. Numba itself looks only at the one that a kernel lies in.
SOURCES = tuple(Path(__file__).parent / name for name in ("kernels.py", "vectors.py", "../spec.py"))


def fingerprint(sources: Sequence[Path] = SOURCES) -> str:
    """What differs where one of the ``sources`` does."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()


class KernelCache(FunctionCache):
    """Numba's cache of a function on disk: beside its file, or in the user's cache where that is read-only.

    Raises:
        RuntimeError: there is no folder to write to at all.
        OSError: a source is not there to be looked at.
    """

    def __init__(self, function: Any, sources: Sequence[Path] = SOURCES) -> None:
        super().__init__(function)
        self._fingerprint = fingerprint(sources)

    def load_overload(self, *arguments: Any) -> Any:
        """What lies on disk; None also where that cannot be read."""
        try:
            return super().load_overload(*arguments)
        except Exception:  # whatever unpickling half a file raises
            with suppress(OSError):
                self.flush()  # else nothing could be put there again
            return None

    def save_overload(self, *arguments: Any) -> None:
        """Put it on disk, unless that is full or has become read-only."""
        with suppress(OSError):
            super().save_overload(*arguments)

    def _index_key(self, *arguments: Any) -> Any:
        return (*super()._index_key(*arguments), self._fingerprint)


def kernel(function: Any) -> Any:
    """Compile ``function`` at its first call for each combination of types, or load it from the disk."""
    dispatcher: Any = njit(nogil=True, error_model="numpy")(function)
    with suppress(RuntimeError, OSError):  # else it is compiled in every process anew
        dispatcher._cache = KernelCache(function)
    return dispatcher
