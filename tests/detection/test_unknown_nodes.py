"""Nodes that neither onnxruntime nor this package knows, beside sampling nodes."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from ort_gridsample.cli import main
from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.session.known_operators import unknown_operators
from support.faults import needs_named_nodes
from support.models import parsed

STAY = "these nodes stay. The installed onnxruntime does not know their operators, and"
SAMPLER = "mmdeploy.grid_sampler <interpolation_mode = 0, padding_mode = 0, align_corners = 0>"
IMPORTS = {"mmdeploy": 1, "f": 1, "ai.onnx.contrib": 1, "com.microsoft": 1}
HEAD = "g (float[1,2,5,6] X, float[1,3,4,2] G, bool B) => (float[1,2,3,4] Y)"
#: The nodes behind a sampler, and the operators that must be named, with their nodes.
MODELS = {
    "another domain": (
        "{ S = SAMPLER (X, G) [conv] Y = mmdeploy.MMCVModulatedDeformConv2d (S, S) }",
        {"mmdeploy::MMCVModulatedDeformConv2d": ["conv"]},
    ),
    "in front of the sampler": (
        "<float[1,2,5,6] F> { [roi] F = mmdeploy.MMCVRoiAlign (X) Y = SAMPLER (F, G) }",
        {"mmdeploy::MMCVRoiAlign": ["roi"]},
    ),
    "several": (
        "{ S = SAMPLER (X, G) [a] T = mmdeploy.MMCVRoiAlign (S) [b] U = mmdeploy.MMCVRoiAlign (T)"
        " [c] Y = mmdeploy.TRTBatchedNMS (U) }",
        {"mmdeploy::MMCVRoiAlign": ["a", "b"], "mmdeploy::TRTBatchedNMS": ["c"]},
    ),
    "no domain": ("{ S = SAMPLER (X, G) Y = Nope (S) }", {"Nope": ["(Y)"]}),
    "microsoft's domain": (
        "{ S = SAMPLER (X, G) [n] Y = com.microsoft.Nope (S) }",
        {"com.microsoft::Nope": ["n"]},
    ),
    "in a branch": (
        """{ S = SAMPLER (X, G)
        [if] Y = If (B) <then_branch = t () => (Z) { [n] Z = mmdeploy.MMCVRoiAlign (S) },
                         else_branch = e () => (Z) { Z = Neg (S) }> }""",
        {"mmdeploy::MMCVRoiAlign": ["n in If if then_branch"]},
    ),
    "in a body of a body": (
        """{ S = SAMPLER (X, G) N = Constant <value_int = 2> ()
        [loop] Y = Loop (N, B, S) <body = b (int64 i, bool c, float[1,2,3,4] s) => (bool d, Z) {
            d = Identity (c)
            [if] Z = If (c) <then_branch = t () => (u) { [n] u = mmdeploy.MMCVRoiAlign (s) },
                             else_branch = e () => (u) { u = Neg (s) }> }> }""",
        {"mmdeploy::MMCVRoiAlign": ["n in Loop loop body/If if then_branch"]},
    ),
    "in a function": (
        """{ S = SAMPLER (X, G) Y = f.call (S) }
        <domain: "f", opset_import: ["": 17, "mmdeploy": 1]>
        call (A) => (C) { [n] C = mmdeploy.TRTBatchedNMS (A) }""",
        {"mmdeploy::TRTBatchedNMS": ["n in function f::call"]},
    ),
    "a name of a function in another domain": (
        """{ S = SAMPLER (X, G) T = f.MMCVRoiAlign (S) [n] Y = mmdeploy.MMCVRoiAlign (T) }
        <domain: "f", opset_import: ["": 17]> MMCVRoiAlign (A) => (C) { C = Neg (A) }""",
        {"mmdeploy::MMCVRoiAlign": ["n"]},
    ),
}
#: Models whose operators are all known to onnxruntime, to this package, or to the model.
KNOWN = {
    "standard": "{ S = SAMPLER (X, G) Y = Relu (S) }",
    "microsoft": "{ S = SAMPLER (X, G) Y = com.microsoft.Gelu (S) }",
    "function": """{ S = SAMPLER (X, G) Y = mmdeploy.MMCVRoiAlign (S) }
        <domain: "mmdeploy", opset_import: ["": 17]> MMCVRoiAlign (A) => (C) { C = Neg (A) }""",
    "two samplers": "{ S = SAMPLER (X, G) Y = SAMPLER (S, G) }",
}


def model_of(text: str) -> onnx.ModelProto:
    model = parsed(f"{HEAD} {text.replace('SAMPLER', SAMPLER)}", 17)
    del model.opset_import[:]
    for domain, version in {"": 17, **IMPORTS}.items():
        model.opset_import.append(onnx.helper.make_opsetid(domain, version))
    return model


def assert_named(text: str, operators: dict[str, list[str]]) -> None:
    """Assert that a text names operators and their nodes, and no others."""
    assert STAY in text
    named = text.replace("\n", " ").partition("a library of custom ops. ")[2]
    expected = "; ".join(f"{name}: {', '.join(nodes)}" for name, nodes in operators.items())
    assert " ".join(named.split()) == expected


def _needs(text: str) -> list[pytest.MarkDecorator]:
    """Return the mark of a model with a node that has a name in brackets."""
    return [needs_named_nodes] if re.search(r"\[\w+\] \w+ =", text) else []


all_models = pytest.mark.parametrize(
    ("text", "operators"),
    [
        pytest.param(text, operators, id=name, marks=_needs(text))
        for name, (text, operators) in MODELS.items()
    ],
)


@all_models
def test_inspect_of_unknown_operators_names_their_nodes(
    text: str, operators: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model_of(text), path)
    assert main(["inspect", str(path)]) == 0
    assert_named(capsys.readouterr().out, operators)
    assert main(["inspect", "--json", str(path)]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)) == 1
    assert_named(err, operators)


@all_models
@pytest.mark.parametrize("target", ["ort_gridsample", "primitives", "ai.onnx"])
def test_patch_of_unknown_operators_names_the_nodes_that_stay(
    text: str,
    operators: dict[str, list[str]],
    target: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model_of(text), path)
    assert main(["patch", str(path), str(tmp_path / "out.onnx"), "--target", target]) == 0
    out = capsys.readouterr().out
    assert "replaced\n" in out
    assert_named(out, operators)


@all_models
def test_session_of_unknown_operators_names_their_nodes(
    text: str, operators: dict[str, list[str]]
) -> None:
    model = model_of(text)
    with pytest.raises(Exception, match="ONNXRuntimeError") as refused:
        ogs.InferenceSession(model)
    assert_named(str(refused.value), operators)
    with pytest.raises(Exception, match="ONNXRuntimeError") as native:
        onnxruntime.InferenceSession(model_of(text.replace("SAMPLER", "Add")).SerializeToString())
    assert type(native.value).__module__ == type(refused.value).__module__


@pytest.mark.parametrize("text", KNOWN.values(), ids=KNOWN)
def test_known_operators_are_not_named(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model_of(text), path)
    assert main(["inspect", str(path)]) == 0
    assert main(["patch", str(path), str(tmp_path / "out.onnx")]) == 0
    assert "stay" not in capsys.readouterr().out
    ogs.InferenceSession(path)


def test_error_of_a_session_about_something_else_is_unchanged() -> None:
    model = model_of("{ S = SAMPLER (X, G) Y = Relu (S, S) }")
    with pytest.raises(Exception, match="ONNXRuntimeError") as refused:
        ogs.InferenceSession(model)
    assert STAY not in str(refused.value)


@needs_named_nodes
def test_session_of_a_model_without_sampling_nodes_names_unknown_operators() -> None:
    with pytest.raises(Exception, match="is not a registered") as refused:
        ogs.InferenceSession(model_of("{ [n] Y = mmdeploy.MMCVRoiAlign (X) }"))
    assert_named(str(refused.value), {"mmdeploy::MMCVRoiAlign": ["n"]})


@needs_named_nodes
def test_session_of_an_operator_of_a_domain_without_import_names_it() -> None:
    model = model_of("{ S = SAMPLER (X, G) [n] Y = other.Unknown (S) }")
    with pytest.raises(Exception, match="No opset import") as refused:
        ogs.InferenceSession(model)
    assert_named(str(refused.value), {"other::Unknown": ["n"]})


EXTENSIONS = "{ S = SAMPLER (X, G) T = ai.onnx.contrib.Inverse (S) Y = mmdeploy.MMCVRoiAlign (T) }"


def test_operators_of_onnxruntime_extensions_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model_of(EXTENSIONS), path)
    assert main(["inspect", str(path)]) == 0
    assert_named(capsys.readouterr().out, {"mmdeploy::MMCVRoiAlign": ["(Y)"]})


@pytest.mark.skipif(not find_spec("onnxruntime_extensions"), reason="it is not installed")
def test_operators_of_a_library_on_the_options_are_known() -> None:
    """The library of onnxruntime-extensions stands for any other library of custom ops."""
    # Its package, whose import takes seconds, returns this path.
    spec = find_spec("onnxruntime_extensions")
    assert spec is not None
    (folder,) = spec.submodule_search_locations or ()
    (library,) = Path(folder).glob("_extensions_pydll.*[do]")  # .so or .pyd
    options = onnxruntime.SessionOptions()
    model = model_of(
        """{ S = SAMPLER (X, G) C = Constant <value_strings = ["a"]> ()
        T = ai.onnx.contrib.StringUpper (C) Y = mmdeploy.MMCVRoiAlign (S) }"""
    )
    names = [str(operator) for operator in unknown_operators(model, scopes_of(model), options)]
    assert names == ["ai.onnx.contrib::StringUpper: (T)", "mmdeploy::MMCVRoiAlign: (Y)"]
    options.register_custom_ops_library(str(library))
    names = [str(operator) for operator in unknown_operators(model, scopes_of(model), options)]
    assert names == ["mmdeploy::MMCVRoiAlign: (Y)"]
    with pytest.raises(Exception, match="is not a registered") as refused:
        ogs.InferenceSession(model, options)
    assert_named(str(refused.value), {"mmdeploy::MMCVRoiAlign": ["(Y)"]})
