"""Quantize models of deformable attention, with and without the nodes that keep it one op.

This is ``python -m tests.benchmarks.quantization [MODEL.onnx ...]``. By default, it quantizes small
exported models and one of real size, statically (QDQ) and dynamically. It excludes the nodes of
``coordinate_nodes(model)``, with which attention stays one op, or those of
``coordinate_nodes(model, attention=False)``. The table has the number of attentions that are one
op, the relative error of the first output, and the CPU time of a run with one thread. The errors
are means over random inputs other than those of the calibration. The sessions run in turns; the
times are medians.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import ort_gridsample as ogs
from ort_gridsample.graph.files import read_model

from . import networks

EXPORTED = Path(__file__).parent.parent / "exported"
DEFAULT_MODELS = ("deformable_detr", "rt_detr_v2", "mask2former")
CALIBRATION_INPUTS = 4
TEST_INPUTS = 8
ROUNDS = 15
#: The least CPU time of a turn, in which a session may run several times.
TURN_SECONDS = 0.03

Feeds = dict[str, np.ndarray[Any, Any]]
#: Whether ``coordinate_nodes`` lists the nodes of deformable attention -> its name in the table.
LISTS: Mapping[bool, str] = {True: "one op", False: "separate"}


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, inputs: Sequence[Feeds]) -> None:
        self._inputs: Iterator[Feeds] = iter(inputs)

    def get_next(self) -> Feeds | None:
        return next(self._inputs, None)


def methods(inputs: Sequence[Feeds]) -> dict[str, Callable[..., None]]:
    """Return the functions that quantize a file into another one, by their names in the table."""
    functions: dict[str, Callable[..., None]] = {}
    for suffix, per_channel in (("", False), (" per channel", True)):

        def quantize_to_qdq(
            source: Path, target: Path, *, per_channel: bool = per_channel, **options: Any
        ) -> None:
            quantize_static(source, target, _Reader(inputs), per_channel=per_channel, **options)

        functions[f"QDQ{suffix}"] = quantize_to_qdq
        functions[f"dynamic{suffix}"] = partial(quantize_dynamic, per_channel=per_channel)
    return functions


def random_inputs(model: Path, count: int, seed: int) -> list[Feeds]:
    """Return ``count`` random inputs of ``model``, whose inputs are floats of known shapes."""
    generator = np.random.default_rng(seed)
    shapes = {}
    for value in read_model(model).graph.input:
        dims = value.type.tensor_type.shape.dim
        shapes[value.name] = tuple(dim.dim_value or 1 for dim in dims)
    return [
        {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        for _ in range(count)
    ]


def open_session(model: Path) -> ogs.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ogs.InferenceSession(model, options)


def attentions_in(session: ogs.InferenceSession) -> int:
    """Return the number of deformable attentions that are one op."""
    return sum(
        placement.record.operator == "DeformableAttention" for placement in session.placements
    )


def mean_error(
    session: ogs.InferenceSession, float_session: ogs.InferenceSession, inputs: Sequence[Feeds]
) -> float:
    """Return the mean relative error of the first output."""
    errors = []
    for feeds in inputs:
        (output, *_) = session.run(None, feeds)
        (expected, *_) = float_session.run(None, feeds)
        errors.append(float(np.linalg.norm(output - expected) / np.linalg.norm(expected)))
    return statistics.mean(errors)


def cpu_milliseconds(
    sessions: Mapping[str, ogs.InferenceSession], feeds: Feeds
) -> dict[str, float]:
    """Return the median CPU time of a run of each session; the sessions run in turns."""
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(ROUNDS):
        for name, session in sessions.items():
            start = time.thread_time()
            runs = 0
            while runs == 0 or time.thread_time() - start < TURN_SECONDS:
                session.run(None, feeds)
                runs += 1
            times[name].append((time.thread_time() - start) / runs * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(model: Path, folder: Path) -> None:
    """Print the rows of one model."""
    prepared = folder / "prepared.onnx"
    with ogs.quantization_sessions():
        quant_pre_process(model, prepared, skip_symbolic_shape=True)
    calibration = random_inputs(model, CALIBRATION_INPUTS, seed=0)
    inputs = random_inputs(model, TEST_INPUTS, seed=1)
    sessions = {"float32": open_session(model)}
    refusals: dict[str, str] = {}
    for method, quantize in methods(calibration).items():
        for attention, label in LISTS.items():
            name = f"{method}, {label}"
            quantized = folder / f"{name}.onnx"
            excluded = ogs.coordinate_nodes(prepared, attention=attention)
            try:
                with ogs.quantization_sessions():
                    quantize(prepared, quantized, nodes_to_exclude=excluded)
                sessions[name] = open_session(quantized)
            except Exception as error:
                refusals[name] = str(error).splitlines()[0]
    times = cpu_milliseconds(sessions, inputs[0])
    for name, session in sessions.items():
        mean = mean_error(session, sessions["float32"], inputs)
        row = f"{attentions_in(session):4}  {mean:8.4f}  {times[name]:8.3f}"
        print(f"  {name:30}{row}", flush=True)
    for name, refusal in refusals.items():
        print(f"  {name:30}  refused by onnxruntime: {refusal}", flush=True)


def write_default_models(folder: Path) -> list[Path]:
    """Return the paths of the default models, of which some are written to ``folder``."""
    model = networks.deformable_attention()
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    path = folder / "6 × deformable attention.onnx"
    onnx.save(model, path)
    return [*(EXPORTED / f"{name}.onnx" for name in DEFAULT_MODELS), path]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.quantization", description=__doc__
    )
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # quantization logs a lot at the root
    print(f"{'':32}{'ops':>4}  {'error':>8}  {'CPU ms':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in arguments.models or write_default_models(folder):
            print(model.stem)
            measure(model, folder)


if __name__ == "__main__":
    main()
