"""The exported models in tests/exported, their inputs and their stored outputs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

FOLDER = Path(__file__).parents[1] / "exported"


MODELS = sorted(FOLDER.glob("*.onnx"))


# What onnxruntime's own kernels cannot run (a float64 grid, float64 at opset 16); PyTorch's stored answer stands in.
REFUSED = ("grounding_dino", "kornia_warp_perspective_float64")


Arrays = dict[str, np.ndarray]


def stored(path: Path, prefix: str) -> Arrays:
    with np.load(path.with_suffix(".npz")) as data:
        return {
            name.removeprefix(prefix): data[name] for name in data.files if name.startswith(prefix)
        }


def run(session: ort.InferenceSession, path: Path) -> Arrays:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, stored(path, "in.")), strict=True))


SLOW_BYTES = 28_000


def by_size(paths: Iterable[Path]) -> list[Any]:
    """Parameters, the large models among which are slow."""
    marks = {path: pytest.mark.slow if path.stat().st_size > SLOW_BYTES else () for path in paths}
    return [pytest.param(path, id=path.stem, marks=marks[path]) for path in marks]
