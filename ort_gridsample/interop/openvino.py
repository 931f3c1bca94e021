"""The ops for OpenVINO: its own GridSample where it is correct, otherwise basic operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import onnx
from onnx import helper

from .. import spec
from ..dialects.registry import dialects
from ..dialects.spelling import Dialect
from ..dialects.table import ATTENTION, COMPILED, DOMAIN, PACKAGE_NODES
from ..errors import GridSampleError, where_node
from ..graph.element_types import elem_type
from ..patching import patch_model
from ..reference.taps import MODE_RULES

#: OpenVINO's names of element types that are not a letter and a number of bits.
_TYPES = {"bf16": "bfloat16", "boolean": "bool", "string": "str"}
_LETTERS = {"f": "float", "i": "int", "u": "uint"}
#: GridSample-9 has the mode names of opset 16.
_MODES = {mode: synonym for synonym, mode in spec.MODE_SYNONYMS.items()}


def openvino_extensions() -> list[Any]:
    """Return extensions for ``Core.add_extension``, with which OpenVINO reads patched models.

    >>> core.add_extension(openvino_extensions())    # doctest: +SKIP

    The targets ``"ort_gridsample"`` and ``"compiled"`` write these ops.

    A GridSample with two spatial axes becomes OpenVINO's own if X is floating point, or if the mode
    is nearest and X is not of strings. All other GridSamples and AffineGrid become the basic
    operators of the target ``"primitives"``: OpenVINO does not have these operators, or rounds
    integers that should be truncated. Wrong shapes raise OpenVINO's errors. But an X whose lengths
    are known only in a run, and which has no pixels there, is treated as one pixel of 0, with any
    padding. OpenVINO does not read model-local functions: inline them first, with
    ``onnx.inliner.inline_local_functions``.

    Returns:
        The extensions, for ``openvino.Core.add_extension``. When OpenVINO reads a model, they raise
        its RuntimeError with the text of a GridSampleError if X is of strings, if a type or a
        number of axes is unknown, or if a session wrote the model and fused deformable attention.

    Raises:
        ImportError: OpenVINO is not installed.
    """
    extension = import_module("openvino.frontend.onnx").ConversionExtension
    all_dialects = (*PACKAGE_NODES, *dialects())
    return [
        extension(dialect.op_type, dialect.domain, partial(_convert, dialect))
        for dialect in all_dialects
        if dialect.name in (DOMAIN, COMPILED)
    ]


def _convert(dialect: Dialect, node: Any) -> list[Any]:
    """Return the outputs of the operators that replace ``node``, OpenVINO's view of a node."""
    operator = dialect.operator
    node_name = node.get_attribute("node", "")
    if operator == ATTENTION:
        # Only a session writes this op, in a model that onnxruntime saves.
        expected = "GridSamples, as in a model that patch_model writes"
        raise GridSampleError(where_node(operator, node_name), "the node", "fused", expected)
    version = spec.newest(operator)
    defaults = {name: attribute.default for name, attribute in version.attributes.items()}
    attributes = {name: node.get_attribute(name, value) for name, value in defaults.items()}
    if "mode" in attributes:
        attributes["mode"] = spec.mode_of(attributes["mode"])
    inputs = [node.get_input(index) for index in range(len(version.types))]
    types = [_type_name(value) for value in inputs]
    if types[0] == "str":
        expected = "another type, as OpenVINO has no strings"
        raise GridSampleError(where_node(operator, node_name), "X", "of type str", expected)
    for argument, input_type in zip(version.types, types, strict=True):
        if input_type not in spec.TYPES:
            found = f"of type {input_type}"
            expected = f"a type that {operator} has"
            raise GridSampleError(where_node(operator, node_name), argument, found, expected)

    if operator == "GridSample" and _is_supported(inputs[0], types[0], attributes["mode"]):
        result = _openvino_grid_sample(inputs, attributes)
    else:
        standard = helper.make_node(operator, [*version.types], ["output"], node_name, **attributes)
        result = _lower(standard, inputs, types)
    if dialect.domain != DOMAIN:
        return [result]
    return [result, _positions(result)]


