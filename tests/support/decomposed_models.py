"""Models in which a sampling operator is decomposed into basic ones."""

import zipfile
from pathlib import Path

import onnx

#: What exported/unrolled.py wrote: FORM/MODE-PADDING-ALIGN-SIZES-EXPORTER.
with zipfile.ZipFile(Path(__file__).parents[1] / "exported" / "unrolled.zip") as _archive:
    MODELS = {name.removesuffix(".onnx"): _archive.read(name) for name in _archive.namelist()}


SAMPLED = "decomposed/bilinear-zeros-0-static-dynamo"


def load(name: str) -> onnx.ModelProto:
    return onnx.load_from_string(MODELS[name])
