"""How kernels are compiled, and kept on disk so that the next process loads them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import caching as untyped_caching

from . import memory

FunctionCache: Any = untyped_caching.FunctionCache
IndexDataCacheFile: Any = untyped_caching.IndexDataCacheFile

#: LLVM ends the process where there is no memory for it: so much must be free before it compiles, and before it loads.
COMPILING, LOADING = 1 << 26, 1 << 24

#: The files that kernels are made of. Numba itself looks only at the one that a kernel lies in.
SOURCES = tuple(Path(__file__).parent / name for name in ("kernels.py", "vectors.py", "halves.py", "../spec.py"))


def fingerprint(sources: Sequence[Path] = SOURCES) -> str:
    """What differs where one of the ``sources`` does."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()


class _Files(IndexDataCacheFile):
    """A file for each version of a function, by its types.

    Numba's own index gives two processes that save different versions at once one file for both.
    """

    def load(self, key: Any) -> Any:
        """What was saved for ``key``; None where nothing was."""
        try:
            version, stamp, saved, data = self._load_data(self._name(key))
        except OSError:
            return None
        return data if (version, stamp, saved) == (self._version, self._source_stamp, key) else None

    def save(self, key: Any, data: Any) -> None:
        """Keep ``data`` for ``key``."""
        self._save_data(self._name(key), (self._version, self._source_stamp, key, data))

    def has(self, key: Any) -> bool:
        """Whether there is a file for ``key``."""
        return Path(self._data_path(self._name(key))).exists()

    def flush(self) -> None:
        """Nothing: a file that cannot be read is written anew."""

    def _name(self, key: Any) -> str:
        return str(self._data_name(int(hashlib.sha256(repr(key).encode()).hexdigest()[:15], 16)))


class KernelCache(FunctionCache):
    """Numba's cache of a function on disk: beside its file, or in the user's cache where that is read-only.

    Raises:
        RuntimeError: there is no folder to write to at all.
        OSError: a source is not there to be looked at.
    """

    def __init__(self, function: Any, sources: Sequence[Path] = SOURCES) -> None:
        super().__init__(function)
        self._fingerprint = fingerprint(sources)
        files: Any = self._cache_file
        self._cache_file: Any = _Files(files._cache_path, self._impl.filename_base, files._source_stamp)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """What lies on disk; None also where that cannot be read.

        Raises:
            MemoryError: there is no room to load it, or to compile it then.
        """
        memory.probe(LOADING if self.has(signature, target_context) else COMPILING)
        try:
            return super().load_overload(signature, target_context)
        except Exception:  # whatever unpickling half a file raises
            return None

    def has(self, signature: Any, target_context: Any) -> bool:
        """Whether there is something on disk for this ``signature``."""
        target_context.refresh()
        return bool(self._cache_file.has(self._index_key(signature, target_context.codegen())))

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