def _is_supported(X: Any, X_type: str, mode: str) -> bool:
    """Whether OpenVINO's own GridSample is correct for this X and mode.

    For an X without pixels it reads memory outside of X: see :func:`_with_pixel` for lengths that
    are known only in a run.
    """
    shape = _shape(X)
    if shape is None or len(shape) != 4 or 0 in shape:
        return False
    return MODE_RULES[mode].copies_values or X_type in spec.FLOATS


def _openvino_grid_sample(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    opset: Any = import_module("openvino.opset13")
    X, grid = inputs
    mode = attributes["mode"]
    converted = {
        **attributes,
        "mode": _MODES.get(mode, mode),
        "align_corners": bool(attributes["align_corners"]),
    }
    return opset.grid_sample(_with_pixel(X), grid, converted).output(0)


def _with_pixel(X: Any) -> Any:
    """Return X, or an X whose only pixel is 0 if a run finds that X has no pixels.

    OpenVINO would read memory outside of X.
    """
    shape = _shape(X)
    assert shape is not None  # see _is_supported
    if None not in shape[2:]:
        return X
    opset: Any = import_module("openvino.opset13")
    min_lengths = opset.constant(np.array([0, 0, 1, 1], np.int64))
    zeros = opset.constant(np.zeros(4, np.int64))
    missing = opset.maximum(opset.subtract(min_lengths, opset.shape_of(X)), zeros)
    return opset.pad(X, zeros, missing, "constant").output(0)


def _positions(result: Any) -> Any:
    """Return the second output of a Python op: the positions that its guard gathers."""
    opset: Any = import_module("openvino.opset13")
    zero = opset.constant(np.array(0, np.int64))
    one = opset.constant(np.array(1, np.int64))
    length = opset.gather(opset.shape_of(result), zero, zero)
    positions = opset.range(zero, length, one, output_type="i64")
    return opset.unsqueeze(positions, one).output(0)


def _lower(node: onnx.NodeProto, inputs: Sequence[Any], types: Sequence[str]) -> Any:
    """Return the output of ``node`` after lowering it to basic operators.

    Args:
        inputs: OpenVINO's inputs. Their known shapes are used for the lowering.
        types: the names of their types in :data:`ort_gridsample.spec.TYPES`.
    """
    known = zip(node.input, map(elem_type, types), map(_shape, inputs), strict=True)
    values = [helper.make_tensor_value_info(*value) for value in known]
    output = helper.make_tensor_value_info("output", elem_type(types[0]), None)
    graph = helper.make_graph([node], node.op_type, values, [output])
    opset = helper.make_opsetid("", max(spec.OPERATORS["GridSample"]))
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    lowered = patch_model(model, target="primitives")

    ov_model = import_module("openvino").Core().read_model(lowered.SerializeToString(), b"")
    for parameter, value in zip(ov_model.get_parameters(), inputs, strict=True):
        parameter.output(0).replace(value)
    return ov_model.get_results()[0].input_value(0)


def _type_name(value: Any) -> str:
    """Return the name of a value's type, in :data:`ort_gridsample.spec.TYPES` if it is there."""
    name = value.get_element_type().get_type_name()
    if name in _TYPES:
        return _TYPES[name]
    letter = name[0]
    bits = name[1:]
    if letter not in _LETTERS or not bits.isdecimal():
        return name
    return _LETTERS[letter] + bits


def _shape(value: Any) -> list[int | None] | None:
    """Return the lengths of a value, None for each unknown one; None if the rank is unknown."""
    shape = value.get_partial_shape()
    if shape.rank.is_dynamic:
        return None
    return [dim.get_length() if dim.is_static else None for dim in shape]
