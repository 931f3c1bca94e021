"""Time whole models of real size, and the part of them that this package replaces.

This is ``python -m tests.benchmarks.models [MODEL.onnx ...]``. By default, it measures six models
of public releases by name. tests/exported/large.py exports them with random weights; with
``--folder``, only those that are not in the folder. The inputs of another model are in MODEL.npz
next to it, or random.

One op that is many times as fast changes little in a model that spends its time in convolutions.
Therefore the same models are in two tables: whole runs, and only the nodes that are replaced.
"""

import argparse
import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from ort_gridsample import spec
from ort_gridsample.cli import bench
from ort_gridsample.cli.arguments import magnitude, positive
from ort_gridsample.cli.output import table
from ort_gridsample.progress import progress_bar
from ort_gridsample.session.session import InferenceSession

from . import opening, report, suite
from . import run as runner
from .backends import BACKENDS as ALL_BACKENDS
from .backends import (
    CORES,
    NATIVE,
    PROVIDER,
    Answers,
    Backend,
    Call,
    kept,
    openvino_call,
    session_call,
)
from .suite import Arrays, Case, network_case, times

#: Model of tests/exported/large.py -> what a reader calls it, and its variant.
MODELS = {
    "rt_detr_v2_r50": ("RT-DETR v2", "ResNet-50"),
    "deformable_detr_r50": ("Deformable DETR", "ResNet-50"),
    "raft_large": ("RAFT", "large, 12 updates"),
    "voxelmorph_3d": ("VoxelMorph", "7 integration steps"),
    "liveportrait_warp": ("LivePortrait warp", "without the decoder"),
    "mask2former_swin_t": ("Mask2Former", "Swin-T"),
}
#: Model -> the axis of its queries. Equal scores, up to rounding errors, select them in any order.
UNORDERED = {"rt_detr_v2_r50": 1}
#: Model -> how far outputs may differ. Mask2Former masks pixels by a threshold, so that a rounding
#: error can remove a pixel from an attention.
TOLERANCES = {"mask2former_swin_t": 5e-3}
SCRIPT = opening.EXPORTED / "large.py"
#: The modules that the script needs.
NEEDED_TO_EXPORT = ("torch", "transformers", "kornia", "onnxscript")

OURS = "ort_gridsample"
#: The number of runs in a profile. These models are slow.
PROFILED_RUNS = 3
#: The options of ``--quick``.
QUICK = {"rounds": 1, "seconds": 0.0}


@dataclass(frozen=True)
class Sampling:
    """The nodes of a model that this package replaces, in onnxruntime's profiles.

    Attributes:
        samplers: the number of GridSample and AffineGrid nodes.
        ops: the number of compiled ops that replace the nodes.
        fused: the number of nodes around the samplers that are fused into the ops.
        shares: side -> the seconds of these nodes, or of the ops that replace them.
        totals: side -> the seconds of all nodes.
    """

    samplers: int
    ops: int
    fused: int
    shares: Mapping[str, float]
    totals: Mapping[str, float]


@dataclass
class Measured:
    """What was measured of a model.

    Attributes:
        name: what a reader calls the model.
        variant: the size of the model, or an empty text.
        inputs: the shapes of its inputs.
        result: the times of whole runs, and the differences of outputs.
        sampling: the part that is replaced.
        opening: side -> the seconds to open it.
    """

    name: str
    variant: str
    inputs: Sequence[tuple[int, ...]]
    result: runner.Result
    sampling: Sampling
    opening: Mapping[str, float] = field(default_factory=dict)


def _pytorch(name: str, case: Case, feeds: Arrays, threads: int) -> Call:
    """Return a function that runs the module of an exported model."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    module = _large_models().seeded(name).module
    tensors = [torch.from_numpy(array) for array in feeds.values()]

    def call() -> Answers:
        with torch.inference_mode():
            outputs = module(*tensors)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        return [output.numpy() for output in outputs]

    return call


def _large_models() -> Any:
    """Return the module of tests/exported/large.py, which imports its neighbours by name."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        return importlib.import_module(SCRIPT.stem)
    finally:
        sys.path.pop(0)


def _openvino(case: Case, feeds: Arrays, threads: int) -> Call:
    import openvino

    try:
        model = openvino.Core().read_model(case.model())
    except RuntimeError as error:
        # The last line before the summary is about the operator.
        (*_, line) = str(error).partition("Summary:")[0].split("\n\n")[0].splitlines()
        raise NotImplementedError(line) from None
    arrays = {port.any_name: feeds[port.any_name] for port in model.inputs}
    return openvino_call(model, arrays, threads)


