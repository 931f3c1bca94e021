"""Open models that the library in ORT_GRIDSAMPLE_LIBRARY has no kernel for; print a line of JSON.

The line has the errors of sessions of this package: of the model, of a patched file, and of the
model with the execution provider, where there is one; and the error of a plain session of the file.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnxruntime

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model


def error_of(function: Callable[[], object]) -> list[str]:
    try:
        function()
    except Exception as error:
        parts = [getattr(error, name, "") for name in ("where", "argument", "found", "expected")]
        return [type(error).__name__, str(error), *parts]
    return []


x_type, mode = sys.argv[1:]
model = grid_sample_model(x_type, "float32", 2, [Attributes(mode)])
patched = ogs.patch_model(model, target="compiled").SerializeToString()
errors = {
    "session": error_of(lambda: ogs.InferenceSession(model)),
    "file": error_of(lambda: ogs.InferenceSession(patched)),
    "plain session": error_of(lambda: onnxruntime.InferenceSession(patched, ogs.register())),
}
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "model.onnx")
    path.write_bytes(patched)
    errors["path"] = error_of(lambda: ogs.InferenceSession(path))
if hasattr(onnxruntime, "get_ep_devices"):
    providers = ["CPUExecutionProvider"]
    with contextlib.suppress(ImportError):  # an older onnxruntime
        providers = [ogs.register_provider(), *providers]
    errors["provider"] = error_of(lambda: ogs.InferenceSession(model, providers=providers))
print(json.dumps(errors))
