"""The functions that the page calls: inspect, patch, draw inputs, compare.

JavaScript calls :func:`call` with the name of a function and its arguments in JSON. Files are in
Pyodide's file system. Arrays and models cross the border as bytes, by the other functions below.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from page_runtime import Answer, WebRuntime

from ort_gridsample.cli import inputs, output_comparison
from ort_gridsample.cli.failures import sentence
from ort_gridsample.cli.inspect import Row, row_json
from ort_gridsample.detection.find import records_of
from ort_gridsample.detection.records import NodeRecord, columns
from ort_gridsample.dialects.registry import target_names
from ort_gridsample.errors import GridSampleError
from ort_gridsample.graph.external_data import locations
from ort_gridsample.graph.files import read_model, translate_errors
from ort_gridsample.graph.runtimes import RUNTIMES
from ort_gridsample.graph.scope import opset_of
from ort_gridsample.inference.runtime_probe import OutputType, RuntimeProbe
from ort_gridsample.interop.evaluator import reference_ops
from ort_gridsample.rewriting.patch import patch_to

#: Where a model shall run -> the target of the patch, and the runtime whose form it needs.
CHOICES: dict[str, tuple[str, str | None]] = {
    "onnxruntime in any language: CPU, CUDA, mobile, web": ("primitives", None),
    "onnxruntime in Python, with ort_gridsample (fastest)": ("ort_gridsample", None),
    "onnxruntime with WebGPU": ("ai.onnx-2d", "webgpu"),
    "onnxruntime with WebGPU, basic operators only": ("primitives", "onnxruntime-webgpu"),
    "onnxruntime with DirectML": ("ai.onnx-2d", "directml"),
    "onnxruntime with CoreML": ("ai.onnx-2d", "coreml"),
    "onnxruntime with QNN (Qualcomm)": ("ai.onnx-2d", "qnn"),
    "TensorRT, deformable attention as its plugin": ("tensorrt-plugins", "tensorrt"),
    "TensorRT, deformable attention as GridSamples": ("ai.onnx-2d", "tensorrt"),
    "OpenVINO": ("ai.onnx-2d", "openvino"),
    "OpenCV, tract, tinygrad": ("primitives", None),
    "ncnn": ("ai.onnx", "ncnn"),
    "ncnn, without its GridSample": ("primitives", "ncnn"),
    "GPUs and NPUs without Gather": ("primitives", "gather-free"),
    "MNN": ("primitives", "mnn"),
    "RKNN": ("primitives", "rknn"),
    "TVM": ("primitives", "tvm"),
    "IREE": ("primitives", "iree"),
    "LiteRT, by onnx2tf": ("primitives", "litert"),
    "TensorFlow, by onnx2tf": ("primitives", "onnx2tf"),
    "PyTorch, by onnx2torch": ("primitives", "onnx2torch"),
    "a conversion to float16, by onnxconverter-common": ("primitives", "onnxconverter-common"),
    "a runtime with all standard operators": ("ai.onnx", None),
}
#: The largest difference of two answers that agree, relative to the largest value, as in verify.
TOLERANCE = 1e-5
_RUNTIME = WebRuntime()
#: Names of inputs and of expected outputs in the files of numpy.savez that the project stores.
_INPUT_PREFIX = "in."
_OUTPUT_PREFIX = "out."


def _read_bfloat16_as_float32() -> None:
    """Let onnx read constants of bfloat16 as float32, which has all their values."""
    to_array = numpy_helper.to_array

    def to_array_without_bfloat16(tensor: onnx.TensorProto, *arguments: Any) -> np.ndarray:
        is_bfloat16 = tensor.data_type == onnx.TensorProto.BFLOAT16
        if not is_bfloat16 or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return to_array(tensor, *arguments)
        bits = tensor.raw_data or np.array(tensor.int32_data, "<u2").tobytes()
        wide = np.frombuffer(bits, "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(tuple(tensor.dims))

    numpy_helper.to_array = to_array_without_bfloat16


if not hasattr(ml_dtypes, "__version__"):  # the replacement
    _read_bfloat16_as_float32()


# --- The border to JavaScript ---


def call(name: str, arguments: str) -> str:
    """Call a function of :data:`FUNCTIONS`.

    Args:
        name: its name.
        arguments: its arguments, a JSON object.

    Returns:
        A JSON object: the "result" or the sentence of an "error", and the keys of "questions" for
        onnxruntime-web. With questions, the result is not final.
    """
    _RUNTIME.questions.clear()
    reply: dict[str, Any] = {}
    try:
        reply["result"] = FUNCTIONS[name](**json.loads(arguments))
    except (GridSampleError, OSError, MemoryError, ImportError) as error:
        reply["error"] = sentence(error)
    except Exception as error:
        reply["error"] = f"internal error: {sentence(error)}"
    reply["questions"] = list(_RUNTIME.questions)
    return json.dumps(_finite(reply))


def _finite(content: Any) -> Any:
    """Return ``content`` for JSON, with text for numbers that JSON lacks."""
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return content


def question_model(key: str) -> bytes:
    """Return the model of an open question."""
    return _RUNTIME.questions[key].model


def question_properties(key: str) -> str:
    """Return whether the graph is optimized and the number of runs of a question, in JSON."""
    question = _RUNTIME.questions[key]
    n_runs = -1 if question.feeds is None else len(question.feeds)
    return json.dumps({"optimized": question.optimized, "n_runs": n_runs})


def question_feeds(key: str, run: int) -> list[tuple[str, str, list[int], Any]]:
    """Return the inputs of a run: names, types, shapes, and bytes (a list for strings)."""
    feeds = _RUNTIME.questions[key].feeds
    assert feeds is not None
    return [_leaving(name, array) for name, array in feeds[run].items()]


def answer_error(key: str, error: str) -> None:
    """Keep the error of onnxruntime-web as the answer to a question."""
    _RUNTIME.answers[key] = Answer(error=error)


def answer_types(key: str, types: str) -> None:
    """Keep the types of a model's outputs: names, types and shapes, in JSON."""
    answer = Answer(types=[OutputType(*output) for output in json.loads(types)])
    _RUNTIME.answers[key] = answer


