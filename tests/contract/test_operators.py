"""GridSample and AffineGrid in every way: every type, mode, padding, alignment, rank and place."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import ort_gridsample as ogs
from support import faults, oracle, paths
from support.cases import RANKS, SESSION_TYPES, USUAL, Attributes, dtype_of, matrix
from support.compare import about, assert_matches, type_name
from support.foreign_nodes import (
    AFFINE_FEEDS,
    AFFINE_SIZE,
    ALIGNED_BORDER,
    DIALECTS,
    WITHOUT_ATTRIBUTES,
    affine_grid_generators,
    feeds_for,
    models_of_dialects,
)
from support.forms import Form
from support.graphs import FEEDS, MODELS
from support.models import grid_sample_model
from support.parameters import CORES
from support.paths import Function
from support.ways import WAYS, Limit, Matrix, way_param

# Types, modes, paddings and ranks


class OnCore(Function):
    """The functions on a core. They warn of nothing."""

    def __init__(self, core: str) -> None:
        self.core = core

    def grid_samples(
        self, X: np.ndarray, grid: np.ndarray, attributes: Sequence[Attributes], opset: int = 22
    ) -> list[np.ndarray]:
        with paths.core_set_to(self.core), warnings.catch_warnings():
            warnings.simplefilter("error")
            return super().grid_samples(X, grid, attributes)


class InEvaluator(Function):
    """The nodes in onnx's evaluator, with bfloat16 as float32, which NumPy has."""

    def grid_samples(
        self, X: np.ndarray, grid: np.ndarray, attributes: Sequence[Attributes], opset: int = 22
    ) -> list[np.ndarray]:
        types = type_name(X.dtype), type_name(grid.dtype)
        model = grid_sample_model(*types, X.ndim - 2, attributes, opset)
        evaluator = ReferenceEvaluator(model, new_ops=ogs.reference_ops())
        is_bfloat16 = [array.dtype == dtype_of("bfloat16") for array in (X, grid)]
        arrays = [
            array.astype(np.float32) if is_half else array
            for array, is_half in zip((X, grid), is_bfloat16, strict=True)
        ]
        outputs = evaluator.run(None, dict(zip(("X", "grid"), arrays, strict=True)))
        return [Y.astype(X.dtype) for Y in outputs]


#: The name of a way -> how it samples.
SAMPLERS: dict[str, Function] = {
    **{f"function, {core}": OnCore(core) for core in CORES},
    **{name: path for name, path in paths.PATHS.items() if name != "function"},
    "evaluator": InEvaluator(),
}
if not paths.HAS_PYTHON_OPS:
    del SAMPLERS["session"], SAMPLERS["patched file"]
#: The ways that compile nothing, and run all pairs of types by default.
NUMPY_WAYS = ("function, numpy", "evaluator")
#: The ways that take types which a session has not.
OF_ANY_TYPE = ("function, numpy", "function, jit", "evaluator")


#: An opset for each rank.
OPSETS = (16, 20, 16, 22)


def type_cells() -> list[Any]:
    """Return a parameter for each pair of types and each way."""
    cells = []
    for X_type, grid_type, way in product(ogs.spec.TYPES, ogs.spec.FLOATS, SAMPLERS):
        is_held = way in OF_ANY_TYPE or X_type in SESSION_TYPES
        is_compiled = way not in (*OF_ANY_TYPE, "session", "patched file")
        has_bfloat16 = "bfloat16" in (X_type, grid_type)
        if not is_held or (is_compiled and X_type == "str"):
            continue
        if way == "evaluator" and has_bfloat16 and faults.NO_BFLOAT16_ARRAYS:
            continue
        is_quick = way in NUMPY_WAYS or (X_type, grid_type) in USUAL
        is_quick |= way == "session" and grid_type == "float32"
        marks = [] if is_quick else [pytest.mark.sweep]
        cells.append(pytest.param(X_type, grid_type, way, marks=marks))
    return cells


@pytest.mark.usefixtures("numpy_core")
@pytest.mark.parametrize(("X_type", "grid_type", "way"), type_cells())
@pytest.mark.parametrize(("rank", "opset"), [*zip(RANKS, OPSETS, strict=True)])
def test_sample_of_any_types_in_any_way_matches_the_oracle(
    X_type: str, grid_type: str, way: str, rank: int, opset: int
) -> None:
    """All modes and paddings in one model."""
    if "bfloat16" in (X_type, grid_type):
        opset = 22
    cases = matrix([X_type], [grid_type], [rank])
    attributes = [case.attributes for case in cases]
    arrays = cases[0].X, cases[0].grid
    outputs = SAMPLERS[way].grid_samples(*arrays, attributes, min(opset, faults.OPSET))
    for case, Y in zip(cases, outputs, strict=True):
        mode, padding_mode = case.attributes.mode, case.attributes.padding_mode
        with about(case):
            assert Y.dtype == arrays[0].dtype
            assert_matches(Y, case.expected, arrays[1].dtype, mode, padding_mode)


