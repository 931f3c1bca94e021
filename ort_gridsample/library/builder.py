"""Build a library of the compiled ops, for this machine or another, which any program can register.

The code for each level of processors is compiled by separate processes, whose Numba has that level
as its target (:mod:`.emission`). Libraries that are built at once, for different systems with the
same processor, share the work of Numba. A linker, the system's or that of the wheel ``ziglang``,
links their object files.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from os import PathLike
from pathlib import Path

import onnx

from .. import spec, versions
from ..custom_ops.compiled_ops.catalog import OPS
from ..custom_ops.compiled_ops.linking import MACHINES, Machine, linker, run
from ..custom_ops.provider import ep_api
from ..detection.find import find_matches
from ..detection.node_checks import fused_nodes
from ..errors import GridSampleError
from ..functions.validation import format_choices
from ..graph.files import Model, atomic_write, read_model, translate_errors
from ..graph.scope import Scope, scopes_of
from ..inference.types import Inference
from ..kernels import library_file, library_trailer
from ..kernels import target as this_machine
from ..kernels.tap_plans import COMPILED_MODES
from ..system.cpus import available_cpus
from ..system.process import interpreter

#: The place that errors name.
WHERE = "library"

#: The oldest Numba whose LLVM reads the assembly of :mod:`.emission`.
OLDEST_NUMBA = "0.62"


@dataclass(frozen=True)
class Cpu:
    """A level of processors.

    Attributes:
        level: its number.
        features: the features that it has, of those that the kernels pass to
            :func:`ort_gridsample.kernels.target.has`.
        host_features: the features by which the processor of this machine is recognized as one.
    """

    level: int
    features: tuple[str, ...] = ()
    host_features: tuple[str, ...] = ()


_V2_FEATURES = ("sse3", "ssse3", "sse4.1", "sse4.2", "cx16", "popcnt", "sahf")
#: The features of level 3 for which there are other kernels.
_V3_KERNEL_FEATURES = ("avx2", "fma", "f16c")
_V3_FEATURES = (*_V3_KERNEL_FEATURES, "bmi", "bmi2", "lzcnt", "movbe")
_V4_FEATURES = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

#: The levels of processors by name.
CPUS = {
    "x86-64-v2": Cpu(level=2, host_features=_V2_FEATURES),
    "x86-64-v3": Cpu(level=3, features=_V3_KERNEL_FEATURES, host_features=_V3_FEATURES),
    "x86-64-v4": Cpu(
        level=4,
        features=(*_V3_KERNEL_FEATURES, "avx512f", "avx512vl"),
        host_features=(*_V3_KERNEL_FEATURES, *_V4_FEATURES),
    ),
    "generic": Cpu(level=1),
}
#: The name for the highest level that the processor of this machine has.
NATIVE = "native"

#: The number of processes that compile for one level of processors.
_SHARES = 2

#: The options of the linker, by system.
_LINKER_OPTIONS = {
    "linux": [
        "-lm",
        "-Wl,-z,noexecstack",
        "-Wl,--build-id=none",
        "-Wl,-z,defs",
        # Sessions run the execution provider's kernels after onnxruntime has closed the library.
        "-Wl,-z,nodelete",
        "-Wl,-soname,libort_gridsample.so",
    ],
    "win32": [],
    "darwin": ["-Wl,-install_name,@rpath/libort_gridsample.dylib"],
}


@dataclass(frozen=True)
class Task:
    """What a process compiles: a share of the code of a variant, or a library's entry.

    Attributes:
        system: the system that functions are compiled for, as in ``sys.platform``.
        processor: the processor that they are compiled for.
        triple: LLVM's name of this machine.
        folders: the folders for object files, by LLVM's name of the machine that they are for.
        cpu: LLVM's name of the processor.
        level: its level.
        features: the features for which the kernels are chosen.
        needed: the types and modes that the library has, or None for all.
        release: the release of this package.
        share: the index of the share.
        shares: the number of shares.
        variants: the symbols of the variants, for the library's entry; otherwise empty.
        messages: the entry's error messages.
    """

    system: str
    processor: str
    triple: str
    folders: dict[str, str]
    cpu: str
    level: int
    features: tuple[str, ...] = ()
    needed: dict[str, list[str]] | None = None
    release: str = ""
    share: int = 0
    shares: int = 1
    variants: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()


def build_library(
    path: str | PathLike[str],
    cpu: str | Sequence[str] = (),
    target: str | None = None,
    models: Model | Iterable[Model] | None = None,
) -> str:
    """Write a library of the compiled ops that any onnxruntime registers, from any language.

    This needs Numba and a linker: the wheel ``ziglang``, or ``cc`` for this machine.

    >>> ogs.build_library("libort_gridsample.so")    # doctest: +SKIP

    The same arguments give the same bytes.

    Args:
        path: the path of the library. An existing file is replaced.
        cpu: the processors that the library has a variant for, of :data:`CPUS`, or ``"native"``.
            When it is registered, the library chooses the best variant for the processor. By
            default it has all variants of the target.
        target: the machine that the library is for, of :data:`MACHINES`; by default, this one.
        models: a model as :func:`inspect_model` accepts it, or several. The library has only what
            they need. None selects everything.

    Returns:
        The release that built the library, its machine and its processors.

    Raises:
        GridSampleError: there is no such target or processor, a model is invalid, ``models`` is
            empty, there is no linker, or the program is frozen.
        RuntimeError: the compilation or the linker failed. The text has its output.
        ImportError: Numba is not installed, or is older than :data:`OLDEST_NUMBA`.
        OSError: the library cannot be written.
    """
    (description,) = build_libraries({_target_name(target): path}, cpu, models)
    return description


def build_libraries(
    paths: Mapping[str, str | PathLike[str]],
    cpu: str | Sequence[str] = (),
    models: Model | Iterable[Model] | None = None,
) -> list[str]:
    """Write libraries for several machines. All of them are compiled before one is written.

    Args:
        paths: the names of the machines, of :data:`MACHINES`, and the paths of their libraries.
        cpu: as for :func:`build_library`. Every machine must have such processors.
        models: as for :func:`build_library`.

    Returns:
        What :func:`build_library` returns, for each library.

    Raises:
        GridSampleError: see :func:`build_library`.
        RuntimeError: see :func:`build_library`.
        ImportError: see :func:`build_library`.
        OSError: see :func:`build_library`.
    """
    python = _interpreter()
    release = vars(sys.modules[__name__.partition(".")[0]])["__version__"]
    names = (cpu,) if isinstance(cpu, str) else tuple(cpu)
    machines = {target: MACHINES[_target_name(target)] for target in paths}
    cpus = {target: _cpus(machine, names) for target, machine in machines.items()}
    _check_numba()
    needed = _needed(models)
    with tempfile.TemporaryDirectory() as temporary:
        # Before anything is compiled, as there may be no linker.
        commands = {target: linker(machine, WHERE) for target, machine in machines.items()}
        folders = {target: Path(temporary) / target for target in machines}
        for folder in folders.values():
            folder.mkdir()
        tasks: list[Task] = []
        for processor in {machine.processor: None for machine in machines.values()}:
            targets = [name for name in machines if machines[name].processor == processor]
            shared = {machines[name].triple: str(folders[name]) for name in targets}
            tasks += _variant_tasks(processor, cpus[targets[0]], shared, needed, release)
        for target, machine in machines.items():
            tasks.append(_entry_task(machine, cpus[target], str(folders[target]), release))
        with ThreadPoolExecutor(available_cpus()) as pool:
            list(pool.map(lambda task: _compile(python, task), tasks))
        libraries = {
            target: _link(machine, commands[target], folders[target])
            for target, machine in machines.items()
        }
    return [
        _write(Path(path), libraries[target], release, machines[target], cpus[target])
        for target, path in paths.items()
    ]


def _write(path: Path, library: bytes, release: str, machine: Machine, cpus: Sequence[str]) -> str:
    """Write a library with its trailer to ``path``; return its description."""
    machine_name = f"{machine.processor}-{machine.system}"
    content = library_trailer.append_trailer(library, release, machine_name, cpus)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
        temporary.chmod(0o755)
    library_file.validate.cache_clear()
    return library_file.validate(path, any_machine=True)


def _interpreter() -> str:
    """Return the executable of the processes that compile.

    Raises:
        GridSampleError: this program is frozen, or embeds Python.
    """
    python = interpreter()
    if python is None:
        found = f"{sys.executable!r}, which is no Python interpreter"
        expected = "an installed Python, because other processes compile the library"
        raise GridSampleError(WHERE, "this program", found, expected)
    return python


# --- Arguments ---


def _target_name(target: str | None) -> str:
    """Return the name of the machine ``target``, or of this machine if it is None."""
    if target is None:
        target = f"{this_machine.processor}-{this_machine.system}"
        for name, machine in MACHINES.items():
            if machine.is_this:
                target = name
    if target not in MACHINES:
        raise GridSampleError(WHERE, "target", repr(target), format_choices(MACHINES))
    return target


def _cpus(machine: Machine, names: tuple[str, ...]) -> list[str]:
    """Return the processors of these ``names``, or all of ``machine``, the lowest level first."""
    cpus = set()
    for name in names or machine.cpus:
        if name == NATIVE and machine.is_this:
            name = _native_cpu(machine)
        if name not in machine.cpus:
            expected = [*machine.cpus, NATIVE] if machine.is_this else machine.cpus
            raise GridSampleError(WHERE, "cpu", repr(name), format_choices(expected))
        cpus.add(name)
    return sorted(cpus)


def _native_cpu(machine: Machine) -> str:
    """Return the highest level of ``machine`` that the processor of this machine has.

    Raises:
        GridSampleError: it has none of them.
    """
    for name in reversed(machine.cpus):
        if this_machine.has(*CPUS[name].host_features):
            return name
    found = f"{NATIVE!r}, but this processor has fewer features than the lowest of these levels"
    raise GridSampleError(WHERE, "cpu", found, format_choices(machine.cpus))


def _check_numba() -> None:
    if importlib.util.find_spec("numba") is None:
        raise ImportError("a library is compiled by Numba: pip install 'ort-gridsample[jit]'")
    version = metadata.version("numba")
    if not versions.is_at_least(version, OLDEST_NUMBA):
        remedy = f"{version} is installed: pip install -U numba"
        raise ImportError(f"a library needs numba {OLDEST_NUMBA} or newer, and {remedy}")


def _needed(models: Model | Iterable[Model] | None) -> dict[str, list[str]] | None:
    """Return the types and modes of the nodes of ``models``, as :meth:`.Op.needs_state` takes them.

    None if ``models`` is None.

    Raises:
        GridSampleError: ``models`` is empty, or a model is invalid.
    """
    if models is None:
        return None
    needed: dict[str, set[str]] = {}
    if isinstance(models, onnx.ModelProto | bytes | str | PathLike):
        models = [models]
    models = list(models)
    if not models:
        raise GridSampleError(WHERE, "models", "empty", "a model, or None for a library of all ops")
    for model in models:
        proto = read_model(model)
        with translate_errors(proto):
            all_scopes = scopes_of(proto)
            matches = find_matches(proto, all_scopes, None, with_reasons=False)
            for name, values in _needed_by_fused_nodes(proto, all_scopes):
                needed.setdefault(name, set()).update(values)
        for record in (match.record for match in matches):
            for name, types in spec.newest(record.operator).types.items():
                known_types = record.types.get(name, ())
                is_known = known_types and all(value.type for value in record.inputs[name])
                needed.setdefault(name, set()).update(known_types if is_known else types)
            if record.operator == "GridSample":
                modes = [record.mode] if record.mode in COMPILED_MODES else COMPILED_MODES
                needed.setdefault("mode", set()).update(modes)
    return {name: sorted(values) for name, values in needed.items()}


def _needed_by_fused_nodes(
    model: onnx.ModelProto, all_scopes: Sequence[Scope]
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield what the GridSamples need that a session fused with their grids.

    Other ways to read a model refuse these nodes, because they lack the nodes of the grid, which
    the op does not need.

    Yields:
        Pairs of the name of an input, or ``mode``, and types or modes.
    """
    nodes = [*fused_nodes(all_scopes)]
    names: dict[int, list[str]] = {}
    for scope, node in nodes:
        names.setdefault(id(scope), []).extend(node.input)
    inference = Inference(model, all_scopes, None, names)
    for scope, node in nodes:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        has_programs = "coordinates" in attributes
        for op in OPS:
            if op.op_type == node.op_type and has_programs == ("scalars" in op.inputs):
                for index, (name, value) in enumerate(zip(op.inputs, node.input, strict=False)):
                    known_type = inference.value_in_all_calls(scope, value).type
                    yield name, [known_type] if known_type else [row[index] for row in op.types]
        yield "mode", [attributes["mode"].s.decode() if "mode" in attributes else "linear"]


