"""The ops for OpenVINO: its own GridSample where that is right, elsewhere basic operators."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import onnx
from onnx import helper

from .. import spec
from ..dialects.registry import dialects
from ..dialects.spelling import Dialect
from ..dialects.table import COMPILED, DOMAIN, PACKAGE_DIALECTS
from ..errors import GridSampleError, where
from ..graph.element_types import elem_type
from ..patching import patch_model

#: OpenVINO's names of element types: a letter and the number of bits, but for these.
_TYPES = {"bf16": "bfloat16", "boolean": "bool", "string": "str"}
_LETTERS = {"f": "float", "i": "int", "u": "uint"}
#: GridSample-9 has opset 16's names.
_MODES = {mode: synonym for synonym, mode in spec.MODE_SYNONYMS.items()}


def openvino_extensions() -> list[Any]:
    """The extensions with which OpenVINO reads models patched to the targets ``"ort_gridsample"`` and ``"compiled"``.

    >>> core.add_extension(openvino_extensions())    # doctest: +SKIP

    In two axes a GridSample of floats, or nearest of any numbers, becomes OpenVINO's own. Every other one, and
    AffineGrid, becomes the basic operators of the target ``"primitives"``: OpenVINO has none, or rounds where integers
    are truncated. Wrong shapes are refused in OpenVINO's words. OpenVINO reads no model-local functions: inline them
    first, with ``onnx.inliner.inline_local_functions``.

    Raises:
        ImportError: OpenVINO is not installed.
        RuntimeError: OpenVINO's, where it reads the model, with a :class:`GridSampleError` in its text: X is of
            strings, or a type or a number of axes is unknown.
    """
    extension = import_module("openvino.frontend.onnx").ConversionExtension
    known = [*PACKAGE_DIALECTS.values(), *(dialect for dialect in dialects() if dialect.name == COMPILED)]
    return [extension(dialect.op_type, dialect.domain, partial(_convert, dialect)) for dialect in known]


def _convert(dialect: Dialect, node: Any) -> list[Any]:
    """The outputs of the operators that replace ``node``, OpenVINO's view of a node."""
    opset: Any = import_module("openvino.opset13")
    operator, label, version = dialect.operator, node.get_attribute("node", ""), spec.newest(dialect.operator)
    attributes = {name: node.get_attribute(name, each.default) for name, each in version.attributes.items()}
    inputs = [node.get_input(position) for position in range(len(version.types))]
    types = [_type_name(each) for each in inputs]
    if types[0] == "str":
        raise GridSampleError(where(operator, label), "X", "of type str", "another type, as OpenVINO has no strings")
    # OpenVINO's GridSample is right for these; of an X without pixels it reads memory beside it.
    fits = len(shape := _shape(inputs[0]) or []) == 4 and 0 not in shape
    if operator == "GridSample" and fits and (attributes["mode"] == "nearest" or types[0] in spec.FLOATS):
        mode = _MODES.get(attributes["mode"], attributes["mode"])
        named = attributes | {"mode": mode, "align_corners": bool(attributes["align_corners"])}
        answer = opset.grid_sample(*inputs, named).output(0)
    else:
        answer = _lowered(helper.make_node(operator, [*version.types], ["output"], label, **attributes), inputs, types)
    # A Python op's second output has the positions that its guard gathers.
    if dialect.domain != DOMAIN:
        return [answer]
    zero, one = (opset.constant(np.array(number, np.int64)) for number in (0, 1))
    length = opset.gather(opset.shape_of(answer), zero, zero)
    return [answer, opset.unsqueeze(opset.range(zero, length, one, output_type="i64"), one).output(0)]


def _lowered(node: onnx.NodeProto, inputs: list[Any], types: list[str]) -> Any:
    """The output of ``node``, lowered to basic operators, for OpenVINO's ``inputs``, of the shapes that it knows."""
    known = zip(node.input, map(elem_type, types), map(_shape, inputs), strict=True)
    values = [helper.make_tensor_value_info(*each) for each in known]
    output = helper.make_tensor_value_info("output", elem_type(types[0]), None)
    opset = helper.make_opsetid("", max(spec.OPERATORS["GridSample"]))
    graph = helper.make_graph([node], node.op_type, values, [output])
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    lowered = patch_model(model, target="primitives")
    read = import_module("openvino").Core().read_model(lowered.SerializeToString(), b"")
    for parameter, value in zip(read.get_parameters(), inputs, strict=True):
        parameter.output(0).replace(value)
    return read.get_results()[0].input_value(0)


def _type_name(value: Any) -> str:
    """The type's name in :data:`ort_gridsample.spec.TYPES`."""
    name = value.get_element_type().get_type_name()
    return _TYPES.get(name) or _LETTERS.get(name[0], name[0]) + name[1:]


def _shape(value: Any) -> list[int | None] | None:
    shape = value.get_partial_shape()
    return None if shape.rank.is_dynamic else [d.get_length() if d.is_static else None for d in shape]
