"""A library of this package's execution provider under another name, which refuses nodes.

onnxruntime and this package treat it as the plugin of somebody else. Its options are those of
``programs/emit_refusing_plugin.py``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from unittest.mock import patch

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops.linking import run
from ort_gridsample.library import builder
from support.built_library import kept_library, library_models
from support.processes import PROGRAMS

#: The name of the provider.
REFUSING = "RefusingExecutionProvider"
_PROGRAM = PROGRAMS / "emit_refusing_plugin.py"


@cache
def refusing_plugin() -> Path:
    """Return the path of the library for this processor."""
    return kept_library("refusing_plugin", _build, Path(__file__), _PROGRAM)


def _build(path: Path) -> None:
    with patch.object(builder, "_compile", _compile):
        ogs.build_library(path, "native", models=library_models())


def _compile(python: str, task: builder.Task) -> None:
    features = json.dumps(task.features)
    arguments = [task.system, task.processor, features, REFUSING]
    code = (
        f"import runpy, sys; sys.path[:] = {sys.path!r}; sys.argv[1:] = {arguments!r}; "
        f"runpy.run_path({str(_PROGRAM)!r}, None, '__main__')"
    )
    run([python, "-c", code], f"compiling {task.cpu}", json.dumps(asdict(task)))
