"""PyTorch's two exporters, and every way of this package to run the models that they write."""

from __future__ import annotations

import gc
import io
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn
from torch.onnx._internal.exporter import _registration

import ort_gridsample as ogs
from ort_gridsample.cli import main
from ort_gridsample.custom_ops.compiled_ops import registry
from ort_gridsample.session import installed_runtime
from support import paths
from support.inferred_shapes import wrong_values

#: The dynamic axes of each input by its name.
DynamicAxes = Mapping[str, Sequence[int]]
EXPORTERS = ("torchscript", "dynamo")
#: The opset of the exports: the default one of the dynamo exporter.
OPSET = 20
#: The newest opset whose operators onnxruntime and onnx's version converter have.
NEWEST_OPSET = 25
#: The oldest opset of primitives.
OLDEST_OPSET = 11
#: How far an output may be from PyTorch's, relative to the largest element. The libraries round
#: coordinates differently, by a few float32 steps of a coordinate of up to 14 pixels.
TOLERANCE = 1e-4
#: Why models cannot be converted to opset 11: operators that it lacks in this form.
NOT_IN_OPSET_11 = (
    "Einsum node .* opset is 11, expected at least 12",
    "Split node .* split is computed .*, expected a constant before opset 13",
    "Pad node .* mode is 'wrap', expected a value that opset 18 has",
    "(Min|Max) node .* is int64, expected a type that opset 11 has",
)


@contextmanager
def once_listed_functions() -> Iterator[None]:
    """List ONNX Script's functions once. Each export by dynamo spends half of its time on them."""
    apis = _registration.onnxscript_apis
    with patch.object(apis, "get_torchlib_ops", _torchlib_functions, create=True):
        yield


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect no garbage during an export, which takes a fifth of its time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@cache
def _torchlib_functions() -> object:
    return _GET_TORCHLIB_OPS()


_GET_TORCHLIB_OPS = _registration.onnxscript_apis.get_torchlib_ops


def export(
    module: nn.Module,
    inputs: Sequence[Tensor],
    axes: DynamicAxes,
    exporter: str,
    *,
    opset: int = OPSET,
    translate: bool = False,
) -> onnx.ModelProto:
    """Return the model that an exporter writes, with all that it writes.

    Args:
        module: the module.
        inputs: its arguments.
        axes: the names of the arguments, and their dynamic axes.
        exporter: one of :data:`EXPORTERS`.
        opset: the opset of the model.
        translate: whether the dynamo exporter uses this package's translations.

    Raises:
        Exception: the exporter refuses the module.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        # The exporters print graphs that they refuse.
        stack.enter_context(redirect_stdout(io.StringIO()))
        if exporter == "torchscript":
            return _exported_by_torchscript(module, inputs, axes, opset)
        stack.enter_context(once_listed_functions())
        stack.enter_context(without_garbage_collection())
        return _exported_by_dynamo(module, inputs, axes, opset, translate)


def _exported_by_torchscript(
    module: nn.Module, inputs: Sequence[Tensor], axes: DynamicAxes, opset: int
) -> onnx.ModelProto:
    file = io.BytesIO()
    torch.onnx.export(
        module,
        tuple(inputs),
        file,
        dynamo=False,
        opset_version=opset,
        input_names=list(axes),
        dynamic_axes={
            name: {axis: f"{name}{axis}" if axis else "batch" for axis in input_axes}
            for name, input_axes in axes.items()
        },
    )
    return onnx.load_from_string(file.getvalue())


def _exported_by_dynamo(
    module: nn.Module, inputs: Sequence[Tensor], axes: DynamicAxes, opset: int, translate: bool
) -> onnx.ModelProto:
    program = torch.onnx.export(
        module,
        tuple(inputs),
        dynamo=True,
        opset_version=opset,
        input_names=list(axes),
        dynamic_shapes=[
            dict.fromkeys(input_axes, torch.export.Dim.DYNAMIC) for input_axes in axes.values()
        ],
        custom_translation_table=ogs.torch_translation_table() if translate else None,
        verbose=False,
    )
    return program.model_proto


@dataclass(frozen=True)
class Run:
    """Inputs of a module, and its outputs in PyTorch."""

    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]


def expected_run(module: nn.Module, inputs: Sequence[Tensor]) -> Run:
    """Run a module in PyTorch."""
    with torch.no_grad():
        outputs = module(*inputs)
    if isinstance(outputs, Tensor):
        outputs = (outputs,)
    return Run([value.numpy() for value in inputs], [value.numpy() for value in outputs])


def _open_primitives(model: onnx.ModelProto, opset: int) -> onnxruntime.InferenceSession:
    return paths.open_native(ogs.patch_model(model, target="primitives", opset=opset))


def open_newest_primitives(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Open the primitives of a model at the newest opset, in onnxruntime alone."""
    return _open_primitives(model, NEWEST_OPSET)


