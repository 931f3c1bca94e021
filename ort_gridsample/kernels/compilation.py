"""Compile functions to C function pointers, with an on-disk cache."""

import hashlib
import logging
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from numba import config, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock

from .. import progress
from ..system import memory
from ..system.cpus import available_cpus
from ..system.process import interpreter, keep_forever
from . import cache_folder
from .code_library import linking_lazily
from .kernel_key import kernel_key
from .kernel_lock import is_locked, try_lock

logger = logging.getLogger("ort_gridsample")

#: A function to compile, ``(function,)``; or a factory of such a function and its arguments, the
#: names of types: ``(factory, "float32")``; or, in an image for a library, ``(symbol,)``.
FunctionSpec: TypeAlias = tuple[Any, ...]
_AnyFunction = TypeVar("_AnyFunction", bound=Callable[..., Any])

#: The memory, in bytes, that must be free before a kernel is compiled, and before a compiled kernel
#: is loaded: LLVM ends the process if it cannot allocate memory.
COMPILING_BYTES = 1 << 26
LOADING_BYTES = 1 << 24

#: Stop waiting for other processes once none has finished a kernel for this many seconds: a process
#: may have been stopped.
MAX_WAIT = 120.0
#: The time in seconds between two checks of the kernels that other processes compile.
_POLL_INTERVAL = 0.05

#: The maximum size of all kernels on disk together. The tests, which use most types, write
#: 20 MiB.
MAX_BYTES = 1 << 28

_PACKAGE = Path(__file__).parents[1]
#: The name of the folder of kernels inside ``NUMBA_CACHE_DIR``.
_SUBFOLDER = "ort_gridsample"

#: Numba's settings that change the code of a kernel.
_CODE_SETTINGS = (
    "OPT",
    "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT",
    "LOOP_VECTORIZE",
    "SLP_VECTORIZE",
    "ENABLE_AVX",
)


# --- Numba's cache, in other folders and with another key ---


class _File(NamedTuple):
    """A file that was read.

    Attributes:
        path: its path.
        pickled: the pickle that it contains.
    """

    path: Path
    pickled: bytes


class _Files(IndexDataCacheFile):
    """One file per version of a function, that is, per key. Damaged files count as missing.

    Numba's own index gives two processes that save different versions at once the same file for
    both. Numba also links a damaged file, which ends the process.
    """

    def __init__(
        self,
        cache_path: str,
        filename_base: str,
        source_stamp: str,
        read_only: Sequence[str] = (),
    ) -> None:
        super().__init__(cache_path, filename_base, source_stamp)
        self._folders = (cache_path, *read_only)
        #: The file that :meth:`has` read last, which :meth:`load` then need not read again.
        self._last_read: _File | None = None

    def load(self, key: Any) -> Any:
        """Return the data that were saved for ``key``, or None."""
        file = self._read(key)
        self._last_read = None
        if file is None:
            return None
        cache_folder.mark_used(file.path)
        return pickle.loads(file.pickled)

    def save(self, key: Any, data: Any) -> None:
        """Write ``data`` to the file for ``key``."""
        self._last_read = None
        self._save_data(self._file_name(key), data)

    def has(self, key: Any) -> bool:
        """Whether there is an undamaged file for ``key``."""
        self._last_read = self._read(key)
        return self._last_read is not None

    def _read(self, key: Any) -> _File | None:
        """Return the first undamaged file for ``key``, or None."""
        name = self._file_name(key)
        if self._last_read is not None and self._last_read.path.name == name:
            return self._last_read
        for folder in self._folders:
            path = Path(folder) / name
            try:
                content = path.read_bytes()
            except OSError:  # there is no file, or it cannot be read
                continue
            pickled = cache_folder.unsealed(content, name)
            if pickled is not None:
                return _File(path, pickled)
            _log_damaged(path)
        return None

    def _save_data(self, name: str, data: Any) -> None:
        with self._open_for_write(self._data_path(name)) as file:
            file.write(cache_folder.sealed(self._dump(data), name))

    def _file_name(self, key: Any) -> str:
        full_key = repr((self._version, self._source_stamp, key)).encode()
        return str(self._data_name(int(hashlib.sha256(full_key).hexdigest()[:32], 16)))