def answer_runs(key: str, runs: list[list[tuple[str, list[int], Any]]]) -> None:
    """Keep the outputs of each run: types, shapes, and bytes (a list for strings)."""
    answer = Answer(runs=[[_entering(*output) for output in outputs] for outputs in runs])
    _RUNTIME.answers[key] = answer


def _leaving(name: str, array: np.ndarray) -> tuple[str, str, list[int], Any]:
    """Return an array for JavaScript."""
    shape = list(array.shape)
    if array.dtype.kind in "OU":
        return name, "string", shape, [str(text) for text in array.ravel()]
    return name, str(array.dtype), shape, np.ascontiguousarray(array).tobytes()


def _entering(type_name: str, shape: list[int], data: Any) -> np.ndarray:
    """Return an array from JavaScript."""
    if type_name == "string":
        return np.array(list(data), object).reshape(shape)
    return np.frombuffer(bytes(data), np.dtype(type_name)).reshape(shape).copy()


# --- Inspect and patch ---


def inspect(path: str, runtime: str) -> dict[str, Any]:
    """Return the nodes of a model, and a sentence on them.

    Args:
        path: the model.
        runtime: the name of the runtime, for the sentence.
    """
    model = read_model(path)
    with translate_errors(model):
        records = records_of(model, RuntimeProbe(_RUNTIME))
    external = sorted({entry.value for entry in locations(model)})
    return {
        "verdict": verdict(records, runtime),
        "rows": _grouped(records),
        "records": [row_json(Row(record)) for record in records],
        "opset": opset_of(model),
        "domains": _foreign_domains(model),
        "external": external,
        "missing": [name for name in external if not (Path(path).parent / name).exists()],
        "inputs": _open_inputs(model),
    }