def backends_for(name: str) -> list[Backend]:
    """Return the installed backends that are timed on a model, the native one first."""
    by_name = {backend.name: backend for backend in ALL_BACKENDS}
    backends = [
        by_name[NATIVE],
        Backend(OURS, session_call, core=CORES[0], networks=True),
        by_name[PROVIDER],
        Backend("OpenVINO", _openvino, needs="openvino", networks=True),
    ]
    if name in MODELS and can_export():
        pytorch = Backend("PyTorch", partial(_pytorch, name), needs="torch", networks=True)
        backends.append(pytorch)
    return [backend for backend in backends if backend.installed]


def can_export() -> bool:
    """Whether all that the script of the models needs is installed."""
    return all(map(find_spec, NEEDED_TO_EXPORT))


def measure_model(
    path: Path, backends: Sequence[Backend], arguments: argparse.Namespace
) -> Measured:
    """Time the runs of a model, its nodes under the profiler, and its opening."""
    threads = arguments.threads
    rounds = arguments.rounds
    name, variant = MODELS.get(path.stem, (path.stem, ""))
    inputs = path.with_suffix(".npz")
    stored = inputs if inputs.exists() else None
    case = replace(
        network_case(name, partial(onnx.load, path), stored),
        unordered_axis=UNORDERED.get(path.stem),
        tolerance=TOLERANCES.get(path.stem, suite.TOLERANCES["float32"]),
    )
    feeds = case.feeds()
    result = runner.run_case(case, backends, threads, rounds, arguments.seconds)
    sides = [side for side in bench.SIDES if side != NATIVE or NATIVE in result.timings]
    medians = opening.alternating_seconds(path, rounds, sides)
    return Measured(
        name=name,
        variant=variant,
        inputs=[array.shape for array in feeds.values()],
        result=result,
        sampling=sampling_of(path, feeds, threads, sides),
        opening=dict(zip(sides, medians, strict=True)),
    )


def sampling_of(path: Path, feeds: Arrays, threads: int, sides: Sequence[str]) -> Sampling:
    """Return the part of a model that this package replaces, on ``sides`` of the profiler."""
    session = InferenceSession(path, providers=["CPUExecutionProvider"])
    replaced = [placement for placement in session.placements if placement.is_ours]
    samplers = {
        placement.record.name
        for placement in replaced
        if placement.record.operator in spec.OPERATORS
    }
    names = {placement.record.name for placement in replaced}
    names.update(*(placement.fused for placement in replaced))
    profiles = {
        side: bench.profile(
            bench.SIDES[side], str(path), feeds, threads, warm_up=0, n_runs=PROFILED_RUNS
        )
        for side in sides
    }
    return Sampling(
        samplers=len(samplers),
        ops=len(names.intersection(profiles[OURS])),
        fused=len(names) - len(samplers),
        shares={
            side: sum(node.seconds for name, node in nodes.items() if name in names)
            for side, nodes in profiles.items()
        },
        totals={
            side: sum(node.seconds for node in nodes.values()) for side, nodes in profiles.items()
        },
    )


def models_text(models: Sequence[Measured]) -> str:
    """Return a table of the models, and of the nodes in them that are replaced."""
    rows: list[Sequence[object]] = [("", "", "inputs", "samplers", "ops", "fused with them")]
    for model in models:
        inputs = ", ".join(map(times, dict.fromkeys(model.inputs)))
        nodes = model.sampling
        rows.append((model.name, model.variant, inputs, nodes.samplers, nodes.ops, nodes.fused))
    return f"Models, with random weights\n{table(rows, indent='  ')}"


def runs_text(models: Sequence[Measured]) -> str:
    """Return a table of whole runs."""
    names = list(dict.fromkeys(name for model in models for name in model.result.timings))
    names.sort(key=lambda name: name != NATIVE)
    if not names:
        return "No backend ran a model"
    title = f"The whole model: ms a run ± half the distance of the quartiles, × as fast as {NATIVE}"
    rows = [list(report.row(model.result, names)) for model in models]
    return f"{title}\n{table([['', *names], *rows], indent='  ')}"


def sampling_text(models: Sequence[Measured]) -> str:
    """Return a table of the nodes that are replaced."""
    rows: list[Sequence[object]] = [("", NATIVE, "of all nodes", OURS)]
    for model in models:
        sampling = model.sampling
        # Nodes of functions have other names in a profile, and no time.
        native_seconds = sampling.shares.get(NATIVE, 0.0)
        our_seconds = sampling.shares[OURS]
        native = share = ours = report.NONE
        if our_seconds:
            ours = _milliseconds(our_seconds)
        if native_seconds:
            native = _milliseconds(native_seconds)
            share = f"{native_seconds / sampling.totals[NATIVE]:.1%}"
        if our_seconds and native_seconds:
            ours += f" {report.digits(native_seconds / our_seconds)}×"
        rows.append((model.name, native, share, ours))
    title = "Only the samplers and the nodes fused with them, in onnxruntime's profile: ms a run"
    return f"{title}\n{table(rows, indent='  ')}"


