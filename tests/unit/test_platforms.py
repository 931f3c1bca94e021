"""What other systems lack, taken away here: Windows has no fork, no ELF files and other signals, macOS no list of a
process' processors, and neither a file that says how much memory there is.
"""

from ort_gridsample.custom_ops.compiled_ops.registry import unavailable_reason
from support.paths import needs_python_ops
from support.processes import PREAMBLE, python

#: There is no file that says how much memory there is, and more can be lost.
LACKING = """
import os, sys
from pathlib import Path
def lose(module, *names):
    [delattr(module, name) for name in names if hasattr(module, name)]
read_text = Path.read_text
def read(path, *args, **kwargs):
    if str(path).startswith(("/proc", "/sys")):
        raise FileNotFoundError(path)
    return read_text(path, *args, **kwargs)
Path.read_text = read
"""
#: System -> what Python has not there.
LACKS = {"macOS": "lose(os, 'sched_getaffinity')"}
LACKS["Windows"] = """
import ctypes, pathlib, signal, _signal
lose(os, "fork", "register_at_fork", "sched_getaffinity", "sysconf", "getuid", "geteuid", "O_NOFOLLOW", "killpg")
for module in (signal, _signal):
    lose(module, *(name for name in dir(module) if name.startswith(("pthread_", "sig")) and name != "signal"))
    lose(module, "SIGKILL", "SIGHUP", "SIGPIPE", "SIGQUIT", "SIGALRM", "SIGCHLD", "SIGUSR1", "SIGUSR2", "setitimer")
six = [signal.SIGINT, signal.SIGILL, signal.SIGFPE, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT]
signal.valid_signals = lambda: set(six)
class CDLL(ctypes.CDLL):
    def __init__(self, name, *args, **kwargs):
        if name is None:
            raise TypeError("bad argument type for built-in operation")
        super().__init__(name, *args, **kwargs)
ctypes.CDLL = CDLL
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
"""


def on(system: str, script: str, first: str = "") -> list[str]:
    """What the ``script`` prints there."""
    return python(
        LACKING + LACKS[system] + first + PREAMBLE.format(open_model="open_session") + script
    )


NO_LINKER = """
import importlib.util, shutil
from ort_gridsample.custom_ops.compiled_ops import registry, trampoline
trampoline._JUMPS = {}
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "ziglang" else find_spec(name)
shutil.which = lambda name: None
"""


@needs_python_ops
def test_without_a_linker_windows_has_python_ops_and_interrupts_wait_for_the_end_of_a_run() -> None:
    """Ctrl-C is one of six signals there; its handler is there again after the run."""
    script = """
import signal
from ort_gridsample.reference import sampler
print(ogs.get_ops(), '|', registry.unavailable_reason())
ogs.set_core("numpy")
session = ogs.InferenceSession(grid_sample_model("uint8", "float32", 2, [Attributes()]))
print(session.replaced[0].runs_on, '|', session.replaced[0].reason)
print(session.run(None, {"X": X.astype(np.uint8), "grid": grid})[0].shape)
print(told(ogs.set_ops, "compiled"))
session = make(open_model)
handler = signal.getsignal(signal.SIGINT)
def interrupt(*args):
    signal.raise_signal(signal.SIGINT)
    return core_grid_sample(*args)
core_grid_sample, sampler.grid_sample = sampler.grid_sample, interrupt
try:
    session.run(None, {"X": X, "grid": grid})
    print("nothing")
except KeyboardInterrupt:
    print("KeyboardInterrupt")
print(signal.getsignal(signal.SIGINT) is handler)
"""
    why = "compiled ops cannot be registered: this system needs a linker for it: install cc, or the package ziglang, "
    why += "which links for every machine: pip install ziglang"
    if unavailable_reason().startswith("Numba"):
        why = unavailable_reason()
    answers = [
        f"python | {why}",
        f"Python op | {why}",
        "(1, 2, 64, 64)",
        f"ImportError: compiled ops cannot be had: {why}",
    ]
    assert on("Windows", script, first=NO_LINKER) == [*answers, "KeyboardInterrupt", "True"]


def test_on_macos_there_are_threads() -> None:
    """Without a list of processors, and without an account of memory."""
    script = """
import os
from ort_gridsample.reference import memory
print(ogs.get_num_threads() == os.cpu_count(), memory.available())
print(ogs.grid_sample(np.ones((2, 8, 64, 64), np.float32), np.zeros((2, 64, 64, 2), np.float32)).shape)
print(attempt(make(open_model), X, grid))
"""
    assert on("macOS", script) == ["True None", "(2, 8, 64, 64)", "(1, 2, 64, 64)"]
