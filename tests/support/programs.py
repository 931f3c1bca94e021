"""What the programs in tests/programs share.

``support.processes.run_program`` runs them, with tests/ and the repository in PYTHONPATH.
"""

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from support import paths
from support.cases import Attributes
from support.models import grid_sample_model

X = np.ones((1, 2, 64, 64), np.float32)
GRID = np.zeros((1, 64, 64, 2), np.float32)
#: The grid of three images, where X is one.
WRONG_GRID = np.zeros((3, 64, 64, 2), np.float32)
#: Feeds of a run that takes milliseconds.
SLOW_X = np.ones((1, 16, 128, 128), np.float32)
SLOW_GRID = np.random.default_rng(0).uniform(-1, 1, (1, 128, 128, 2)).astype(np.float32)
_PAGES_PER_MIB = 256  # of 4 KiB


def open_sampling(
    open_model: paths.Open, X_type: str = "float32", mode: str = "linear"
) -> onnxruntime.InferenceSession:
    """Open a session of a model with inputs X and grid, and one GridSample node, ``sample0``."""
    return open_model(grid_sample_model(X_type, "float32", 2, [Attributes(mode)]))


def result_or_error(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what ``function`` returns, or the type and message of its exception in one line."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())


def shape_or_error(
    session: onnxruntime.InferenceSession, X: np.ndarray, grid: np.ndarray
) -> tuple[int, ...] | str:
    """Return the shape of a run's first output, or the type and message of its exception."""
    outputs = result_or_error(session.run, None, {"X": X, "grid": grid})
    return outputs if isinstance(outputs, str) else outputs[0].shape


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) / _PAGES_PER_MIB


def restore_interrupt_handler() -> None:
    """Install Python's handler of Ctrl-C, even if the parent ignores the signal (under nohup)."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def print_for_each_opener(check: Callable[[paths.Open], object], openers: Sequence[str]) -> None:
    """Print a line of JSON for each opener: its name, and what ``check`` of it returns.

    Args:
        check: a function of an opener, which returns data for JSON.
        openers: names of functions in support.paths.
    """
    for name in openers:
        print(json.dumps([name, check(getattr(paths, name))]), flush=True)
