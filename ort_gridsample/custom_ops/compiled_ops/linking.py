"""The machines that shared libraries are linked for, and the linkers that can do it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import GridSampleError
from ...kernels import target
from ...system.process import interpreter

#: What to install if there is no linker.
REMEDY = "the package ziglang, which links for every machine: pip install ziglang"


@dataclass(frozen=True)
class Machine:
    """A machine that shared libraries are linked for.

    Attributes:
        system: the system, as in ``sys.platform``.
        processor: the processor, as in :data:`ort_gridsample.kernels.target.processor`.
        triple: LLVM's name of the machine.
        zig_target: Zig's name of the machine.
        cpus: the processor levels that a library of compiled ops can have variants for.
    """

    system: str
    processor: str
    triple: str
    zig_target: str
    cpus: tuple[str, ...] = ("generic",)

    @property
    def is_this(self) -> bool:
        """Whether this process runs on such a machine."""
        return self.system == target.system and self.processor == target.processor


_X86_LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")

MACHINES = {
    "x86_64-linux": Machine(
        system="linux",
        processor="x86_64",
        triple="x86_64-unknown-linux-gnu",
        zig_target="x86_64-linux-gnu.2.17",
        cpus=_X86_LEVELS,
    ),
    "aarch64-linux": Machine(
        system="linux",
        processor="aarch64",
        triple="aarch64-unknown-linux-gnu",
        zig_target="aarch64-linux-gnu.2.17",
    ),
    "x86_64-windows": Machine(
        system="win32",
        processor="x86_64",
        triple="x86_64-pc-windows-gnu",
        zig_target="x86_64-windows-gnu",
        cpus=_X86_LEVELS,
    ),
    "aarch64-macos": Machine(
        system="darwin",
        processor="aarch64",
        triple="arm64-apple-macosx11.0.0",
        zig_target="aarch64-macos.11.0",
    ),
}


def linker(machine: Machine | None, where: str) -> list[str]:
    """Return the command that links a shared library.

    Args:
        machine: the machine that the library is for, or None for the one of this process.
        where: the place that an error names.

    Raises:
        GridSampleError: neither the package ziglang nor, for this machine, ``cc`` is installed. In
            a frozen program, ziglang cannot be run.
    """
    python = interpreter()
    if python is not None and importlib.util.find_spec("ziglang") is not None:
        zig_target = [] if machine is None else ["-target", machine.zig_target]
        return [python, "-m", "ziglang", "cc", *zig_target, "-shared", "-s"]
    if machine is not None and not machine.is_this:
        raise GridSampleError(where, "linker", "not installed", REMEDY)
    cc = shutil.which("cc")
    if cc is None:
        raise GridSampleError(where, "linker", "not installed", f"cc, or {REMEDY}")
    return [cc, "-shared", "-s"]


def run(command: Sequence[str], task: str, standard_input: str = "") -> None:
    """Run a command.

    Args:
        task: what the command does, for an error.
        standard_input: the text that the command reads.

    Raises:
        RuntimeError: the command failed. The text has the name of the ``task`` and what the command
            printed.
    """
    process = subprocess.run(
        command,
        input=standard_input,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},  # libraries must not depend on a random seed
    )
    if process.returncode:
        output = process.stderr or process.stdout
        raise RuntimeError(f"{task} failed: {output.strip()}")