def opening_text(models: Sequence[Measured]) -> str:
    """Return a table of the times to open the models."""
    rows: list[Sequence[object]] = [("", NATIVE, OURS, "difference")]
    for model in models:
        native = model.opening.get(NATIVE)
        ours = model.opening[OURS]
        cells = (report.NONE, _milliseconds(ours), report.NONE)
        if native is not None:
            cells = (_milliseconds(native), _milliseconds(ours), _milliseconds(ours - native))
        rows.append((model.name, *cells))
    return f"Opening a session, with kernels on disk: ms\n{table(rows, indent='  ')}"


def differences_text(models: Sequence[Measured]) -> str:
    """Return a table of the differences of outputs."""
    names = list(dict.fromkeys(name for model in models for name in model.result.differences))
    rows = []
    for model in models:
        # Without native outputs, the differences are those to another backend.
        differences = model.result.differences if NATIVE in model.result.timings else {}
        cells = [f"{differences[name]:.1e}" if name in differences else "" for name in names]
        rows.append([model.name, *(cell or report.NONE for cell in cells)])
    title = f"Outputs: the largest difference to {NATIVE}'s, relative to the largest value"
    return f"{title}\n{table([['', *names], *rows], indent='  ')}"


def _milliseconds(seconds: float) -> str:
    return report.digits(seconds * 1e3)


def _is_exported(path: Path) -> bool:
    """Whether a model and its inputs, which are written last, are there."""
    return path.exists() and path.with_suffix(".npz").exists()


def export_missing(paths: Sequence[Path]) -> None:
    """Export the models of which a file is missing.

    Raises:
        subprocess.CalledProcessError: an export failed.
    """
    for path in paths:
        if not _is_exported(path):
            print(f"exporting {path}", file=sys.stderr, flush=True)
            command = [sys.executable, "-W", "ignore", str(SCRIPT), "--into", str(path.parent)]
            subprocess.run([*command, path.stem], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def _existing_or_temporary(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. The exit status is 1 if an output is wrong, and 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.models", description=__doc__)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    folder_help = "read the named models from here, and export here what is missing"
    parser.add_argument("--folder", type=Path, help=folder_help)
    parser.add_argument(
        "--only", type=re.compile, default="", metavar="REGEX", help="only models of these names"
    )
    parser.add_argument("--list", action="store_true", help="print the names, and stop")
    parser.add_argument(
        "--backends",
        type=re.compile,
        default="",
        metavar="REGEX",
        help="only backends whose names match (default: all that are installed)",
    )
    parser.add_argument("--quick", action="store_true", help="one round")
    threads_help = "for each backend (default: its own choice)"
    parser.add_argument("--threads", type=positive, default=0, metavar="N", help=threads_help)
    parser.add_argument(
        "--rounds", type=positive, default=5, metavar="N", help="at most (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=magnitude, default=5.0, metavar="S", help="a model, about (default: 5)"
    )
    arguments = parser.parse_args(argv)
    if arguments.quick:
        parser.set_defaults(**QUICK)
        arguments = parser.parse_args(argv)
    names = [name for name in MODELS if arguments.only.search(name)]
    for path in arguments.models:
        if not path.is_file():
            parser.error(f"{path} is not a file")
    if not names:
        parser.error(f"argument --only: {arguments.only.pattern!r} matches no model of --list")
    if arguments.list:
        print("\n".join(names))
        return 0
    measured: list[Measured] = []
    interrupted = False
    with _existing_or_temporary(arguments.folder) as folder, kept():
        paths = arguments.models or [folder / f"{name}.onnx" for name in names]
        if not arguments.models:
            _check_exporter(parser, paths)
            export_missing(paths)
        try:
            with progress_bar("models", len(paths)) as begin:
                for path in paths:
                    begin(path.stem)
                    backends = [
                        backend
                        for backend in backends_for(path.stem)
                        if arguments.backends.search(backend.name)
                    ]
                    measured.append(measure_model(path, backends, arguments))
        except KeyboardInterrupt:
            interrupted = True
    parts = [report.environment_text(arguments.threads)]
    if measured:
        parts += [models_text(measured), runs_text(measured), sampling_text(measured)]
        parts += [opening_text(measured), differences_text(measured)]
    print("\n\n".join([*parts, *report.reasons_text([model.result for model in measured])]))
    return 130 if interrupted else int(any(model.result.wrong for model in measured))


def _check_exporter(parser: argparse.ArgumentParser, paths: Sequence[Path]) -> None:
    """Refuse the command line if a model is missing that cannot be exported here."""
    missing = [path.stem for path in paths if not _is_exported(path)]
    if missing and not can_export():
        requirements = "pip install -r tests/exported/requirements.txt"
        parser.error(f"exporting {', '.join(missing)} needs more packages: {requirements}")


if __name__ == "__main__":
    onnxruntime.set_default_logger_severity(4)  # errors are part of the report
    sys.exit(main())
