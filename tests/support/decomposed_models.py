"""Models in which a sampling operator is decomposed into basic ones."""

import random
import re
import zipfile
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx

ARCHIVE = Path(__file__).parents[1] / "exported" / "decomposed.zip"

#: Serialized models, as tests/exported/decomposed.py names them:
#: FORM/MODE-PADDING-ALIGN-SIZES-EXPORTER.
with zipfile.ZipFile(ARCHIVE) as _archive:
    DECOMPOSED_MODELS = {
        name.removesuffix(".onnx"): _archive.read(name) for name in _archive.namelist()
    }

#: The model that tests use where the form does not matter.
BILINEAR_ZEROS = "decomposed/bilinear-zeros-0-static-dynamo"


def _one_of_each_kind() -> list[str]:
    """Return a random model of each kind, the same in each run."""
    choice = random.Random(0).choice
    kinds = groupby(sorted(DECOMPOSED_MODELS), lambda name: re.split("-[01]-", name)[0])
    return [choice(list(names)) for _, names in kinds]


#: A model of each form, mode and padding.
ONE_OF_EACH_KIND = _one_of_each_kind()


def load_decomposed(name: str) -> onnx.ModelProto:
    """Return the model ``name`` of :data:`DECOMPOSED_MODELS`."""
    return onnx.load_from_string(DECOMPOSED_MODELS[name])


def feeds_for(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return random inputs, with a grid ``b`` that goes far outside.

    Dynamic lengths differ from those that the model was traced with.
    """
    generator = np.random.default_rng(0)
    lengths: dict[str, int] = {}
    feeds = {}
    for value in model.graph.input:
        shape = []
        for dim in value.type.tensor_type.shape.dim:
            if not dim.dim_value and dim.dim_param not in lengths:
                lengths[dim.dim_param] = 3 + (5 * len(lengths)) % 7
            shape.append(dim.dim_value or lengths[dim.dim_param])
        feeds[value.name] = generator.uniform(-1, 1, shape).astype(np.float32)
    if "b" in feeds:
        factors = generator.choice([1, 1, 1.7, 30], feeds["b"].shape)
        feeds["b"] *= factors.astype(np.float32)
        batch = len(feeds["a"])
        is_dynamic = bool(model.graph.input[1].type.tensor_type.shape.dim[0].dim_param)
        if is_dynamic and len(feeds["b"]) != batch:
            feeds["b"] = np.resize(feeds["b"], (batch, *feeds["b"].shape[1:]))
    return feeds
