"""onnx's node tests of the operators."""

import importlib

from onnx.backend.test.case import node as node_cases

from ort_gridsample import spec

# Importing an operator's module registers its tests. Importing all operators takes 15 s.
for _operator in spec.OPERATORS:
    importlib.import_module(f"{node_cases.__name__}.{_operator.lower()}")

_PREFIXES = ("test_gridsample", "test_affine_grid")
#: The name of a test -> the test.
NODE_TESTS = {
    case.name: case for case in node_cases._NodeTestCases if case.name.startswith(_PREFIXES)
}
