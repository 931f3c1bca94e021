"""Conversion of models that name the ONNX domain in two ways, or lack imports of domains."""

from collections.abc import Callable, Iterator

import numpy as np
import onnx
import pytest
from onnx import helper

import ort_gridsample as ogs
from ort_gridsample.graph.scope import opset_of, scopes_of
from ort_gridsample.patching import TargetName
from support import faults
from support.graphs import FEEDS, SIGNATURE
from support.models import parsed
from support.parameters import combinations_of, with_sweep
from support.paths import open_native, open_session

#: Targets and opsets: up and down from 17 and 20, to nodes and to basic operators.
CONVERSIONS = [("ai.onnx", 16), ("ai.onnx", 22), ("primitives", 11), ("primitives", 18)]

#: Nodes whose conversion needs the ONNX domain: Softmax, ReduceMax and GridSample have versions.
MAIN = """S = Softmax <axis = 1> (G)
    M = ReduceMax <keepdims = 1> (S)
    H = Sub (S, M)
    Y = GridSample (X, H)"""
IN_A_BRANCH = f"""Y = If (c) <
    then_branch = t () => (float[N,C,h,w] T) {{ {MAIN.replace("Y =", "T =")} }},
    else_branch = e () => (float[N,C,h,w] E) {{ E = GridSample (X, G) }}>"""
IN_A_FUNCTION = f"""Y = local.sample (X, G) }}
    <domain: "local", opset_import: ["": OPSET]> sample (X, G) => (Y) {{ {MAIN}"""


def model_of(nodes: str, opset: int) -> onnx.ModelProto:
    return parsed(f"{SIGNATURE} {{ {nodes.replace('OPSET', str(opset))} }}", opset)


def outputs_of(model: onnx.ModelProto) -> np.ndarray:
    (output,) = open_native(model).run(None, FEEDS)
    return output


def every_import(model: onnx.ModelProto) -> Iterator[onnx.OperatorSetIdProto]:
    for proto in (model, *model.functions):
        yield from [entry for entry in proto.opset_import if entry.domain in ("", "ai.onnx")]


def write_long_imports(model: onnx.ModelProto) -> None:
    for entry in every_import(model):
        entry.domain = "ai.onnx"


def add_long_imports(model: onnx.ModelProto) -> None:
    """Import the domain by both names; the last import, which has the version, counts."""
    for proto in (model, *model.functions):
        (entry,) = [entry for entry in proto.opset_import if not entry.domain]
        proto.opset_import.append(helper.make_opsetid("ai.onnx", entry.version))
        entry.version -= 1


def keep_imports(model: onnx.ModelProto) -> None:
    """Leave the imports as they are."""


NODES = {"main": MAIN, "If": IN_A_BRANCH, "local": IN_A_FUNCTION}


@faults.needs_adapters
@with_sweep(
    "old,place,op_types,write_imports,conversion",
    *combinations_of(
        (17, 20),
        [*NODES],
        [("GridSample", "Softmax", "If", "Sub"), ("GridSample",), ()],
        [write_long_imports, add_long_imports, keep_imports],
        CONVERSIONS,
    ),
)
def test_conversion_of_both_names_of_the_onnx_domain_has_the_same_output(
    old: int,
    place: str,
    op_types: tuple[str, ...],
    write_imports: Callable[[onnx.ModelProto], None],
    conversion: tuple[TargetName, int],
) -> None:
    target, opset = conversion
    model = model_of(NODES[place], old)
    expected = outputs_of(model)
    for scope in scopes_of(model):
        for node in scope:
            if node.op_type in op_types:
                node.domain = "ai.onnx"
    write_imports(model)
    converted = ogs.patch_model(model, target=target, opset=opset)
    onnx.checker.check_model(converted, full_check=True)
    assert opset_of(converted) == opset
    assert [entry.domain for entry in every_import(converted)] == [""]
    np.testing.assert_allclose(outputs_of(converted), expected, rtol=1e-5, atol=1e-4)


FOREIGN_NODES = {
    "com.microsoft": "com.microsoft.GridSample (X, G)",
    "mmdeploy": """mmdeploy.grid_sampler
        <interpolation_mode = 0, padding_mode = 0, align_corners = 0> (X, G)""",
}
PLACES = {
    "main": "S = NODE Y = Relu (S)",
    "If": """S = If (c) <
        then_branch = t () => (float[N,C,h,w] T) { T = NODE },
        else_branch = e () => (float[N,C,h,w] E) { E = NODE }>
        Y = Relu (S)""",
    "other node": "S = NODE T = com.microsoft.Gelu (S) Y = Relu (T)",
    "other standard": """S = NODE
        F = Flatten (S)
        L = ai.onnx.ml.Scaler <offset = [0.5], scale = [2.0]> (F)
        shape = Shape (S)
        Y = Reshape (L, shape)""",
}


@faults.needs_adapters
@pytest.mark.parametrize(
    ("target", "new"), [("ai.onnx", 22), ("ai.onnx-2d", 16), ("primitives", 12)]
)
@pytest.mark.parametrize("old", [11, 17])
@pytest.mark.parametrize("domain", FOREIGN_NODES)
@pytest.mark.parametrize("place", PLACES)
def test_conversion_of_nodes_without_an_import_has_the_same_output(
    place: str, domain: str, old: int, target: TargetName, new: int
) -> None:
    model = model_of(PLACES[place].replace("NODE", FOREIGN_NODES[domain]), old)
    (expected,) = open_session(model).run(None, FEEDS)
    for entry in list(model.opset_import):
        if entry.domain:
            model.opset_import.remove(entry)
    converted = ogs.patch_model(model, target=target, opset=new)
    onnx.checker.check_model(converted, full_check=True)
    assert opset_of(converted) == new
    assert domain not in {record.domain for record in ogs.inspect_model(converted)}
    np.testing.assert_allclose(outputs_of(converted), expected, rtol=1e-5, atol=1e-4)


def test_target_that_raises_the_opset_takes_nodes_without_an_import() -> None:
    model = model_of("Y = com.microsoft.GridSample (X, G)", 11)
    expected = outputs_of(model)
    del model.opset_import[1]
    raised = ogs.patch_model(model, target="ai.onnx")
    assert {entry.domain: entry.version for entry in raised.opset_import} == {"": 16}
    np.testing.assert_allclose(outputs_of(raised), expected, rtol=1e-5, atol=1e-4)


def test_missing_import_gets_the_version_of_the_newest_operator() -> None:
    """Onnxruntime uses its newest version of a domain that is not imported."""
    model = model_of("S = ai.onnx.ml.Binarizer (X) Y = com.microsoft.GridSample (S, G)", 11)
    del model.opset_import[1:]
    raised = ogs.patch_model(model, target="ai.onnx")
    newest = onnx.defs.get_schema("Binarizer", domain="ai.onnx.ml").since_version
    imports = {entry.domain: entry.version for entry in raised.opset_import}
    assert imports == {"": 16, "ai.onnx.ml": newest}
