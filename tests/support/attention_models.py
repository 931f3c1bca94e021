"""Models of deformable attention and their inputs."""

from __future__ import annotations

import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import parser

import ort_gridsample as ogs
from ort_gridsample.inference.types import value_of
from support.cases import dtype_of
from support.paths import Array, quiet_options

with zipfile.ZipFile(Path(__file__).parents[1] / "exported" / "attention.zip") as _archive:
    FORMS = {name.removesuffix(".onnx"): _archive.read(name) for name in _archive.namelist()}


def operands(
    levels: Array, kind: str = "float32", locations: str = "", seed: int = 0, **sizes: int
) -> list[Array]:
    """Values, locations and weights, of n, q, h and d; some locations are outside, infinite or no numbers."""
    n, q, h, d = ({"n": 2, "q": 5, "h": 3, "d": 4} | sizes).values()
    rng, points, axes = np.random.default_rng(seed), int(levels[:, 0].sum()), levels.shape[1] - 1
    value = rng.normal(size=(n, int(levels[:, 1:].prod(1).sum()), h, d))
    at = rng.uniform(-0.3, 1.3, (n, q, h, points, axes))
    at.reshape(-1)[: at.size // 2 : 7] = np.resize([np.nan, np.inf, -np.inf, 1e30, 0, 1], at.size)[
        : at.size // 2 : 7
    ]
    given = (value, kind), (at, locations or kind), (rng.random((n, q, h, points)), kind)
    with np.errstate(over="ignore"):
        return [each.astype(dtype_of(t)) for each, t in given]


def op_model(kind: str, locations: str, align: bool) -> onnx.ModelProto:
    value, at = (
        {"float32": "float", "float64": "double"}.get(each, each) for each in (kind, locations)
    )
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17, "ort_gridsample.compiled": 1]>
        op ({value}[] value, int64[] levels, {at}[] at, {value}[] by) => ({value}[] Y) {{
        Y = ort_gridsample.compiled.DeformableAttention <align_corners = {int(align)}, points = "">
            (value, levels, at, by) }}""")
    model.graph.node[0].name = "attention"
    return model


LEVELS = {"planes": np.array([[2, 5, 7], [3, 1, 4], [1, 3, 1]]), "rows": np.array([[3, 6]])}


def form(name: str) -> onnx.ModelProto:
    """The stored model, of a version that every onnxruntime reads: it has nothing newer."""
    model = onnx.load_from_string(FORMS[name])
    model.ir_version = 8
    return model


Arrays = dict[str, np.ndarray]


@cache
def session_for(kind: str, locations: str, align: bool) -> onnxruntime.InferenceSession:
    model = op_model(kind, locations, align).SerializeToString()
    return onnxruntime.InferenceSession(model, ogs.register(quiet_options()))


def form_feeds(name: str, n: int = 2, q: int = 5) -> Arrays:
    """Of ``n`` batches and ``q`` queries, otherwise of the shapes that the static model says."""
    rng, static = np.random.default_rng(0), form(f"{name.split('/')[0]}/static-dynamo")
    value, *others = (value_of(each.type).shape for each in static.graph.input)
    shapes = (n, *value[1:]), *((n, q, *each[2:]) for each in others)
    return {
        key: rng.uniform(-0.2, 1.2, shape).astype(np.float32)
        for key, shape in zip("abc", shapes, strict=True)
    }
