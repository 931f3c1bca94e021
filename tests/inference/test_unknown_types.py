"""Values of types that no operator accepts, or that are unknown in one call of a function."""

import onnx
import pytest
from onnx import TensorProto, helper

import ort_gridsample as ogs
from ort_gridsample.detection.find import find_matches
from ort_gridsample.detection.records import columns
from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.inference.declared_shapes import clear_unconfirmed_shapes
from ort_gridsample.inference.types import Inference, TypeAndShape
from support.models import parsed


def model_with_two_calls(operator: str) -> onnx.ModelProto:
    """Return a model of a function that moves coordinates, and of two calls of it.

    One call reads G, and the other the output of ``operator`` for G.
    """
    return parsed(f"""g (float[1, 1, 4, 4] X, float[1, 3, 3, 2] G) => (Y, Z) {{
        U = {operator} (G)
        Y = local.warp (X, G)
        Z = local.warp (X, U) }}
    <domain: "local", opset_import: ["": 20]> warp (A, B) => (C) {{
        half = Constant <value_float = 0.5> ()
        moved = Mul (B, half)
        C = GridSample (A, moved) }}""")


#: One call of the function reads coordinates of an unknown type.
TWO_CALLS = model_with_two_calls("foreign.Unknown")


@pytest.mark.parametrize("element_type", ["float8e4m3fn", "float8e5m2"])
def test_record_of_type_that_no_operator_has_contains_an_error(element_type: str) -> None:
    model = parsed(f"""g ({element_type}[1, 1, 4, 4] X, float[1, 3, 3, 2] G) => (
        {element_type}[1, 1, 3, 3] Y) {{ Y = GridSample (X, G) }}""")
    (record,) = ogs.inspect_model(model)
    assert record.casts == {}
    assert record.error is not None
    assert (record.error.argument, record.error.found) == ("X", f"of type {element_type}")
    assert columns(record)["a patch"] == "refuses it"


def test_value_that_is_unknown_in_one_call_is_unknown() -> None:
    scopes = scopes_of(TWO_CALLS)
    inference = Inference(TWO_CALLS, scopes, requested_names={id(scopes[1]): ["B", "moved"]})
    expected = {(TypeAndShape("float32", (1, 3, 3, 2)),), (TypeAndShape(),)}
    assert set(inference.values_by_call(scopes[1], ["B"])) == expected
    assert inference.value_in_all_calls(scopes[1], "B") == TypeAndShape()


def test_length_that_is_unknown_in_one_call_is_cleared() -> None:
    model = onnx.ModelProto.FromString(TWO_CALLS.SerializeToString())
    declared = helper.make_tensor_value_info("moved", TensorProto.FLOAT, [1, 3, 3, 2])
    model.functions[0].value_info.append(declared)
    scopes = scopes_of(model)
    names = {id(scopes[1]): ["moved"]}
    clear_unconfirmed_shapes(scopes, names, Inference(model, scopes, names_to_confirm=names))
    (value,) = model.functions[0].value_info
    assert [dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim] == [False] * 4


@pytest.mark.parametrize(("operator", "is_fused"), [("Identity", True), ("foreign.Unknown", False)])
def test_grid_is_fused_only_if_its_type_is_known_in_all_calls(
    operator: str, is_fused: bool
) -> None:
    model = model_with_two_calls(operator)
    (match,) = find_matches(model, scopes_of(model), None, with_reasons=False)
    assert (match.fused_grid is not None) == is_fused