@cache
def _log_damaged(path: Path) -> None:
    """Log once that a file is damaged. It is read again until another process replaces it."""
    logger.debug("a kernel on disk is damaged, and is compiled again: %s", path)


class _Location:
    """Numba's locator of a kernel. Numba's own locators choose a folder by the sources' path."""

    def __init__(self, folder: Path, line: int) -> None:
        self._folder = folder
        self._line = line

    def ensure_cache_path(self) -> None:
        """Create the folder again if it was removed.

        Raises:
            OSError: the folder cannot be created.
        """
        self._folder.mkdir(parents=True, exist_ok=True)

    def get_disambiguator(self) -> str:
        """Return the part of the file name that distinguishes functions of the same name."""
        return str(self._line)


class _Serializer(CompileResultCacheImpl):
    """Numba's serializer of functions, with file names independent of the package's folder."""

    def __init__(self, function: Any, folder: Path) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator: Any = _Location(folder, self._lineno)
        # The rest of a key has the code of the function, but not what its names refer to.
        name = f"{function.__module__}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, getattr(sys, "abiflags", ""))

    def check_cachable(self, result: Any) -> bool:
        """Whether the code contains no addresses of this process."""
        return not result.lifted and not result.library.has_dynamic_globals


def kernel_folders() -> list[Path]:
    """List the folders in which kernels may be kept, the preferred one first.

    All copies of this package, of any user's programs, share the user's cache folder. A package
    without such a folder (a service whose user has no home) keeps its kernels itself. A one-file
    program is removed when it ends, with everything in its folder.
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
    """Numba's on-disk cache of a function, independent of the folder of the sources.

    The key of a kernel consists of its :func:`.kernel_key.kernel_key`, the processor, Numba's
    release and settings. Kernels are read from the first of :func:`kernel_folders` that can be
    written, and from the folders before it. They are written to that folder.

    Args:
        function: the function to compile.
        key: its :func:`.kernel_key.kernel_key`.
    """

    def __init__(self, function: Any, key: str) -> None:
        self._name = repr(function)
        self._py_func = function
        candidates = kernel_folders()
        index = cache_folder.first_writable(candidates)
        #: Why no folder can be written; empty if one can.
        self.unwritable_reason = ""
        if index is None:
            self.unwritable_reason = f"no folder can be written: {', '.join(map(str, candidates))}"
            index = len(candidates) - 1
        self._cache_path = str(candidates[index])
        self._impl = _Serializer(function, candidates[index])
        read_only = [str(folder) for folder in candidates[:index]]
        self._cache_file: Any = _Files(
            self._cache_path,
            self._impl.filename_base,
            key,
            read_only,
        )
        self.enable()

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the function on disk, or None if there is no file or it cannot be unpickled.

        Raises:
            MemoryError: there is not enough memory to load the function, or else to compile it.
        """
        memory.check_allocatable(
            LOADING_BYTES if self.has(signature, target_context) else COMPILING_BYTES
        )
        try:
            return super().load_overload(signature, target_context)
        except Exception as error:  # a changed Numba of the same release can raise any exception
            logger.debug("a kernel on disk cannot be read: %r", error)
            return None

    def has(self, signature: Any, target_context: Any) -> bool:
        """Whether there is an undamaged file for this ``signature``."""
        # The compiler refreshes Numba's registries under this lock: two threads must not do so at
        # once.
        with global_compiler_lock:
            target_context.refresh()
            return bool(self._cache_file.has(self._index_key(signature, target_context.codegen())))

    def lock_path(self, signature: Any, target_context: Any) -> Path | None:
        """Return the file to lock while the function is compiled; None if it is not kept."""
        if self.unwritable_reason:
            return None
        key = self._index_key(signature, target_context.codegen())
        return Path(self._cache_path, f"{self._cache_file._file_name(key)}.lock")

    def save_overload(self, *arguments: Any) -> None:
        """Write the function to disk, unless the disk is full or has become read-only."""
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


# --- Compilation ---


#: Numba's options of a kernel. Its arrays own no memory, so that they need no reference counts, and
#: neither do the functions that it calls.
OPTIONS = {"error_model": "numpy", "_nrt": False}