def verdict(records: list[NodeRecord], runtime: str) -> str:
    """Return one sentence on what the runtime does with the nodes of a model."""
    if not records:
        return (
            "This model has no GridSample, AffineGrid or deformable attention in any known "
            "spelling: there is nothing to patch."
        )
    n_nodes = len(records)
    n_native = sum(record.native for record in records)
    nodes = "1 node samples" if n_nodes == 1 else f"{n_nodes} nodes sample"
    start = f"{nodes} on a grid. {runtime} runs"
    if n_native == n_nodes:
        return f"{start} {'it' if n_nodes == 1 else 'all of them'} by itself."
    reasons = list(dict.fromkeys(record.reason for record in records if not record.native))
    count = "none of them" if n_native == 0 else f"{n_native} of them"
    if n_nodes == 1:
        return f"{nodes} on a grid. {runtime} does not run it: {reasons[0]}."
    if len(reasons) == 1:
        return f"{start} {count} by itself: {reasons[0]}."
    return f"{start} {count} by itself, for {len(reasons)} reasons."


def _grouped(records: list[NodeRecord]) -> list[dict[str, Any]]:
    """Return the rows of the table. Nodes that differ in their names only share a row."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for index, record in enumerate(records):
        cells = columns(record)
        name = cells.pop("node")
        key = (record.graph, *cells.values(), record.reason)
        row = rows.setdefault(
            key,
            {
                "graph": record.graph,
                "cells": cells,
                "native": record.native,
                "reason": record.reason,
                "nodes": [],
            },
        )
        row["nodes"].append({"name": name, "record": index})
    return list(rows.values())


def _foreign_domains(model: onnx.ModelProto) -> list[str]:
    """Return the domains of operators that neither onnx nor the model's functions define."""
    known = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}
    known |= {function.domain for function in model.functions}
    used = {node.domain for node in model.graph.node}
    return sorted(used - known)