# Places and dialects


def form_of_graph(name: str, condition: bool) -> Form:
    model = parser.parse_model(MODELS[name])
    return Form(model, FEEDS | {"c": np.array(condition)}, tolerance=1e-4)


@dataclass(frozen=True)
class DialectForm(Form):
    """A node of a dialect.

    Attributes:
        attributes: its mode, padding and alignment.
    """

    attributes: Attributes = ALIGNED_BORDER

    @cached_property
    def expected(self) -> list[np.ndarray]:
        X, grid = self.feeds.values()
        return [oracle.grid_sample(X, grid, *astuple(self.attributes)).values.astype(X.dtype)]


#: For each dialect other values than those of DIALECTS, and nodes that have none.
NEAREST_REFLECTION = Attributes("nearest", "reflection", False)
OTHER_VALUES: dict[str, Form] = {
    **{
        f"dialect {name}": DialectForm(model, feeds_for(model), attributes=NEAREST_REFLECTION)
        for name, model in models_of_dialects(NEAREST_REFLECTION).items()
    },
    **{
        f"{name} without attributes": DialectForm(
            model, feeds_for(model), attributes=Attributes("linear", "zeros", False)
        )
        for name, model in WITHOUT_ATTRIBUTES.items()
    },
}


class AffineForm(Form):
    """PyTorch's node for an AffineGrid, with aligned corners."""

    @cached_property
    def expected(self) -> list[np.ndarray]:
        grid = oracle.affine_grid(self.feeds["theta"], AFFINE_SIZE, True)
        return [grid.astype(np.float32)]


OTHER_VALUES |= {
    f"dialect {name}": AffineForm(model, AFFINE_FEEDS)
    for name, model in affine_grid_generators().items()
}

#: Models of nodes at every place where a node can be, and of every dialect.
FORMS: dict[str, Form] = {
    **{
        f"{name}, {condition}": form_of_graph(name, condition)
        for name, condition in product(MODELS, (True, False))
        if condition or "If" in name
    },
    **{f"dialect {name}": DialectForm(model, feeds_for(model)) for name, model in DIALECTS.items()},
}


LIMITS = [
    Limit(
        ("provider",),
        r"dialect (?!com\.microsoft|(mmcv|mmdeploy)$)",
        "onnxruntime knows no operator that others add to these domains",
        "not a registered function|No Op registered|Unrecognized attribute|invalid model",
    ),
    Limit(
        ("evaluator",),
        r"dialect GridSampler of (a domain|myonnx_plugin)",
        "users choose these domains, and reference_ops has none of them",
        "unknown",
    ),
]
if faults.SCAN_SEES_NOTHING:
    LIMITS.append(Limit(tuple(WAYS), "Scan", "the oracle runs in onnx's evaluator"))


MATRIX = Matrix(
    FORMS.__getitem__,
    LIMITS,
    sample=lambda name: True,
    library="dialect|two in a row|Loop|Scan|AffineGrid|function,",
)


@pytest.mark.parametrize(("name", "way"), MATRIX.cells(FORMS, ["tensorrt-plugins"]))
def test_nodes_at_any_place_and_of_any_dialect_have_the_outputs_of_the_oracle(
    name: str, way: str
) -> None:
    MATRIX.run(name, way)


MATRIX_OF_VALUES = MATRIX._replace(form_of=OTHER_VALUES.__getitem__, library="dialect mmcv$")
#: Ways that read the values of a node in different code.
VALUE_WAYS = ("python", "ai.onnx", "primitives", "provider", "library", "evaluator")


@pytest.mark.parametrize(
    ("name", "way"), MATRIX_OF_VALUES.cells(OTHER_VALUES, [*WAYS.keys() - VALUE_WAYS])
)
def test_values_and_defaults_of_any_dialect_have_the_outputs_of_the_oracle(
    name: str, way: str
) -> None:
    MATRIX_OF_VALUES.run(name, way)


@pytest.mark.parametrize(
    "nodes", ["unsupported", lambda record: False], ids=["unsupported", "none"]
)
@pytest.mark.parametrize("way", [way_param(way=way) for way in ("patched file", "compiled file")])
def test_op_in_a_patched_model_runs_if_the_session_replaces_no_nodes(way: str, nodes: Any) -> None:
    target = {"patched file": "ort_gridsample", "compiled file": "compiled"}[way]
    form = FORMS["dialect mmcv"]
    session = ogs.InferenceSession(ogs.patch_model(form.model, target=target), nodes=nodes)
    form.assert_outputs(session.run(None, form.feeds))