class CompiledFunction:
    """A function of int64 arguments and an int64 result, compiled to a C function.

    Args:
        function: the function to compile.
    """

    def __init__(self, function: Callable[..., int]) -> None:
        signature = tuple([types.int64] * function.__code__.co_argcount), types.int64
        self._cfunc = CFunc(function, signature, {}, OPTIONS)
        self._cache: KernelCache | None = None
        self._not_kept_reason = ""
        try:
            key = kernel_key(function, OPTIONS)
            self._cache = self._cfunc._cache = KernelCache(function, key)
        except OSError as error:
            self._not_kept_reason = f"a source file of ort_gridsample is missing: {error}"
            if getattr(sys, "frozen", False):
                self._not_kept_reason += "; frozen programs need the sources, see INSTALL.md"
        except TypeError as error:  # of a release of NumPy or Numba that no test has seen
            self._not_kept_reason = str(error)
        self._address = 0

    @property
    def needs_no_lock(self) -> bool:
        """Whether :meth:`address` loads the function, or compiles it for this process only."""
        if self._address or self._cache is None or self._cache.unwritable_reason:
            return True
        return self._cache.has(self._cfunc._sig, self._cfunc._targetdescr.target_context)

    @property
    def lock_path(self) -> Path | None:
        """The file to lock while the function is compiled; None if it is not kept on disk."""
        if self._cache is None:
            return None
        return self._cache.lock_path(self._cfunc._sig, self._cfunc._targetdescr.target_context)

    def address(self) -> int:
        """Return the address of the C function, after compiling it or loading it from disk.

        The function is never freed, because sessions may outlive Python.
        """
        if not self._address:
            if self._not_kept_reason:
                _warn_not_kept(self._not_kept_reason)
            with linking_lazily():
                self._cfunc.compile()
            keep_forever(self._cfunc)
            self._address = int(self._cfunc.address)
        return self._address


@cache
def compiled_function(function_spec: FunctionSpec) -> CompiledFunction:
    """Return the compiled function of ``function_spec``. There is one per process."""
    factory, *type_names = function_spec
    if not type_names:
        return CompiledFunction(factory)
    function = factory(*type_names)
    # Two functions of the same name, written to disk by two processes, would be one symbol for the
    # linker.
    function.__qualname__ = "_".join([factory.__name__, *type_names])
    return CompiledFunction(function)


#: What :func:`compiles_in` would state for the functions of ops, which are not decorated.
DEFAULT_COMPILE_SECONDS = 5.0


def compiles_in(seconds: float) -> Callable[[_AnyFunction], _AnyFunction]:
    """Decorate a kernel or its factory with the CPU time that its compilation took, in seconds.

    Measured for float32, each in a separate process, on an x86-64 server CPU. Only the order
    matters: see :func:`missing_on_disk`.
    """

    def decorate(function: _AnyFunction) -> _AnyFunction:
        function.__dict__["compiles_in"] = seconds
        return function

    return decorate


def addresses(function_specs: Sequence[FunctionSpec | None]) -> list[int]:
    """Return the addresses of these functions, compiled if necessary; 0 for None."""
    missing = missing_on_disk(function_specs)
    if missing:
        with _helper_process(missing), progress.progress_bar("compiling", len(missing)) as begin:
            _compile_with_other_processes(missing, begin)
    return [
        0 if function_spec is None else compiled_function(function_spec).address()
        for function_spec in function_specs
    ]


def _compile_with_other_processes(
    function_specs: Sequence[FunctionSpec],
    begin: Callable[[str], object] = lambda title: None,
) -> None:
    """Compile functions in order, except those that other processes compile at the same time.

    All processes together compile as many kernels at once as there are processors.

    Args:
        function_specs: functions that are not on disk.
        begin: is called with the title of each function when it is compiled, or found on disk.
    """
    pending = list(function_specs)
    last_progress = time.monotonic()
    while pending:
        function_spec = _compile_one(
            pending, yields_to_others=time.monotonic() < last_progress + MAX_WAIT, begin=begin
        )
        if function_spec is None:
            time.sleep(_POLL_INTERVAL)
        else:
            pending.remove(function_spec)
            last_progress = time.monotonic()