def _open_inputs(model: onnx.ModelProto) -> list[dict[str, Any]]:
    """Return the inputs of a model with the shapes that random inputs have."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    first, others = inputs.OPEN_LENGTHS
    values = []
    for value in model.graph.input:
        if value.name in initializers:
            continue
        tensor = value.type.tensor_type
        shape = []
        for axis, dim in enumerate(tensor.shape.dim):
            default = first if axis == 0 else others
            shape.append(dim.dim_value if dim.HasField("dim_value") else default)
        is_open = not all(dim.HasField("dim_value") for dim in tensor.shape.dim)
        type_name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
        values.append({"name": value.name, "type": type_name, "shape": shape, "is_open": is_open})
    return values


def patch(
    path: str,
    patched_path: str,
    target: str,
    functions: bool,
    opset: int | None,
    for_runtime: str | None,
) -> dict[str, Any]:
    """Write a patched model; return what changed, and the command that does the same.

    The external data of a model stays in its files.
    """
    model = read_model(path)
    opset_before = opset_of(model)
    report = patch_to(
        model,
        nodes="all",
        target=target,
        functions=functions,
        probe=RuntimeProbe(_RUNTIME),
        opset=opset,
        for_runtime=for_runtime,
    )
    content = model.SerializeToString()
    if not _RUNTIME.questions:
        Path(patched_path).write_bytes(content)
    return {
        "bytes_before": Path(path).stat().st_size,
        "bytes": len(content),
        "opset_before": opset_before,
        "opset": opset_of(model),
        "replaced": len(report.replaced),
        "kept": [record.label for record in report.kept],
        "sha256": hashlib.sha256(content).hexdigest(),
        "command": _command(path, patched_path, target, functions, opset, for_runtime),
    }


def _command(
    path: str,
    patched_path: str,
    target: str,
    functions: bool,
    opset: int | None,
    for_runtime: str | None,
) -> str:
    """Return the command that writes the same file."""
    words = ["ort-gridsample", "patch", Path(path).name, Path(patched_path).name]
    if target != target_names()[0]:
        words += ["--target", target]
    if functions:
        words.append("--functions")
    if opset is not None:
        words += ["--opset", str(opset)]
    if for_runtime is not None:
        words += ["--for", for_runtime]
    return shlex.join(words)


def choices() -> dict[str, Any]:
    """Return the runtimes that the page offers, all targets, and all runtimes of primitives."""
    offered = [
        {
            "name": name,
            "target": target,
            "for_runtime": for_runtime,
            "why": RUNTIMES[for_runtime].why if for_runtime else "",
        }
        for name, (target, for_runtime) in CHOICES.items()
    ]
    return {
        "choices": offered,
        "targets": target_names(),
        "runtimes": list(RUNTIMES),
        "newest_opset": onnx.defs.onnx_opset_version(),
    }


# --- Before and after ---

#: The inputs of the comparison, and the outputs of the models that ran, by "before", "after",
#: "evaluator" and "stored".
_FEEDS: dict[str, np.ndarray] = {}
_OUTPUTS: dict[str, dict[str, np.ndarray]] = {}


def draw_inputs(path: str, shapes: dict[str, list[int]], arrays: str | None) -> dict[str, Any]:
    """Make the inputs of a model, and forget all outputs.

    Args:
        path: the model.
        shapes: the shapes of random inputs.
        arrays: a file of numpy.savez with the inputs by name, with or without the start ``in.``;
            outputs that are expected begin with ``out.``. None for random inputs.
    """
    _FEEDS.clear()
    _OUTPUTS.clear()
    model = read_model(path)
    stored = {} if arrays is None else _stored_arrays(arrays)
    generator = np.random.default_rng(0)
    for value in _open_inputs(model):
        name = value["name"]
        array = stored.get(_INPUT_PREFIX + name, stored.get(name))
        if array is None:
            shape = tuple(shapes.get(name, value["shape"]))
            array = inputs.random_array(generator, name, f"tensor({value['type']})", shape)
        _FEEDS[name] = array
    expected = {
        name.removeprefix(_OUTPUT_PREFIX): array
        for name, array in stored.items()
        if name.startswith(_OUTPUT_PREFIX)
    }
    if expected:
        _OUTPUTS["stored"] = expected
    used = {name for name in stored if name.removeprefix(_INPUT_PREFIX) in _FEEDS}
    return {
        "shapes": {name: list(array.shape) for name, array in _FEEDS.items()},
        "n_stored": len(used),
        "has_expected": bool(expected),
    }


def _stored_arrays(path: str) -> dict[str, np.ndarray]:
    """Return the arrays of a file of numpy.savez.

    Raises:
        GridSampleError: the file is another one.
    """
    name = Path(path).name
    try:
        archive = np.load(io.BytesIO(Path(path).read_bytes()), allow_pickle=False)
        return {key: archive[key] for key in archive.files}
    except Exception as error:
        expected = "arrays saved by numpy.savez, by the names of the inputs"
        raise GridSampleError(name, "the file", f"not readable ({error})", expected) from None


def input_arrays() -> list[tuple[str, str, list[int], Any]]:
    """Return the inputs of the comparison, for JavaScript."""
    return [_leaving(name, array) for name, array in _FEEDS.items()]


def keep_outputs(side: str, outputs: list[tuple[str, str, list[int], Any]]) -> None:
    """Keep the outputs of a model."""
    _OUTPUTS[side] = {
        name: _entering(type_name, shape, data) for name, type_name, shape, data in outputs
    }


def evaluate(path: str) -> dict[str, Any]:
    """Run a model in onnx's evaluator, with this package's operators, and keep its outputs."""
    from onnx import inliner
    from onnx.reference import ReferenceEvaluator

    model = inliner.inline_local_functions(read_model(path, external_data=True))
    try:
        evaluator = ReferenceEvaluator(model, new_ops=reference_ops())
        results = evaluator.run(None, dict(_FEEDS))
    except Exception as error:
        return {"error": sentence(error)}
    names = [value.name for value in model.graph.output]
    _OUTPUTS["evaluator"] = dict(zip(names, map(np.asarray, results), strict=True))
    return {}


def compare(first: str, second: str) -> list[dict[str, Any]]:
    """Compare the outputs of two sides by name.

    Infinities and NaN that are equal in both count as equal.
    """
    outputs_a = _OUTPUTS[first]
    outputs_b = {name: _OUTPUTS[second][name] for name in outputs_a}
    return [
        {
            "output": result.name,
            "type": result.type,
            "shape": list(result.shape),
            "difference": result.difference,
            "of": result.magnitude,
            "agrees": result.agrees,
        }
        for result in output_comparison.compare_outputs(outputs_a, outputs_b, TOLERANCE)
    ]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "choices": choices,
    "compare": compare,
    "draw_inputs": draw_inputs,
    "evaluate": evaluate,
    "inspect": inspect,
    "patch": patch,
}
