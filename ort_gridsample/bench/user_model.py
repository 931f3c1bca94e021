"""A user's own model, native against patched: whole, and node by node from onnxruntime's profile."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from ..runtime.session import InferenceSession
from . import cores
from .compare import distance
from .contestants import NATIVE, Answers, Contestant, options_for
from .progress import Progress
from .run import Result, taking_part
from .suite import Arrays
from .timing import Turn, measure

#: Runs under the profiler, after WARM_UP that do not count.
PROFILED_RUNS, WARM_UP = 7, 2


@dataclass(frozen=True)
class FileCase:
    """A model file as a case, with the inputs that it is run on."""

    path: str
    arrays: Mapping[str, Any]

    operator = None
    group = "whole models"
    heading = "model"
    tolerance = float("inf")  # how far the answers may lie apart is the model's business: they are only compared

    @property
    def label(self) -> str:
        return self.path

    @property
    def short(self) -> str:
        return self.path

    @property
    def attributes(self) -> dict[str, str | int]:
        return {}

    def feeds(self) -> Arrays:
        return dict(self.arrays)

    def model(self) -> str:
        return self.path

    def moved_bytes(self) -> None:
        """Nobody knows."""


@dataclass(frozen=True)
class Node:
    """One node in a profile: its operator, and the median over runs of its seconds in a run."""

    op_type: str
    seconds: float


@dataclass
class ModelResult:
    """What came of a model.

    Attributes:
        result: the whole runs.
        nodes: contestant -> node's name -> what the profile says of it.
        differences: contestant -> the largest difference of an output to the native one, over its largest value.
    """

    result: Result
    nodes: dict[str, dict[str, Node]] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)


def run_model(
    path: str, feeds: Arrays, *, threads: int, rounds: int, seconds: float, progress: Progress
) -> ModelResult:
    """Time the model at ``path`` on ``feeds``; ``threads`` 0 is onnxruntime's default."""
    case = FileCase(path, feeds)
    found = ModelResult(Result(case))
    contestants = [contestant for contestant in taking_part() if contestant.networks]
    turns: dict[str, Turn] = {}
    native: Answers | None = None
    with cores.kept():
        for contestant in contestants:
            progress.step(f"{contestant.name}: first run and profile")
            try:
                turns[contestant.name], answers = contestant.turn(case, feeds, threads)
            except Exception as error:
                if contestant.core is not None:
                    raise
                found.result.reasons[contestant.name] = " ".join(str(error).split())
                continue
            if contestant.name == NATIVE:
                native = answers
            elif native is not None:
                found.differences[contestant.name] = _difference(answers, native)
            found.nodes[contestant.name] = _profile(contestant, case, feeds, threads)
        progress.step("timing")
        found.result.timings = measure(turns, rounds, seconds)
    return found


def _difference(found: Answers, expected: Answers) -> float:
    parts = [0.0]
    for a, b in zip(found, expected, strict=True):
        if getattr(b, "dtype", np.dtype(object)).kind in "iufb" and b.size:
            parts.append(float(distance(a, b).max() / max(float(np.abs(b.astype(np.float64)).max()), 1e-30)))
    return max(parts)


def _profile(contestant: Contestant, case: FileCase, feeds: Arrays, threads: int) -> dict[str, Node]:
    options = options_for(case, threads)
    options.enable_profiling = True
    make = onnxruntime.InferenceSession if contestant.core is None else InferenceSession
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder, "profile"))
        session = make(case.path, options, providers=["CPUExecutionProvider"])
        for _ in range(WARM_UP + PROFILED_RUNS):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    return read_profile(events)


def read_profile(events: list[dict[str, Any]]) -> dict[str, Node]:
    """The nodes in an onnxruntime profile, by name; a node that runs several times in a run counts with their sum."""
    runs = sorted(event["ts"] for event in events if event.get("name") == "model_run")[WARM_UP:]
    seconds: dict[str, dict[float, float]] = defaultdict(lambda: dict.fromkeys(runs, 0.0))
    op_types: dict[str, str] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            run = max((start for start in runs if start <= event["ts"]), default=None)
            if run is not None:
                name = event["name"].removesuffix("_kernel_time")
                seconds[name][run] += event["dur"] / 1e6
                op_types[name] = event["args"].get("op_name", "?")
    return {name: Node(op_types[name], statistics.median(by_run.values())) for name, by_run in seconds.items()}