def _compile_one(
    function_specs: Sequence[FunctionSpec],
    *,
    yields_to_others: bool,
    begin: Callable[[str], object],
) -> FunctionSpec | None:
    """Load or compile one of ``function_specs``.

    Args:
        yields_to_others: whether to leave functions to other processes that compile them.
        begin: see :func:`_compile_with_other_processes`.

    Returns:
        The function, or None if other processes compile all that can be compiled now.
    """
    # One thread at a time: locks of files do not exclude threads.
    with global_compiler_lock:
        for function_spec in function_specs:
            if compiled_function(function_spec).needs_no_lock:
                begin(_title(function_spec))
                compiled_function(function_spec).address()
                return function_spec
        free = list(function_specs)
        if yields_to_others:
            free = [
                function_spec
                for function_spec in function_specs
                if not is_locked(compiled_function(function_spec).lock_path)
            ]
            if len(function_specs) - len(free) >= available_cpus():
                return None
        for function_spec in free:
            function = compiled_function(function_spec)
            with try_lock(function.lock_path) as has_lock:
                if has_lock or not yields_to_others:
                    begin(_title(function_spec))
                    function.address()
                    return function_spec
    return None


def _title(function_spec: FunctionSpec) -> str:
    """Return the name of a function for a progress bar."""
    factory, *type_names = function_spec
    return " ".join([factory.__name__.removesuffix("_for").replace("_", " "), *type_names])


def missing_on_disk(function_specs: Sequence[FunctionSpec | None]) -> list[FunctionSpec]:
    """List the ``function_specs`` to compile that can be kept on disk, the slowest first.

    Functions that cannot be kept are not listed: each process compiles them in
    :meth:`CompiledFunction.address`.

    A helper process begins at the other end.
    """
    missing = [
        function_spec
        for function_spec in function_specs
        if function_spec is not None and not compiled_function(function_spec).needs_no_lock
    ]
    return sorted(missing, key=_compile_time_of, reverse=True)


def _compile_time_of(function_spec: FunctionSpec) -> float:
    return float(getattr(function_spec[0], "compiles_in", DEFAULT_COMPILE_SECONDS))


@contextmanager
def _helper_process(function_specs: Sequence[FunctionSpec]) -> Iterator[None]:
    """Compile functions in a second process, from the last to the first, within the context.

    This process compiles them from the first to the last. Numba compiles in one thread at a time.
    Nothing depends on the helper: it may fail to start, or fail. There is none while other
    processes compile some of these functions, as these have helpers.
    """
    modules = ", ".join({__name__, *(factory.__module__ for factory, *_ in function_specs)})
    listed = "".join(map(_as_code, function_specs))
    # Another version of Python may have the same name.
    code = (
        f"import sys; sys.hexversion == {sys.hexversion} or sys.exit(); "
        f"sys.path[:] = {sys.path!r}; import {modules}; {__name__}.compile_from_last([{listed}])"
    )
    quiet: Any = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.DEVNULL)
    helper = None
    python = interpreter()
    is_useful = len(function_specs) > 1 and available_cpus() > 1
    if is_useful and python and not _is_any_locked(function_specs):
        with suppress(OSError):
            helper = subprocess.Popen([python, "-c", code], **quiet)
    try:
        yield
    finally:
        if helper is not None:
            helper.kill()
            helper.wait()
            _is_any_locked(function_specs)  # removes the files of its locks


def _is_any_locked(function_specs: Sequence[FunctionSpec]) -> bool:
    """Whether another process compiles one of ``function_specs``.

    The files of locks that ended with their process are removed.
    """
    with global_compiler_lock:
        locks = [is_locked(compiled_function(spec).lock_path) for spec in function_specs]
        return any(locks)


def _as_code(function_spec: FunctionSpec) -> str:
    """Return ``function_spec`` as Python code, followed by a comma."""
    factory, *type_names = function_spec
    return f"({factory.__module__}.{factory.__name__}, *{type_names!r}), "


def compile_from_last(function_specs: Sequence[FunctionSpec]) -> None:
    """Compile ``function_specs`` to disk, from the last to the first."""
    _compile_with_other_processes(function_specs[::-1])