# --- Compilation ---


def _variant_tasks(
    processor: str,
    cpus: Sequence[str],
    folders: dict[str, str],
    needed: dict[str, list[str]] | None,
    release: str,
) -> list[Task]:
    """Return the tasks that compile the variants, for all machines with this processor.

    Functions are always compiled for Linux. Their code does not depend on the system until object
    files are written, and so a library has the same bytes whether it is built with others or not.
    """
    compiled_for = MACHINES[f"{processor}-linux"]
    return [
        Task(
            system=compiled_for.system,
            processor=compiled_for.processor,
            triple=compiled_for.triple,
            folders=folders,
            cpu=name,
            level=CPUS[name].level,
            features=CPUS[name].features,
            needed=needed,
            release=release,
            share=share,
            shares=_SHARES,
        )
        for name in cpus
        for share in range(_SHARES)
    ]


def _entry_task(machine: Machine, cpus: Sequence[str], folder: str, release: str) -> Task:
    """Return the task that compiles the library's entry, which runs on all processors."""
    oldest = versions.OLDEST["onnxruntime"]
    prefix = f"ort_gridsample {release}"
    messages = (
        f"{prefix}: this processor is none of {format_choices(cpus)}, "
        "which the library is built for",
        f"{prefix}: onnxruntime is older than {oldest}",
        f"{prefix}: onnxruntime is older than {ep_api.OLDEST}, the first release with execution "
        "providers from libraries that have kernels: patch the model, and register this library "
        "as one of custom ops",
    )
    return Task(
        system=machine.system,
        processor=machine.processor,
        triple=machine.triple,
        folders={machine.triple: folder},
        cpu="x86-64" if machine.processor == "x86_64" else "generic",
        level=0,
        variants=tuple(f"ort_gridsample_v{CPUS[name].level}" for name in cpus),
        messages=messages,
    )


