"""From a function to an address: compiled, kept on disk for the next process, and there until this one ends."""

import ctypes
import hashlib
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba import types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock

from .. import progress
from . import memory
from .threads import available_cpus, interpreter

logger = logging.getLogger("ort_gridsample")
#: LLVM ends the process where there is no memory for it: so much must be free before it compiles, and before it loads.
COMPILING, LOADING = 1 << 26, 1 << 24
#: How a module takes something from its own package: dots, a module's name, and names.
_TAKES = re.compile(r"^ *from (\.+)([\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
#: A function to compile; or what makes one, and the types that it makes it for.
Part = tuple[Any, ...]


@cache
def sources(module: Path) -> tuple[Path, ...]:
    """The files that the functions of a ``module`` of a package are made of, by what they say that they take.

    They are this one, which compiles them, the module's own, those of the package that it takes anything from, and so
    on. Numba itself looks only at the module's own.
    """
    found = [module]
    for path in found:  # grows while it is walked
        text = path.read_bytes().decode() if path.is_file() else ""
        for dots, package, names in _TAKES.findall(text):
            there = path.parents[len(dots) - 1] / package.replace(".", "/")
            for name in re.findall(r"\w+", names):
                modules = there / name, there
                places = (place for m in modules for place in (m.with_suffix(".py"), m / "__init__.py"))
                place = next(filter(Path.is_file, places), there)
                if place not in found:
                    found.append(place)
    return Path(__file__), *found


def fingerprint(sources: Sequence[Path]) -> str:
    """What differs where one of the ``sources`` does."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()


class _Files(IndexDataCacheFile):
    """A file for each version of a function, by its types.

    Numba's own index gives two processes that save different versions at once one file for both.
    """

    def load(self, key: Any) -> Any:
        """What was saved for ``key``; None where nothing was."""
        return self._load_data(self._name(key)) if self.has(key) else None

    def save(self, key: Any, data: Any) -> None:
        """Keep ``data`` for ``key``."""
        self._save_data(self._name(key), data)

    def has(self, key: Any) -> bool:
        """Whether there is a file for ``key``."""
        return Path(self._data_path(self._name(key))).exists()

    def _name(self, key: Any) -> str:
        whole = repr((self._version, self._source_stamp, key)).encode()
        return str(self._data_name(int(hashlib.sha256(whole).hexdigest()[:32], 16)))


class KernelCache(FunctionCache):
    """Numba's cache of a function on disk: beside its file, or in the user's cache where that is read-only.

    RuntimeError: there is no folder to write to at all; OSError: a source is not there to be looked at.
    """

    def __init__(self, function: Any, sources: Sequence[Path]) -> None:
        super().__init__(function)
        self._fingerprint = fingerprint(sources)
        self._cache_file: Any = _Files(self._cache_path, self._impl.filename_base, self._fingerprint)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """What lies on disk, None where it cannot be read; MemoryError: there is no room to load, or to compile it."""
        memory.probe(LOADING if self.has(signature, target_context) else COMPILING)
        try:
            return super().load_overload(signature, target_context)
        except Exception as error:  # whatever unpickling half a file raises
            logger.debug("a kernel on disk cannot be read: %r", error)
            return None

    def has(self, signature: Any, target_context: Any) -> bool:
        """Whether there is something on disk for this ``signature``."""
        with global_compiler_lock:  # which Numba refreshes under, too: two threads would come upon half a registry
            target_context.refresh()
            return bool(self._cache_file.has(self._index_key(signature, target_context.codegen())))

    def save_overload(self, *arguments: Any) -> None:
        """Put it on disk, unless that is full or has become read-only."""
        try:
            super().save_overload(*arguments)
        except OSError as error:
            logger.debug("a kernel cannot be kept on disk: %r", error)


class Function:
    """``function``, whose arguments are int64, as a C function that answers with an int64."""

    def __init__(self, function: Callable[..., int], sources: Sequence[Path]) -> None:
        signature = tuple([types.int64] * function.__code__.co_argcount), types.int64
        made = CFunc(function, signature, {}, {"error_model": "numpy"})
        self._made = made
        self._cache: KernelCache | None = None
        try:
            self._cache = made._cache = KernelCache(function, sources)
        except (RuntimeError, OSError) as error:
            logger.debug("kernels cannot be kept on disk, each process compiles its own: %r", error)
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


@cache
def function(part: Part) -> Function:
    """The compiled function of this ``part``."""
    make, *kinds = part
    made = make
    if kinds:
        made = make(*kinds)
        # Of two functions of one name, which two processes put on disk, the linker takes the first for both.
        made.__qualname__ = "_".join([make.__name__, *kinds])
    return Function(made, sources(Path(make.__code__.co_filename)))


#: How long functions take to compile, the longest first and last, as two processes take them from both ends.
_ORDER = (
    "create", "create_fused", "compute", "compute_with_status", "measure", "infer", "attention_for",
    "sum_for", "copy_for", "proceed", "proceed_attention", "combine_for", "sum_packed_for", "worker", "pack_for",
    "fill_for", "axis_taps_for", "coordinates_for", "attend", "invite", "finish", "destroy",
)  # fmt: skip


def addresses(parts: Sequence[Part | None]) -> list[int]:
    """The addresses of these ``parts``, compiled if need be; 0 for None."""
    missing = not_at_hand(parts)
    if missing:
        with _helped(missing), progress.shown("compiling", len(missing)) as begin:
            for make, *kinds in missing:
                begin(" ".join([make.__name__.removesuffix("_for").replace("_", " "), *kinds]))
                function((make, *kinds)).address()
    return [0 if part is None else function(part).address() for part in parts]


def not_at_hand(parts: Sequence[Part | None]) -> list[Part]:
    """Those that must be compiled, in the order to do so."""
    found = [part for part in parts if part is not None and not function(part).is_at_hand]
    return sorted(found, key=lambda part: _ORDER.index(part[0].__name__))


@contextmanager
def _helped(parts: Sequence[Part]) -> Iterator[None]:
    """Have another process compile ``parts``, the last first, while this one begins with the first.

    Numba compiles in one thread at a time. Whichever comes to a function second finds it on disk; so a helper that
    cannot be started, or comes to nothing, is not missed.
    """
    modules = ", ".join({__name__, *(make.__module__ for make, *_ in parts)})
    listed = "".join(f"({make.__module__}.{make.__name__}, *{kinds!r}), " for make, *kinds in parts)
    code = f"sys.path[:] = {sys.path!r}; import {modules}; {__name__}.last([{listed}])"
    code = f"import sys; sys.hexversion == {sys.hexversion} or sys.exit(); {code}"
    quiet: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    helper = None
    python = interpreter()
    if len(parts) > 1 and available_cpus() > 1 and python:
        with suppress(OSError):
            helper = subprocess.Popen([python, "-c", code], **quiet)
    try:
        yield
    finally:
        if helper is not None:
            helper.kill()
            helper.wait()


def last(parts: Sequence[Part]) -> None:
    """Put ``parts`` on disk, the last first, until one is there."""
    for part in reversed(parts):
        if function(part).is_at_hand:
            return
        function(part).address()
