"""Remove from Python what it lacks on Windows and macOS, before the package is imported.

Windows has no fork, no ELF files and fewer signals, macOS no list of a process' processors. Neither
has files with the amount of memory.
"""

import _signal
import ctypes
import os
import signal
import sys
from pathlib import Path
from types import ModuleType

#: Attributes of ``os`` that Windows lacks.
OS_ATTRIBUTES = (
    "fork",
    "register_at_fork",
    "sched_getaffinity",
    "sysconf",
    "getuid",
    "geteuid",
    "O_NOFOLLOW",
    "killpg",
)
#: Attributes of ``signal`` that Windows lacks, beside those that begin with pthread_ or sig.
SIGNAL_ATTRIBUTES = (
    "SIGKILL",
    "SIGHUP",
    "SIGPIPE",
    "SIGQUIT",
    "SIGALRM",
    "SIGCHLD",
    "SIGUSR1",
    "SIGUSR2",
    "setitimer",
)
#: Modules that Windows lacks, without fcntl: :mod:`ort_gridsample.kernels.kernel_lock` imports it,
#: or msvcrt, by ``sys.platform``, which is not changed.
MODULES = ("resource", "termios", "pwd", "grp")
WINDOWS_SIGNALS = {
    signal.SIGINT,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGSEGV,
    signal.SIGTERM,
    signal.SIGABRT,
}


def imitate_macos() -> None:
    _remove_memory_files()
    _remove(os, "sched_getaffinity")


def imitate_windows() -> None:
    _remove_memory_files()
    _remove(os, *OS_ATTRIBUTES)
    for module in (signal, _signal):
        functions = [name for name in dir(module) if name.startswith(("pthread_", "sig"))]
        _remove(module, *(name for name in functions if name != "signal"), *SIGNAL_ATTRIBUTES)
    signal.valid_signals = lambda: set(WINDOWS_SIGNALS)
    ctypes.CDLL = _WindowsCDLL
    for name in MODULES:
        sys.modules[name] = None


class _WindowsCDLL(ctypes.CDLL):
    """A library, which needs a name on Windows."""

    def __init__(self, name: str | None, *args: object, **kwargs: object) -> None:
        if name is None:
            raise TypeError("bad argument type for built-in operation")
        super().__init__(name, *args, **kwargs)


def _remove(module: ModuleType, *names: str) -> None:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


def _remove_memory_files() -> None:
    read_text = Path.read_text

    def read_other_text(path: Path, *args: object, **kwargs: object) -> str:
        if str(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(path)
        return read_text(path, *args, **kwargs)

    Path.read_text = read_other_text