def open_oldest_primitives(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Open the primitives of a model at opset 11, in onnxruntime alone."""
    return _open_primitives(model, OLDEST_OPSET)


#: The name of a way -> a function that opens a model's session.
WAYS: dict[str, paths.Open] = {
    "session": ogs.InferenceSession,
    "session of all nodes": paths.open_session,
    "file": paths.open_patched_file,
    "newest primitives": open_newest_primitives,
    "oldest primitives": open_oldest_primitives,
}
if not registry.unavailable_reason():
    WAYS["compiled session"] = paths.open_compiled
    WAYS["compiled file"] = paths.open_compiled_file
    if paths.HAS_PROVIDER:
        WAYS["provider"] = paths.open_provider


def difference_from_pytorch(session: onnxruntime.InferenceSession, runs: Iterable[Run]) -> str:
    """Run a session; return how its outputs differ from PyTorch's, or an empty string."""
    names = [value.name for value in session.get_inputs()]
    output_names = [value.name for value in session.get_outputs()]
    for run in runs:
        outputs = session.run(None, dict(zip(names, run.inputs, strict=True)))
        for name, output, expected in zip(output_names, outputs, run.outputs, strict=True):
            if output.shape != expected.shape:
                return f"{name} is of shape {output.shape}, expected {expected.shape}"
            scale = np.abs(expected).max(initial=0, where=np.isfinite(expected))
            if not np.allclose(output, expected, rtol=0, atol=TOLERANCE * scale, equal_nan=True):
                difference = np.abs(output - expected).max()
                return f"{name} differs by {difference}, expected at most {TOLERANCE * scale}"
    return ""


def failures(
    model: onnx.ModelProto, runs: Sequence[Run], folder: Path, *, random: bool = True
) -> dict[str, str]:
    """Run an exported model in all ways.

    Args:
        model: the exported model.
        runs: inputs and PyTorch's outputs.
        folder: an empty folder.
        random: whether ``verify`` draws random inputs, also of other lengths, or gets those of the
            first run.

    Returns:
        The ways that refuse the model or whose outputs are not PyTorch's, and what is wrong.
    """
    problems = {way: _problem(open_model, model, runs) for way, open_model in WAYS.items()}
    problems["verify"] = _verify_problem(model, None if random else runs[0], folder)
    problems["inspect"] = _inspect_problem(model)
    problems["inference"] = _inference_problem(model, runs)
    return {way: problem for way, problem in problems.items() if problem}


def without_opset_11(problems: Mapping[str, str]) -> dict[str, str]:
    """Return the problems without a refusal of opset 11 for a reason of :data:`NOT_IN_OPSET_11`."""
    return {
        way: problem
        for way, problem in problems.items()
        if way != "oldest primitives" or not _is_not_in_opset_11(problem)
    }


def _is_not_in_opset_11(problem: str) -> bool:
    return any(re.search(reason, problem) for reason in NOT_IN_OPSET_11)


def native_problem(model: onnx.ModelProto, runs: Sequence[Run]) -> str:
    """Return what is wrong in onnxruntime alone, where the fault is that of the exporter."""
    return _problem(paths.open_native, model, runs)


def _problem(open_model: paths.Open, model: onnx.ModelProto, runs: Sequence[Run]) -> str:
    try:
        return difference_from_pytorch(open_model(model), runs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _verify_problem(model: onnx.ModelProto, run: Run | None, folder: Path) -> str:
    """Compare a model with its primitives by the command ``verify``."""
    paths_of_models = [folder / "exported.onnx", folder / "primitives.onnx"]
    onnx.save(model, paths_of_models[0])
    try:
        onnx.save(ogs.patch_model(model, target="primitives"), paths_of_models[1])
    except ogs.GridSampleError as error:
        return str(error)
    options = ["--json", "--tolerance", str(TOLERANCE)]
    if run is not None:
        for value, array in zip(model.graph.input, run.inputs, strict=True):
            np.save(folder / f"{value.name}.npy", array)
            options += ["--input", f"{value.name}={folder / value.name}.npy"]
    with redirect_stdout(io.StringIO()) as stdout, redirect_stderr(io.StringIO()) as stderr:
        status = main(["verify", *map(str, paths_of_models), *options])
    if status:
        return f"status {status}, expected 0: {stdout.getvalue()}{stderr.getvalue()}"
    comparison = json.loads(stdout.getvalue())
    way = comparison["B"]["way"]
    if way != "onnxruntime":
        return f"the primitives ran in {way}, expected onnxruntime alone"
    return comparison["note"]


def _inspect_problem(model: onnx.ModelProto) -> str:
    """Return the errors of the records of ``inspect_model``."""
    records = ogs.inspect_model(model)
    if not records:
        return "no records, expected those of the samplers"
    return "; ".join(str(record.error) for record in records if record.error)


def _inference_problem(model: onnx.ModelProto, runs: Sequence[Run]) -> str:
    """Return the inferred types, ranks and lengths of values that the runs do not have."""
    names = [value.name for value in model.graph.input]
    lines = []
    for run in runs:
        feeds = dict(zip(names, run.inputs, strict=True))
        lines += wrong_values(model, feeds, installed_runtime.PROBE)
    return "; ".join(lines)
