"""The node tests that the onnx package ships for backends, through the ops in ONNX Runtime."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest
from onnx.backend.test.case import node as node_cases

import faults
import ort_gridsample as ogs
from ort_gridsample import spec
from ort_gridsample.runtime.compiled_ops.ops import why_not
from paths import open_compiled, open_native, open_patched_file, open_session, run

EXPANDED = "_expanded"


def load() -> dict[str, object]:
    """The tests by name. Importing an operator's module is what registers its tests; all operators take 15 s."""
    for operator in spec.OPERATORS:
        importlib.import_module(f"{node_cases.__name__}.{operator.lower()}")
    wanted = ("test_gridsample", "test_affine_grid")
    return {case.name: case for case in node_cases._NodeTestCases if case.name.startswith(wanted)}


CASES = load()
#: Those of an opset that this onnxruntime does not read are skipped.
NAMED = [pytest.param(name, marks=faults.skip_opset(c.model.opset_import[0].version)) for name, c in CASES.items()]


def test_all_are_there() -> None:
    assert len(CASES) >= 26
    assert any(EXPANDED in name for name in CASES)


@pytest.mark.parametrize("name", NAMED)
def test_node(name: str) -> None:
    """Or the operator's function body, in which there is nothing to patch: onnxruntime and the op agree with it."""
    case, op = CASES[name], CASES[name.partition(EXPANDED)[0]]
    patched = {(node.domain, node.op_type) for node in ogs.patch_model(case.model).graph.node}
    assert patched.isdisjoint(("", op_type) for op_type in spec.OPERATORS)
    assert any(domain == "ort_gridsample" for domain, _ in patched) == (case is op)
    sessions = [open_session(op.model), open_patched_file(op.model)]
    if case is not op:
        sessions += [open_native(case.model), open_session(case.model)]
    elif not why_not():
        sessions.append(open_compiled(op.model))
    for session, (inputs, outputs) in itertools.product(sessions, case.data_sets):
        for Y, expected in zip(run(session, inputs[0].dtype, *inputs), outputs, strict=True):
            assert (Y.dtype, Y.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(Y, expected, rtol=case.rtol, atol=max(case.atol, 1e-6))
