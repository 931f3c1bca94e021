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

from numba import config, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock

from .. import progress
from ..reference import memory
from ..reference.threads import available_cpus, interpreter
from . import cache_folder

logger = logging.getLogger("ort_gridsample")
#: LLVM ends the process where there is no memory for it: so much must be free before it compiles, and before it loads.
COMPILING, LOADING = 1 << 26, 1 << 24
#: How a module takes something from its own package: dots, a module's name, and names.
_TAKES = re.compile(r"^ *from (\.+)([\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
#: The folder of this package, and the name of the folder of kernels inside ``NUMBA_CACHE_DIR``.
_PACKAGE = Path(__file__).parents[1]
_SUBFOLDER = "ort_gridsample"
#: Whether the package is imported from a zip archive.
_IN_ARCHIVE = not Path(__file__).is_file()
#: Numba's settings that change the code of a kernel.
_CODE_SETTINGS = ("OPT", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX")
#: All kernels on disk have at most so many bytes. The tests, which use most types, write 20 MiB.
MAX_BYTES = 1 << 28
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
        text = _read(path).decode() if _is_source(path) else ""
        for dots, package, names in _TAKES.findall(text):
            there = path.parents[len(dots) - 1] / package.replace(".", "/")
            for name in re.findall(r"\w+", names):
                modules = there / name, there
                places = (place for m in modules for place in (m.with_suffix(".py"), m / "__init__.py"))
                place = next(filter(_is_source, places), there)
                if place not in found:
                    found.append(place)
    return Path(__file__), *found


def fingerprint(sources: Sequence[Path]) -> str:
    """What differs where one of the ``sources`` does."""
    return hashlib.sha256(b"\0".join(map(_read, sources))).hexdigest()


def _read(path: Path) -> bytes:
    """Return the content of a source file, which may be in a zip archive.

    Raises:
        OSError: there is no such file.
    """
    try:
        return path.read_bytes()
    except OSError:
        loader: Any = __spec__.loader
        if not hasattr(loader, "get_data"):
            raise
        return bytes(loader.get_data(str(path)))


def _is_source(path: Path) -> bool:
    """Whether ``path`` is a file that can be read."""
    if path.is_file():
        return True
    if not _IN_ARCHIVE:  # most paths that are tried do not exist, and a loader takes long to say so
        return False
    with suppress(OSError):
        return bool(_read(path))
    return False


class _Files(IndexDataCacheFile):
    """A file for each version of a function, by its types.

    Numba's own index gives two processes that save different versions at once one file for both.
    """

    def __init__(self, cache_path: str, filename_base: str, source_stamp: str, read_only: Sequence[str] = ()) -> None:
        super().__init__(cache_path, filename_base, source_stamp)
        self._folders = (cache_path, *read_only)

    def load(self, key: Any) -> Any:
        """What was saved for ``key``; None where nothing was."""
        path = self._find(key)
        if path is None:
            return None
        cache_folder.mark_used(path)
        return self._load_data(path)

    def save(self, key: Any, data: Any) -> None:
        """Keep ``data`` for ``key``."""
        self._save_data(self._name(key), data)

    def has(self, key: Any) -> bool:
        """Whether there is a file for ``key``."""
        return self._find(key) is not None

    def _find(self, key: Any) -> Path | None:
        """Return the path of the file for ``key``, or None."""
        name = self._name(key)
        paths = (Path(folder) / name for folder in self._folders)
        return next((path for path in paths if path.exists()), None)

    def _name(self, key: Any) -> str:
        whole = repr((self._version, self._source_stamp, key)).encode()
        return str(self._data_name(int(hashlib.sha256(whole).hexdigest()[:32], 16)))


class _Location:
    """Where Numba keeps a kernel: its own locators give every folder of sources another one."""

    def __init__(self, folder: Path, line: int) -> None:
        self._folder = folder
        self._line = line

    def ensure_cache_path(self) -> None:
        """Make the folder again, where somebody removed it; OSError: it cannot be made."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def get_disambiguator(self) -> str:
        """Return the part of the file names that tells functions of one name apart."""
        return str(self._line)


class _Serializer(CompileResultCacheImpl):
    """How Numba writes a compiled function to a file, and the file's name."""

    def __init__(self, function: Any, folder: Path) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator: Any = _Location(folder, self._lineno)
        module = function.__module__.rpartition(".")[2]
        abi = getattr(sys, "abiflags", "")
        self._filename_base = self.get_filename_base(f"{module}.{function.__qualname__}", abi)

    def check_cachable(self, result: Any) -> bool:
        """Whether the code has no addresses of this process."""
        return not result.lifted and not result.library.has_dynamic_globals


def kernel_folders() -> list[Path]:
    """List the folders in which kernels may be kept, the preferred one first.

    All copies of this package, of any user's programs, share the user's cache folder. A package without such a folder
    (a service whose user has no home) keeps its kernels itself. A one-file program is removed when it ends, with
    everything in its folder.
    """
    folders = []
    if config.CACHE_DIR:
        folders.append(Path(config.CACHE_DIR).absolute() / _SUBFOLDER)
    with suppress(RuntimeError):
        folders.append(cache_folder.cache_folder() / "kernels")
    if not getattr(sys, "frozen", False):
        folders.append(_PACKAGE / "__pycache__")
    return folders


class KernelCache(FunctionCache):
    """Numba's cache of a function on disk, which does not depend on where the sources are.

    The key of a kernel is the content of its sources, the processor, Numba's release and settings. Kernels are read
    from the first of :func:`kernel_folders` that can be written, and from folders before it. They are written to that
    folder.

    OSError: a source cannot be read.
    """

    def __init__(self, function: Any, sources: Sequence[Path]) -> None:
        self._fingerprint = fingerprint(sources)
        self._name, self._py_func = repr(function), function
        candidates = kernel_folders()
        position = cache_folder.first_writable(candidates)
        #: Why no folder can be written; empty where one can.
        self.unwritable_reason = ""
        if position is None:
            self.unwritable_reason = f"no folder can be written: {', '.join(map(str, candidates))}"
            position = len(candidates) - 1
        self._cache_path = str(candidates[position])
        self._impl = _Serializer(function, candidates[position])
        read_only = [str(folder) for folder in candidates[:position]]
        self._cache_file: Any = _Files(self._cache_path, self._impl.filename_base, self._fingerprint, read_only)
        self.enable()

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
        if self.unwritable_reason:
            _warn_not_kept(self.unwritable_reason)
            return
        try:
            super().save_overload(*arguments)
        except OSError as error:
            _warn_not_kept(str(error) or repr(error))
        else:
            cache_folder.remove_least_used(Path(self._cache_path), "*.nbc", MAX_BYTES)

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        settings = [(name, getattr(config, name, None)) for name in _CODE_SETTINGS]
        return (*super()._index_key(signature, codegen), *settings)


#: Whether the process has logged already that kernels cannot be kept.
_has_warned = False


def _warn_not_kept(reason: str) -> None:
    """Log once that kernels cannot be kept on disk."""
    global _has_warned
    if not _has_warned:
        _has_warned = True
        logger.warning(
            "compiled kernels cannot be kept on disk, so each process compiles them again (%s): "
            "let NUMBA_CACHE_DIR be a folder that can be written",
            reason,
        )


class Function:
    """``function``, whose arguments are int64, as a C function that answers with an int64."""

    def __init__(self, function: Callable[..., int], sources: Sequence[Path]) -> None:
        signature = tuple([types.int64] * function.__code__.co_argcount), types.int64
        made = CFunc(function, signature, {}, {"error_model": "numpy"})
        self._made = made
        self._cache: KernelCache | None = None
        self._unkeepable_reason = ""
        try:
            self._cache = made._cache = KernelCache(function, sources)
        except OSError as error:
            hint = "; frozen programs need the sources, see INSTALL.md" if getattr(sys, "frozen", False) else ""
            self._unkeepable_reason = f"a source file of ort_gridsample is missing: {error}{hint}"
        self._address = 0

    @property
    def is_at_hand(self) -> bool:
        """Whether it need not be compiled, or could not be put on disk anyway."""
        if self._address or self._cache is None or self._cache.unwritable_reason:
            return True
        return self._cache.has(self._made._sig, self._made._targetdescr.target_context)

    def address(self) -> int:
        """Where it lies, compiled now or taken from the disk. It is never freed: sessions may outlive Python."""
        if not self._address:
            if self._unkeepable_reason:
                _warn_not_kept(self._unkeepable_reason)
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
        with _helped(missing), progress.progress_bar("compiling", len(missing)) as begin:
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
