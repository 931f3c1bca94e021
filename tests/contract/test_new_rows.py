"""A mode or a padding is a row of a table, and that row alone makes it work in every way."""

import json
from dataclasses import astuple

import numpy as np
import onnx
import pytest
from onnx import helper

import ort_gridsample as ogs
from support.cases import ATTRIBUTES, EXTENDED_ATTRIBUTES, RANKS, USUAL, Attributes, matrix
from support.compare import about, assert_matches, refusal
from support.extension_ways import FLOAT_WAYS, WAYS, recognized_attributes
from support.models import grid_sample_model, node_attributes
from support.parameters import with_slow
from support.paths import INSTALLED_CORES, PATHS, core_set_to, needs_provider, open_provider
from support.processes import run_program

#: Every mode and every padding, also those that the standard lacks.
EVERY_ROW = (*ATTRIBUTES, *EXTENDED_ATTRIBUTES)
needs_compiled_ops = pytest.mark.skipif("compiled" not in PATHS, reason="no compiled ops")


@needs_compiled_ops
def test_added_rows_are_computed_as_their_formulas_in_every_way(tmp_path):
    """Modes, one of an odd number of taps, and a padding that are in no table of the package."""
    lines = run_program("new_rows.py", env={"NUMBA_CACHE_DIR": str(tmp_path)}, timeout=280)
    results = [json.loads(line) for line in lines]
    ways = {*WAYS, *FLOAT_WAYS, "tables", "recognition"}
    assert {way for way, *_ in results} == ways
    assert len(results) == 8 * len(ways)
    assert [result for result in results if result[-1] > 1e-5] == []


@needs_compiled_ops
@with_slow("X_type", ["float32", "float64", "float16", "uint8"], ["float32"])
def test_odd_rows_are_computed_as_their_formulas_in_every_way(X_type, tmp_path):
    """Modes with jumps, with taps before the base, and of eight taps; paddings that reflect."""
    env = {"NUMBA_CACHE_DIR": str(tmp_path)}
    results = [
        json.loads(line) for line in run_program("odd_rows.py", X_type, env=env, timeout=280)
    ]
    assert {way for way, *_ in results} == set(WAYS)
    assert [result for result in results if result[-1] > 1] == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rank", [rank for rank in RANKS if rank < 4])
@with_slow(
    ("X_type", "grid_type"),
    [*USUAL, ("float64", "float32"), ("int32", "float64"), ("bool", "float32")],
    USUAL[:1],
)
def test_extension_matches_the_oracle(X_type, grid_type, rank, way):
    for case in matrix([X_type], [grid_type], [rank], EXTENDED_ATTRIBUTES):
        with about(case):
            Y = WAYS[way](case.X, case.grid, *astuple(case.attributes))
            mode = case.attributes.mode
            padding_mode = case.attributes.padding_mode
            assert_matches(Y, case.expected, case.grid.dtype, mode, padding_mode)


@pytest.mark.parametrize("attributes", EXTENDED_ATTRIBUTES, ids=str)
@with_slow("rank", [1, 2, 3], [2])
def test_lowered_extension_is_recognized(rank, attributes):
    assert recognized_attributes(attributes, rank) == attributes


@pytest.mark.parametrize("padding_mode", dict.fromkeys(values.padding_mode for values in EVERY_ROW))
def test_lowered_extension_of_many_taps_is_recognized(padding_mode):
    """With 216 taps, the sum of the weights is rounded more often."""
    attributes = Attributes("lanczos3", padding_mode)
    assert recognized_attributes(attributes, 3) == attributes


@pytest.mark.parametrize("attributes", [("linear", "wrap"), ("lanczos3", "zeros")])
@pytest.mark.parametrize("target", ["ai.onnx", "ai.onnx-2d", "com.microsoft", "mmdeploy"])
def test_other_dialects_refuse_extension(target, attributes):
    model = grid_sample_model("float32", "float32", 2, [Attributes(*attributes)])
    error = refusal(ogs.patch_model, model, target=target)
    assert error.argument in ("mode", "padding_mode", "interpolation_mode")
    assert repr(attributes[error.argument == "padding_mode"]) in error.found


def standard_model(attributes: Attributes) -> onnx.ModelProto:
    """Return a standard node with these attributes, which is wrong."""
    model = grid_sample_model("float32", "float32", 2, [Attributes()])
    node = model.graph.node[0]
    del node.attribute[:]
    for name, value in node_attributes(attributes, 20).items():
        node.attribute.append(helper.make_attribute(name, value))
    return model


@pytest.mark.parametrize("attributes", [Attributes("linear", "wrap"), Attributes("lanczos3")])
def test_standard_node_refuses_extension(attributes):
    model = standard_model(attributes)
    error = refusal(ogs.InferenceSession, model, providers=["CPUExecutionProvider"])
    assert error.argument in ("mode", "padding_mode")


class TestProvider:
    pytestmark = needs_provider

    @pytest.mark.parametrize("attributes", [Attributes("linear", "wrap"), Attributes("lanczos3")])
    def test_provider_does_not_run_standard_node_with_extension(self, attributes):
        with pytest.raises(Exception, match=r"wrap|lanczos3"):
            open_provider(standard_model(attributes))


@pytest.mark.parametrize("core", INSTALLED_CORES)
@pytest.mark.parametrize("lengths", [(1, 1), (2, 2), (5, 1)])
def test_wrap_of_not_finite_coordinates_reads_pixels_of_x(lengths, core):
    X = np.arange(1, 1 + np.prod(lengths), dtype=np.float32).reshape(1, 1, *lengths)
    far = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 3.4e38], np.float32)
    grid = np.stack(np.meshgrid(far, far), -1)[None]
    for align_corners in (False, True):
        with core_set_to(core):
            Y = ogs.grid_sample(X, grid, "nearest", "wrap", align_corners)
        assert np.isin(Y, X).all()


@pytest.mark.parametrize("core", INSTALLED_CORES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic", "lanczos3"])
def test_wrap_of_a_coordinate_just_before_the_first_pixel_reads_it(mode, core):
    """Such a coordinate plus the length may be rounded to the length."""
    X = np.arange(3, 3 + 9 * 17, dtype=np.float32).reshape(1, 1, 9, 17)
    before = np.nextafter(np.float32(-1), np.float32(-2))
    grid = np.full((1, 4, 5, 2), before)
    with core_set_to(core):
        Y = ogs.grid_sample(X, grid, mode, "wrap", True)
    np.testing.assert_allclose(Y, X[0, 0, 0, 0], rtol=1e-4)
