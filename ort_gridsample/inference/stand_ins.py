"""Functions that represent sampling nodes in a backward slice.

onnx's shape inference does not know all spellings of the operators, nor all operators in all
opsets. In the slice, each sampling node is therefore a call of a function whose body is the newest
standard operator. Deformable attention has no stand-in: the call is of an unknown function, so its
output type stays unknown.
"""

from __future__ import annotations

import onnx
from onnx import parser

from .. import spec
from ..dialects.spelling import Dialect

#: The domain of the functions.
STAND_IN = "ort_gridsample.inference.backward_slice"


def _operator_functions() -> list[onnx.FunctionProto]:
    """Return a function for the newest version of each standard operator."""
    functions = []
    for operator, versions in spec.OPERATORS.items():
        newest = max(versions)
        inputs = ", ".join(versions[newest].types)
        text = f"""<domain: "{STAND_IN}", opset_import: ["": {newest}]>
            {operator} ({inputs}) => (Y) {{ Y = {operator} ({inputs}) }}"""
        functions.append(parser.parse_function(text))
    return functions


def _planar_name(n_axes: int) -> str:
    return f"GridSample of {n_axes} planes"


def _planar_functions() -> list[onnx.FunctionProto]:
    """Return the functions for samplers whose grid has its coordinates in axis 1."""
    newest = max(spec.OPERATORS["GridSample"])
    functions = []
    for n_axes in (2, 3):
        perm = [0, *range(2, n_axes + 2), 1]
        function = parser.parse_function(
            f"""<domain: "{STAND_IN}", opset_import: ["": {newest}]> planar (X, grid) => (Y) {{
                G = Transpose <perm = {perm}> (grid) Y = GridSample (X, G) }}""",
        )
        function.name = _planar_name(n_axes)
        functions.append(function)
    return functions


#: All functions by their names.
STAND_INS = {function.name: function for function in (*_operator_functions(), *_planar_functions())}


def stand_in_name(dialect: Dialect) -> str:
    """Return the name of the function that represents a node of ``dialect``.

    :data:`STAND_INS` has no function for deformable attention.
    """
    if dialect.has_planar_grids and dialect.axes:
        return _planar_name(dialect.axes[0])
    return dialect.operator
