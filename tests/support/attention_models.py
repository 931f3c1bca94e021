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
from support.cases import dtype_of
from support.paths import Array, quiet_options

Arrays = dict[str, np.ndarray]

#: The name of a stored model, FORM/SIZES-EXPORTER, -> its bytes. exported/attention.py wrote them.
with zipfile.ZipFile(Path(__file__).parents[1] / "exported" / "attention.zip") as _archive:
    FORMS = {name.removesuffix(".onnx"): _archive.read(name) for name in _archive.namelist()}

#: Levels as the op reads them: rows of the number of points and the lengths of the spatial axes.
LEVELS = {"planes": np.array([[2, 5, 7], [3, 1, 4], [1, 3, 1]]), "rows": np.array([[3, 6]])}
#: Locations outside the levels, and some that are not finite.
_SPECIAL_LOCATIONS = (np.nan, np.inf, -np.inf, 1e30, 0, 1)
#: The rounding error of attention in each type, relative to the largest output, or to 1.
TOLERANCES = {"float32": 2e-6, "float64": 1e-13, "float16": 2e-3, "bfloat16": 2e-2}
_ONNX_NAMES = {"float32": "float", "float64": "double"}


def operands(
    levels: Array,
    kind: str = "float32",
    locations: str = "",
    seed: int = 0,
    *,
    n: int = 2,
    q: int = 5,
    h: int = 3,
    d: int = 4,
) -> list[Array]:
    """Return random values, locations and weights.

    Args:
        levels: rows of the number of points and the lengths of the spatial axes, (L, 1 + r).
        kind: the type of values and weights.
        locations: the type of locations, by default ``kind``.
        seed: of the random generator.
        n: the number of batches.
        q: the number of queries.
        h: the number of heads.
        d: the number of channels of a head.

    Returns:
        Values (n, pixels of all levels, h, d), locations (n, q, h, points of all levels, r) and
        weights (n, q, h, points of all levels). Some locations are outside or not finite.
    """
    rng = np.random.default_rng(seed)
    points = int(levels[:, 0].sum())
    axes = levels.shape[1] - 1
    pixels = int(levels[:, 1:].prod(1).sum())
    values = rng.normal(size=(n, pixels, h, d))
    places = rng.uniform(-0.3, 1.3, (n, q, h, points, axes))
    special = places.reshape(-1)[: places.size // 2 : 7]
    special[:] = np.resize(_SPECIAL_LOCATIONS, places.size)[: places.size // 2 : 7]
    weights = rng.random((n, q, h, points))
    with np.errstate(over="ignore"):
        return [
            values.astype(dtype_of(kind)),
            places.astype(dtype_of(locations or kind)),
            weights.astype(dtype_of(kind)),
        ]


def assert_attention_close(
    actual: Array, expected: Array, kind: str, locations: str = "float64"
) -> None:
    """Assert that ``actual``, of the type ``kind``, is ``expected`` within rounding.

    Args:
        actual: the output of an attention.
        expected: its definition, or another output, as float64.
        kind: the type of values and weights.
        locations: the type of locations. In float32 their rounding error is larger than the sums'.
    """
    relative = max(TOLERANCES[kind], 2e-5 if locations == "float32" else 0)
    atol = relative * max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=0, atol=atol)


def op_model(kind: str, locations: str, align: bool, layout: str = "by_query") -> onnx.ModelProto:
    """Return a model of one compiled DeformableAttention, with the types of :func:`operands`."""
    value_type = _ONNX_NAMES.get(kind, kind)
    location_type = _ONNX_NAMES.get(locations, locations)
    inputs = f"{value_type}[] value, int64[] levels, {location_type}[] at, {value_type}[] by"
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17, "ort_gridsample.compiled": 1]>
        op ({inputs}) => ({value_type}[] Y) {{
            Y = ort_gridsample.compiled.DeformableAttention
                <align_corners = {int(align)}, points = "", output_layout = "{layout}">
                (value, levels, at, by) }}""")
    model.graph.node[0].name = "attention"
    return model


@cache
def session_for(
    kind: str, locations: str, align: bool, layout: str = "by_query"
) -> onnxruntime.InferenceSession:
    """Return a session of :func:`op_model`."""
    model = op_model(kind, locations, align, layout).SerializeToString()
    return onnxruntime.InferenceSession(model, ogs.register(quiet_options()))


def form(name: str) -> onnx.ModelProto:
    """Return the stored model of this name, in an IR version that every onnxruntime reads."""
    model = onnx.load_from_string(FORMS[name])
    model.ir_version = 8
    return model


def form_feeds(name: str, n: int = 2, q: int = 5) -> Arrays:
    """Return feeds of ``n`` batches and ``q`` queries for the form of the stored model ``name``.

    The other lengths are those of the form's static model.
    """
    rng = np.random.default_rng(0)
    static = form(f"{name.split('/')[0]}/static-dynamo")
    value, *others = (
        tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        for info in static.graph.input
    )
    shapes = [(n, *value[1:]), *((n, q, *shape[2:]) for shape in others)]
    return {
        key: rng.uniform(-0.2, 1.2, shape).astype(np.float32)
        for key, shape in zip("abc", shapes, strict=True)
    }
