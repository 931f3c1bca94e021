"""The machines that shared libraries are linked for, and the linkers that can do it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import GridSampleError
from ...kernels import target as this

#: What to install where there is no linker.
REMEDY = "the package ziglang, which links for every machine: pip install ziglang"


@dataclass(frozen=True)
class Machine:
    """A machine that shared libraries are linked for.

    Attributes:
        system: the system, as in ``sys.platform``.
        machine: the processor, as in :data:`ort_gridsample.kernels.target.machine`.
        triple: LLVM's name of the machine.
        zig_target: Zig's name of the machine.
        cpus: the processor levels that a library of compiled ops can have variants for.
    """

    system: str
    machine: str
    triple: str
    zig_target: str
    cpus: tuple[str, ...] = ("generic",)

    @property
    def is_this(self) -> bool:
        """Whether this process runs on such a machine."""
        return (self.system, self.machine) == (this.system, this.machine)


_X86_LEVELS = "x86-64-v2", "x86-64-v3", "x86-64-v4"
MACHINES = {
    "x86_64-linux": Machine("linux", "x86_64", "x86_64-unknown-linux-gnu", "x86_64-linux-gnu.2.17", _X86_LEVELS),
    "aarch64-linux": Machine("linux", "aarch64", "aarch64-unknown-linux-gnu", "aarch64-linux-gnu.2.17"),
    "x86_64-windows": Machine("win32", "x86_64", "x86_64-pc-windows-gnu", "x86_64-windows-gnu", _X86_LEVELS),
    "aarch64-macos": Machine("darwin", "aarch64", "arm64-apple-macosx11.0.0", "aarch64-macos.11.0"),
}

#: The suffix of shared libraries, by system.
SUFFIXES = {"linux": ".so", "darwin": ".dylib", "win32": ".dll"}


def linker(machine: Machine | None, where: str) -> list[str]:
    """The command that links a shared library for ``machine``; None: for the machine that this process runs on.

    Raises:
        GridSampleError: neither the package ziglang nor, for this machine, ``cc`` is installed. ``where`` is the place
            that the error names.
    """
    if importlib.util.find_spec("ziglang") is not None:
        target = [] if machine is None else ["-target", machine.zig_target]
        return [sys.executable, "-m", "ziglang", "cc", *target, "-shared", "-s"]
    cc = shutil.which("cc")
    is_this = machine is None or machine.is_this
    if not is_this or cc is None:
        raise GridSampleError(where, "linker", "not there", f"cc, or {REMEDY}" if is_this else REMEDY)
    return [cc, "-shared", "-s"]


def run(command: Sequence[str], task: str, standard_input: str = "") -> None:
    """Run a command.

    Raises:
        RuntimeError: the command failed. The text has the name of the ``task`` and what the command printed.
    """
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, input=standard_input, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{task} failed: {(done.stderr or done.stdout).strip()}")
