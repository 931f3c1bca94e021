"""Models in which a sampling operator is decomposed into basic ones."""

import zipfile
from pathlib import Path

import onnx

ARCHIVE = Path(__file__).parents[1] / "exported" / "unrolled.zip"

#: Serialized models, as tests/exported/unrolled.py names them:
#: FORM/MODE-PADDING-ALIGN-SIZES-EXPORTER.
with zipfile.ZipFile(ARCHIVE) as _archive:
    DECOMPOSED_MODELS = {
        name.removesuffix(".onnx"): _archive.read(name) for name in _archive.namelist()
    }

#: The model that tests use where the form does not matter.
BILINEAR_ZEROS = "decomposed/bilinear-zeros-0-static-dynamo"


def load_decomposed(name: str) -> onnx.ModelProto:
    """Return the model ``name`` of :data:`DECOMPOSED_MODELS`."""
    return onnx.load_from_string(DECOMPOSED_MODELS[name])
