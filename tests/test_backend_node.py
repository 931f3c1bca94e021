"""The node tests that the onnx package ships for backends, through the ops in ONNX Runtime."""

from __future__ import annotations

import importlib

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.backend.test.case import node as node_cases

import faults
import ort_gridsample as ogs
from ort_gridsample import spec
from ort_gridsample.runtime.compiled_ops.ops import why_not
from paths import open_compiled, open_native, open_patched_file, open_session

EXPANDED = "_expanded"


def load() -> dict[str, object]:
    """The tests by name. Importing an operator's module is what registers its tests; all operators take 15 s."""
    for operator in spec.OPERATORS:
        importlib.import_module(f"{node_cases.__name__}.{operator.lower()}")
    wanted = ("test_gridsample", "test_affine_grid")
    return {case.name: case for case in node_cases._NodeTestCases if case.name.startswith(wanted)}


CASES = load()


def named(is_expanded: bool) -> list:
    """The names of the nodes, or of their bodies; those of an opset that this onnxruntime does not read are skipped."""
    return [
        pytest.param(name, marks=faults.skip_opset(case.model.opset_import[0].version))
        for name, case in CASES.items()
        if (EXPANDED in name) == is_expanded
    ]


def run(session: onnxruntime.InferenceSession, inputs: list[np.ndarray]) -> list[np.ndarray]:
    return session.run(None, {each.name: value for each, value in zip(session.get_inputs(), inputs, strict=True)})


def assert_close(found: list[np.ndarray], expected: list[np.ndarray], case) -> None:
    for Y, answer in zip(found, expected, strict=True):
        assert (Y.dtype, Y.shape) == (answer.dtype, answer.shape)
        np.testing.assert_allclose(Y, answer, rtol=case.rtol, atol=max(case.atol, 1e-6))


def operators(model: onnx.ModelProto) -> list[tuple[str, str]]:
    return [(node.domain, node.op_type) for node in model.graph.node]


def test_all_are_there() -> None:
    assert len(CASES) >= 26
    assert named(True)


@pytest.mark.parametrize("name", named(False))
def test_node(name: str) -> None:
    case = CASES[name]
    [(_, op_type)] = operators(case.model)
    patched = operators(ogs.patch_model(case.model))
    assert any(domain == "ort_gridsample" for domain, _ in patched)
    assert ("", op_type) not in patched
    for open_model in (open_session, open_patched_file, *[open_compiled] * (not why_not())):
        for inputs, outputs in case.data_sets:
            assert_close(run(open_model(case.model), inputs), outputs, case)


@pytest.mark.parametrize("name", named(True))
def test_expanded(name: str) -> None:
    # It holds the operator's function body, nothing to patch: onnxruntime, this session and the op must agree.
    case = CASES[name]
    op = CASES[name.partition(EXPANDED)[0]]
    assert not any(op_type in spec.OPERATORS for _, op_type in operators(case.model))
    for inputs, outputs in case.data_sets:
        native = run(open_native(case.model), inputs)
        assert_close(run(open_session(case.model), inputs), native, case)
        assert_close(native, outputs, case)
        assert_close(run(open_session(op.model), inputs), native, case)
