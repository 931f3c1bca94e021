"""The exported models in tests/exported, their inputs and their stored outputs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

Arrays = dict[str, np.ndarray]

EXPORTED_FOLDER = Path(__file__).parents[1] / "exported"
EXPORTED_MODELS = sorted(EXPORTED_FOLDER.glob("*.onnx"))
#: onnxruntime has no kernels for these (a float64 grid, float64 at opset 16).
WITHOUT_NATIVE_KERNELS = ("grounding_dino", "kornia_warp_perspective_float64")
#: Tests of larger models are slow.
MAX_QUICK_BYTES = 28_000


def stored_arrays(path: Path, prefix: str) -> Arrays:
    """Return the arrays stored beside a model whose names begin with ``prefix``, without it."""
    with np.load(path.with_suffix(".npz")) as data:
        names = [name for name in data.files if name.startswith(prefix)]
        return {name.removeprefix(prefix): data[name] for name in names}


def run_stored_inputs(session: ort.InferenceSession, path: Path) -> Arrays:
    """Run a session of a model on the inputs stored beside it; return the outputs by name."""
    names = [output.name for output in session.get_outputs()]
    outputs = session.run(names, stored_arrays(path, "in."))
    return dict(zip(names, outputs, strict=True))


def slow_if_large(paths: Iterable[Path]) -> list[Any]:
    """Return one parameter for each model. Those of large models are marked slow."""
    return [
        pytest.param(
            path,
            id=path.stem,
            marks=pytest.mark.slow if path.stat().st_size > MAX_QUICK_BYTES else (),
        )
        for path in paths
    ]
