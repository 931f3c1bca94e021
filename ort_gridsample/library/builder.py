"""Builds a library of the compiled ops, for this machine or another, which any program can register.

Each level of processors is compiled by processes of its own, whose Numba has that level as its target
(:mod:`.compiled_ops.emission`); a linker, the system's or that of the wheel ``ziglang``, makes a library of it all.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any

from .. import spec, versions
from ..custom_ops.compiled_ops import library_file
from ..custom_ops.compiled_ops.linking import MACHINES, SUFFIXES, Machine, linker, run
from ..detection.find import records_of
from ..errors import GridSampleError
from ..functions.validation import listed
from ..graph.files import Model, explaining_invalid, read_model, written_whole
from ..kernels import target as this
from ..reference.taps import COMPILED_MODES
from ..reference.threads import available_cpus
from ..rewriting.unfusing import unfused

WHERE = "library"

#: The oldest Numba whose LLVM reads the texts of :mod:`.compiled_ops.emission`.
NUMBA = "0.62"


_V3 = "avx2", "fma", "f16c"
#: The processors, with the level of each, its features among those that :func:`ort_gridsample.kernels.target.has` is
#: called with, and the features of this machine that show it. Every 64-bit ARM converts float16.
CPUS: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    "x86-64-v2": (2, (), ()),
    "x86-64-v3": (3, _V3, (*_V3, "bmi", "bmi2", "lzcnt", "movbe")),
    "x86-64-v4": (4, _V3, (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
    "generic": (1, ("f16c",), ()),
}
TARGETS = MACHINES
#: The best of a machine's processors that this one is.
NATIVE = "native"


def build_library(
    path: str | PathLike[str], cpu: str | Sequence[str] = (), target: str | None = None, models: Iterable[Model] = ()
) -> str:
    """Write a library of the compiled ops that any onnxruntime registers, from any language.

    It needs Numba, and a linker: the wheel ``ziglang``, or for this machine ``cc``. The same input makes the same
    bytes.

    >>> ogs.build_library("libort_gridsample.so")    # doctest: +SKIP

    Args:
        path: where to write it, replaced if it exists.
        cpu: the processors that it has a variant for, of :data:`CPUS`, or ``"native"``: it takes the best that the
            processor is by which it is registered. None named: all of the target's.
        target: the machine that it is for, of :data:`TARGETS`; this one where None.
        models: as :func:`inspect_model` takes them: the library has what they need, and no more; all where there is
            none.

    Returns:
        What the library says of itself.

    Raises:
        GridSampleError: there is no such target or processor, a model is none, or there is no linker.
        ImportError: there is no Numba, or one older than :data:`NUMBA`.
        OSError: it cannot be written.
    """
    release = vars(sys.modules[__name__.partition(".")[0]])["__version__"]
    machine = _machine(target)
    cpus = _cpus(machine, (cpu,) if isinstance(cpu, str) else tuple(cpu))
    if importlib.util.find_spec("numba") is None:
        raise ImportError("a library is compiled by Numba: pip install 'ort-gridsample[jit]'")
    if not versions.at_least(found := metadata.version("numba"), NUMBA):
        raise ImportError(f"a library needs numba {NUMBA} or newer, and {found} is installed: pip install -U numba")
    wanted, path = _wanted(models), Path(path)
    with tempfile.TemporaryDirectory() as folder:
        link = linker(machine, WHERE)
        sentences = (
            f"ort_gridsample {release}: this processor is none of {listed(cpus)}, which the library is built for",
            f"ort_gridsample {release}: onnxruntime is older than {versions.OLDEST['onnxruntime']}",
        )
        common: dict[str, Any] = {"triple": machine.triple, "folder": folder, "wanted": wanted, "variants": None}
        shared = [{"share": share, "shares": _SHARES} for share in range(_SHARES)]
        tasks = [(name, {**common, "cpu": name, "level": CPUS[name][0], **each}) for name in cpus for each in shared]
        least = "x86-64" if machine.machine == "x86_64" else "generic"
        variants = [f"ort_gridsample_v{CPUS[name][0]}" for name in cpus]
        tasks.append(("", {**common, "cpu": least, "level": 0, "variants": variants, "sentences": sentences}))
        with ThreadPoolExecutor(available_cpus()) as pool:
            list(pool.map(lambda task: _compile(machine, *task), tasks))
        objects = sorted(str(each) for each in Path(folder).glob("*.o"))
        made = Path(folder) / f"library{SUFFIXES[machine.system]}"
        run([*link, "-o", str(made), *objects, *_FLAGS[machine.system]], "linking")
        content = library_file.ended(made.read_bytes(), release, f"{machine.machine}-{machine.system}", cpus)
    with written_whole(path) as beside:
        beside.write_bytes(content)
        beside.chmod(0o755)
    library_file.checked.cache_clear()
    return library_file.checked(path, anywhere=True)


#: The processes that compile for one processor.
_SHARES = 2

#: What the linker is told, by system.
_FLAGS = {
    "linux": ["-lm", "-Wl,-z,noexecstack", "-Wl,--build-id=none", "-Wl,-z,defs", "-Wl,-soname,libort_gridsample.so"],
    "win32": [],
    "darwin": ["-Wl,-install_name,@rpath/libort_gridsample.dylib"],
}


def _machine(target: str | None) -> Machine:
    if target is None:
        target = next((name for name, each in TARGETS.items() if each.is_this), f"{this.machine}-{this.system}")
    if target not in TARGETS:
        raise GridSampleError(WHERE, "target", repr(target), listed(TARGETS))
    return TARGETS[target]


def _cpus(machine: Machine, names: tuple[str, ...]) -> list[str]:
    """The processors of these ``names``, the least first."""
    found = set()
    for name in names or machine.cpus:
        if name == NATIVE and machine.is_this:
            name = next(each for each in machine.cpus[::-1] if this.has(*CPUS[each][2]))
        if name not in machine.cpus:
            raise GridSampleError(WHERE, "cpu", repr(name), listed((*machine.cpus, *([NATIVE] * machine.is_this))))
        found.add(name)
    return sorted(found)


def _wanted(models: Iterable[Model]) -> dict[str, list[str]] | None:
    """The types of the inputs and the modes of the nodes of ``models``, as :meth:`.Op.serves` takes them."""
    wanted: dict[str, set[str]] = {}
    models = list(models)
    for model in models:
        proto = read_model(model)
        with explaining_invalid(proto):
            records = records_of(unfused(proto))
        for record in records:
            for name, types in spec.newest(record.operator).types.items():
                wanted.setdefault(name, set()).update(record.types.get(name) or types)
            if record.operator == "GridSample":
                modes = [record.mode] if record.mode in COMPILED_MODES else COMPILED_MODES
                wanted.setdefault("mode", set()).update(modes)
    return {name: sorted(each) for name, each in wanted.items()} if models else None


def _compile(machine: Machine, cpu: str, task: dict[str, Any]) -> None:
    """Let a process do a ``task`` of :mod:`.compiled_ops.emission`, with functions chosen for this ``cpu``."""
    features = CPUS[cpu][1] if cpu else ()
    root = __package__.partition(".")[0]
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from {root}.core import target; "
        f"target.choose({machine.system!r}, {machine.machine!r}, {features!r}); "
        f"from {root}.runtime.compiled_ops.emission import main; main(sys.stdin.read())"
    )
    run([sys.executable, "-c", code], f"compiling {cpu}", json.dumps(task))
