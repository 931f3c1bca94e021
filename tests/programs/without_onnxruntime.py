"""Use the package where onnxruntime is not installed; print what happens in JSON.

Arguments: paths of models, then the targets, separated by "to". Run it in an environment without
onnxruntime, or with it among the missing modules.
"""

import hashlib
import io
import json
import logging
import sys
from pathlib import Path

import ort_gridsample as ogs


def error_of(name: str) -> str:
    """Return the type and message of the error that a public name raises; "" for no error."""
    try:
        getattr(ogs, name)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def patched(path: str, target: str) -> dict[str, str]:
    """Return the hash of a patched model or the error, and the warnings."""
    warnings.truncate(0)
    warnings.seek(0)
    try:
        model = ogs.patch_model(path, target=target)
        result = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    except ogs.GridSampleError as error:
        result = str(error)
    return {"result": result, "warnings": warnings.getvalue()}


warnings = io.StringIO()
logging.getLogger("ort_gridsample").addHandler(logging.StreamHandler(warnings))
separator = sys.argv.index("to")
models = sys.argv[1:separator]
targets = sys.argv[separator + 1 :]
errors = {name: error_of(name) for name in ogs.__all__}
records = {path: ogs.inspect_model(path) for path in models}
try:
    ogs.patch_model(models[0], nodes="unsupported")
    unsupported = "no error"
except ImportError as error:
    unsupported = str(error)
print(
    json.dumps(
        {
            "errors": {name: error for name, error in errors.items() if error},
            "unsupported": unsupported,
            "reasons": {Path(path).stem: [r.reason for r in records[path]] for path in models},
            "patched": {
                f"{Path(path).stem} to {target}": patched(path, target)
                for path in models
                for target in targets
            },
        }
    )
)
