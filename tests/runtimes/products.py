"""Time GridSamples as matrix products against those with Gather, in onnxruntime, LiteRT and ncnn.

This is ``python -m tests.runtimes.products``. Each runtime has one thread. The time is that of the
processor, the median of some runs.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx.parser

import ort_gridsample as ogs
from ort_gridsample.graph.runtimes import RuntimeName

from .environments import CACHE, environment
from .table import RUNTIMES
from .trials import Task
from .verdicts import judge
from .workers import Worker


@dataclass(frozen=True)
class Case:
    """A GridSample in linear mode, with zeros padding.

    Attributes:
        X: the shape of X, of one batch, because ncnn has no others.
        output: the spatial lengths of the output.
    """

    X: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def title(self) -> str:
        _, channels, *lengths = self.X
        image, output = ("·".join(map(str, axes)) for axes in (lengths, self.output))
        return f"{channels} channels of {image} → {output}"

    def task(self) -> Task:
        """Return the task of the standard node."""
        rng = np.random.default_rng(0)
        grid_shape = (1, *self.output, len(self.output))
        feed = {
            "X": rng.standard_normal(self.X, np.float32),
            "grid": rng.uniform(-1.1, 1.1, grid_shape).astype(np.float32),
        }
        Y = ogs.grid_sample(feed["X"], feed["grid"])
        values = {**{name: array.shape for name, array in feed.items()}, "Y": Y.shape}
        X_value, grid_value, Y_value = (
            f"float[{', '.join(map(str, shape))}] {name}" for name, shape in values.items()
        )
        is_planar = len(self.output) == 2
        opset, mode = (16, "bilinear") if is_planar else (20, "linear")
        model = onnx.parser.parse_model(f"""
            <ir_version: 9, opset_import: ["": {opset}]>
            sampling ({X_value}, {grid_value}) => ({Y_value}) {{
                [sample] Y = GridSample <mode = "{mode}"> (X, grid) }}""")
        return Task(model, (feed,), ({"Y": Y},))


CASES = (
    Case((1, 256, 80, 80), (300, 4)),
    Case((1, 256, 20, 20), (300, 4)),
    Case((1, 3, 64, 64), (64, 64)),
    Case((1, 8, 16, 16, 16), (10, 10, 10)),
)
#: The name of a runtime, and the form of its model. None: the standard node; "": the common form.
COLUMNS: tuple[tuple[str, RuntimeName | str | None], ...] = (
    ("onnxruntime", None),
    ("onnxruntime", ""),
    ("onnxruntime", "gather-free"),
    ("onnx2tf", "onnx2tf"),
    ("onnx2tf", "gather-free"),
    ("ncnn", None),
    ("ncnn", "ncnn"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. The exit status is 1 if an output of matrix products is not right."""
    parser = argparse.ArgumentParser(prog="python -m tests.runtimes.products", description=__doc__)
    parser.add_argument("--cache", type=Path, default=CACHE, metavar="DIR")
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="timed runs (20)")
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    is_right = True
    print("| GridSample | runtime | form | operators | ms | error |\n|---|---|---|---|---|---|")
    for case in CASES:
        for name, form in COLUMNS:
            runtime = RUNTIMES[name]
            command, _ = environment(runtime, options.cache.resolve())
            task = case.task()
            model = task.model
            if form is not None:
                model = ogs.patch_model(
                    task.model,
                    target="primitives",
                    for_runtime=form or None,  # type: ignore[arg-type]
                )
            task = Task(model, task.feeds, task.expected)
            with Worker(command, 300) as worker:
                answer = worker.ask(task, options.runs)
            verdict = judge(task, answer, 1e-5)
            n_operators = sum(node.op_type != "Constant" for node in model.graph.node)
            time = f"{answer.milliseconds:.2f}"
            error = f"{verdict.error:.0e}"
            if verdict.kind == "refused":
                time, error = "–", verdict.message[:60]
            is_right &= verdict.kind == "right" or form not in ("gather-free", "ncnn")
            text = {None: "GridSample", "": "primitives"}.get(form, f"primitives for {form}")
            cells = (case.title, runtime.title, text, str(n_operators), time, error)
            print("|", " | ".join(cells), "|", flush=True)
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
