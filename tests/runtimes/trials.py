"""The models that every runtime runs, with their inputs and expected outputs."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import onnx
import onnx.parser

import ort_gridsample as ogs
from ort_gridsample.graph.runtimes import RuntimeName

Arrays = dict[str, np.ndarray]

Form = Literal["standard", "primitives", "ai.onnx-2d"]  # "standard", or a target of patch_model
FORMS: tuple[Form, ...] = get_args(Form)
RANKS = (2, 3)
MODES = ("nearest", "linear", "cubic")
#: The groups that have the last form.
FLATTENED = ("3-D nearest", "3-D linear")
PADDING_MODES = ("zeros", "border", "reflection")
EXPORTED = Path(__file__).parents[1] / "exported"
#: The rank -> two pairs of the spatial lengths of X and of the output. Ties of nearest are exact on
#: axes of 4 pixels.
SHAPES = {
    2: (((4, 5), (6, 4)), ((7, 4), (3, 5))),
    3: (((3, 4, 5), (2, 4, 3)), ((4, 2, 6), (3, 3, 2))),
}
#: The rank -> the oldest opset of the ONNX domain that samples such images.
OPSETS = {2: 16, 3: 20}
_OPSET_16 = {"linear": "bilinear", "cubic": "bicubic"}
#: Normalized coordinates of ties, pixel centres and borders, and some outside. None is so close
#: to a tie that rounding matters.
SPECIAL = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, -1.3125, 1.375, 2.25, -3.6875)


@dataclass(frozen=True)
class Task:
    """A model, feeds for consecutive runs of one session, and the expected outputs."""

    model: onnx.ModelProto
    feeds: tuple[Arrays, ...]  # by name, in the model's order
    expected: tuple[Arrays, ...]


@dataclass(frozen=True)
class Trial:
    form: Form
    group: str  # "2-D linear", …, or "exported"
    detail: str  # padding mode and alignment, or the name of the exported model
    dynamic: bool = False  # whether shapes are unknown, and two are run

    @property
    def name(self) -> str:
        shapes = "" if self.group == "exported" else "-dynamic" if self.dynamic else "-static"
        return f"{self.form}-{self.group.replace('-D', 'd')}-{self.detail}{shapes}".replace(
            " ", "-"
        )

    def task(self, batch: int = 2, for_runtime: RuntimeName | None = None) -> Task:
        """Return the task, with ``batch`` images and ``for_runtime`` of ``patch_model``."""
        if self.group == "exported":
            task = _exported(self.detail)
        else:
            rank, mode = self.group.split("-D ")
            padding_mode, alignment = self.detail.split()
            task = _one_node(
                int(rank), mode, padding_mode, alignment == "aligned", self.dynamic, batch
            )
        if self.form == "standard":
            return task
        runtime = for_runtime if self.form == "primitives" else None
        return replace(
            task, model=ogs.patch_model(task.model, target=self.form, for_runtime=runtime)
        )


def forms(group: str) -> tuple[Form, ...]:
    return FORMS if group in FLATTENED else FORMS[:2]


def trials() -> Iterator[Trial]:
    for form, rank, mode, dynamic in itertools.product(FORMS, RANKS, MODES, (False, True)):
        if form not in forms(f"{rank}-D {mode}"):
            continue
        for padding_mode, alignment in itertools.product(PADDING_MODES, ("unaligned", "aligned")):
            yield Trial(form, f"{rank}-D {mode}", f"{padding_mode} {alignment}", dynamic)
    for form in forms("exported"):
        yield from (Trial(form, "exported", path.stem) for path in sorted(EXPORTED.glob("*.onnx")))


@functools.cache
def _exported(name: str) -> Task:
    model = onnx.load(EXPORTED / f"{name}.onnx")
    with np.load(EXPORTED / f"{name}.npz") as data:
        feeds = {value.name: data[f"in.{value.name}"] for value in model.graph.input}
        expected = {value.name: data[f"out.{value.name}"] for value in model.graph.output}
    return Task(model, (feeds,), (expected,))


@functools.cache
def _one_node(
    rank: int, mode: Any, padding_mode: Any, align_corners: bool, dynamic: bool, n: int
) -> Task:
    opset = OPSETS[rank]
    rng = np.random.default_rng(rank)
    feeds: list[dict[str, Any]] = []
    for lengths, outputs in SHAPES[rank][: 1 + dynamic]:
        X = rng.standard_normal((n, 3, *lengths), np.float32)
        grid = rng.uniform(-1.2, 1.2, (n, *outputs, rank)).astype(np.float32)
        grid = np.where(
            rng.random(grid.shape) < 0.5,
            grid,
            rng.choice(np.array(SPECIAL, np.float32), grid.shape),
        )
        feeds.append({"X": X, "grid": grid})
    before = ogs.get_core()
    ogs.set_core("numpy")
    try:
        expected = [
            {"Y": ogs.grid_sample(f["X"], f["grid"], mode, padding_mode, align_corners)}
            for f in feeds
        ]
    finally:
        ogs.set_core(before)
    mode = _OPSET_16.get(mode, mode) if opset < 20 else mode
    attributes = (
        f'mode = "{mode}", padding_mode = "{padding_mode}", align_corners = {align_corners:d}'
    )
    D = [f"D{i}" for i in range(rank)]
    D_out = [f"D{i}_out" for i in range(rank)]
    symbols: dict[str, Any] = {
        "X": ["N", "C", *D],
        "grid": ["N", *D_out, rank],
        "Y": ["N", "C", *D_out],
    }
    shapes = {
        name: symbols[name] if dynamic else value.shape
        for name, value in (feeds[0] | expected[0]).items()
    }
    values = [f"float[{', '.join(map(str, shape))}] {name}" for name, shape in shapes.items()]
    X_value, grid_value, Y_value = values
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": {opset}]>
        sampling ({X_value}, {grid_value}) => ({Y_value}) {{
            Y = GridSample <{attributes}> (X, grid) }}""")
    model.graph.node[0].name = "sample"
    onnx.checker.check_model(model, full_check=True)
    return Task(model, tuple(feeds), tuple(expected))
