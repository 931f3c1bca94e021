"""From a function to an address: compiled, kept on disk, and there until the process ends."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from numba import types
from numba.core.ccallback import CFunc

from ...core.compilation import SOURCES, KernelCache
from ...core.threads import available_cpus

#: The files that the functions here are made of; where one differs, what is on disk is not used.
_SOURCES = (*SOURCES, *sorted(Path(__file__).parent.glob("*.py")))


class Function:
    """``function``, of so many int64 ``arguments``, as a C function that answers with an int64."""

    def __init__(self, function: Callable[..., int], arguments: int) -> None:
        signature = tuple([types.int64] * arguments), types.int64
        made: Any = CFunc(function, signature, {}, {"error_model": "numpy"})
        self._made = made
        self._cache: KernelCache | None = None
        with suppress(RuntimeError, OSError):  # else it is compiled in every process anew
            self._cache = KernelCache(function, _SOURCES)
            made._cache = self._cache
        self._address = 0

    @property
    def is_at_hand(self) -> bool:
        """Whether it need not be compiled, or could not be put on disk anyway."""
        if self._address or self._cache is None:
            return True
        return self._cache.has(self._made._sig, self._made._targetdescr.target_context)

    def address(self) -> int:
        """Where it lies, compiled now or taken from the disk. It is never freed: sessions may outlive Python."""
        if not self._address:
            self._made.compile()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._made))
            self._address = int(self._made.address)
        return self._address


@contextmanager
def helped(names: Sequence[tuple[str, ...]]) -> Iterator[None]:
    """Have another process compile what ``names`` says, the last first, while this one begins with the first.

    Numba compiles in one thread at a time. Whichever comes to a function second finds it on disk; so a helper that
    cannot be started, or comes to nothing, is not missed.
    """
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__package__} import kernels; kernels.compile_last({names!r})"
    quiet: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    helper = None
    if len(names) > 1 and available_cpus() > 1 and not getattr(sys, "frozen", False):
        with suppress(OSError):
            helper = subprocess.Popen([sys.executable, "-c", code], **quiet)
    try:
        yield
    finally:
        if helper is not None:
            helper.kill()
            helper.wait()