def _compile(python: str, task: Task) -> None:
    """Run :func:`.emission.main` in a process whose kernels are those for the task's processor.

    Args:
        python: the executable of the process.
    """
    root = __package__.partition(".")[0]
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from {root}.kernels import target; "
        f"target.choose({task.system!r}, {task.processor!r}, {task.features!r}); "
        f"from {__package__}.emission import main; main(sys.stdin.read())"
    )
    run([python, "-c", code], f"compiling {task.cpu}", json.dumps(asdict(task)))


def _link(machine: Machine, command: Sequence[str], folder: Path) -> bytes:
    """Link the object files in ``folder``, and return the library."""
    objects = sorted(str(path) for path in folder.glob("*.o"))
    library = folder / f"library{library_trailer.SUFFIXES[machine.system]}"
    options = _LINKER_OPTIONS[machine.system]
    run([*command, "-o", str(library), *objects, *options], "linking")
    content = library.read_bytes()
    return _without_time(content) if machine.system == "win32" else content


def _without_time(library: bytes) -> bytes:
    """Return a library for Windows without the time at which it was linked.

    The same input gives the same bytes then. zig's linker has no option for it.
    """
    header = int.from_bytes(library[0x3C:0x40], "little")
    time = header + 8  # after the signature, the machine and the number of sections
    return library[:time] + bytes(4) + library[time + 4 :]
