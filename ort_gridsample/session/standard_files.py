"""Write the models that onnxruntime saves with standard operators, for other tools.

onnx infers no types behind the ops of this package, without which onnxruntime cannot quantize the
nodes that follow. Inside of :func:`ort_gridsample.quantization_sessions`, a model that a session
saves therefore gets standard operators back, also those that onnxruntime has no kernel for.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ..errors import GridSampleError
from ..graph.files import read_model
from ..rewriting.patch import patch_to
from . import installed_runtime

logger = logging.getLogger("ort_gridsample")

#: Whether saved models get standard operators.
enabled = False


def write_standard_operators(path: str | os.PathLike[str]) -> None:
    """Rewrite a model that onnxruntime saved, with standard operators instead of this package's.

    The session wrote these ops instead of standard operators, which did not check their inputs
    either. With checks, attention is no longer recognized after a quantization.

    A model whose opset is too old for them keeps this package's ops.
    """
    try:
        model = read_model(path)
        opsets = {entry.domain: entry.version for entry in model.opset_import}
        patch_to(
            model,
            nodes=lambda record: record.patched,
            target="ai.onnx",
            functions=False,
            probe=installed_runtime.PROBE,
            opset=opsets.get(""),
            for_runtime=None,
            has_run_checks=False,
        )
    except GridSampleError as error:
        logger.debug("%s keeps the ops of this package: %s", path, error)
        return
    Path(path).write_bytes(model.SerializeToString())
