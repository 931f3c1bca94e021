"""Check that the nodes of a converted model are what its opset allows.

onnx's version converter does not check its result, and keeps the inputs or attributes of some nodes
that the new opset lacks. onnxruntime refuses such a model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

import onnx
from onnx import shape_inference

from ..errors import GridSampleError, nested_name, one_line, where_node
from ..graph.scope import Scope, display_name, domain_of, opset_of, where_of
from .inlining import without_weights
from .schema_functions import schema_of

_Option = onnx.defs.OpSchema.FormalParameterOption


def check_signatures(scopes: Iterable[Scope], old_opset: int, opset: int) -> None:
    """Check the operator, the inputs, the outputs and the attributes of each standard node.

    Args:
        old_opset: its opset before the conversion.
        opset: its opset.

    Raises:
        GridSampleError: the opset lacks an operator, or a part of a node.
    """
    for scope in scopes:
        for node in scope:
            if domain_of(node.domain):
                continue
            problem = _problem_of(node, old_opset, opset)
            if problem is not None:
                where = where_node(node.op_type, nested_name(display_name(node), scope.path))
                raise GridSampleError(where, *problem)


def _problem_of(node: onnx.NodeProto, old_opset: int, opset: int) -> tuple[str, str, str] | None:
    """Return what ``opset`` does not allow of ``node``: an argument, what it is and should be."""
    schema: Any = schema_of(node.op_type, opset)
    # onnxruntime runs GroupNormalization-18, which was deprecated later.
    if schema is None or (schema.deprecated and schema.since_version > old_opset):
        return "opset", f"{opset} in the patched model", f"one that has {node.op_type}"
    kinds = (("input", node.input, schema.inputs), ("output", node.output, schema.outputs))
    for kind, values, parameters in kinds:
        problem = _problem_of_values(kind, values, parameters, opset)
        if problem is not None:
            return problem
    given = {attribute.name for attribute in node.attribute}
    for name in given - schema.attributes.keys():
        return name, "given", f"no such attribute in opset {opset}"
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in given:
            return name, "missing", f"an attribute in opset {opset}"
    return None


def _problem_of_values(
    kind: str,
    values: Sequence[str],
    parameters: Sequence[Any],
    opset: int,
) -> tuple[str, str, str] | None:
    """Like :func:`_problem_of`, for the inputs or the outputs of a node."""
    values = list(values)
    while values and not values[-1]:
        del values[-1]
    is_variadic = bool(parameters) and parameters[-1].option == _Option.Variadic
    if len(values) > len(parameters) and not is_variadic:
        argument = f"the number of {kind}s"
        return argument, str(len(values)), f"at most {len(parameters)} in opset {opset}"
    for index, parameter in enumerate(parameters):
        is_given = index < len(values) and bool(values[index])
        if parameter.option == _Option.Single and not is_given:
            return parameter.name, "left out", f"an {kind} in opset {opset}"
    return None


def check_types(model: onnx.ModelProto, source: onnx.ModelProto, opset: int) -> None:
    """Check that the types of all values are those that their nodes have in the opset.

    Args:
        source: the model before the conversion, without weights. If it has a wrong type itself,
            nothing is checked, unless the opset is older.
        opset: the opset of ``model``.

    Raises:
        GridSampleError: a node has a value of another type.
    """
    light = without_weights(model)
    error = _type_error(light)
    if error is None:
        return
    is_older = opset < opset_of(source)
    if not is_older and _type_error(source) is not None:
        return
    nodes = light.graph.node
    del light.graph.output[:]

    def fails_up_to(last: int) -> bool:
        """Whether the check fails on the nodes up to the index ``last``."""
        part = onnx.ModelProto()
        part.CopyFrom(light)
        del part.graph.node[last + 1 :]
        return _type_error(part) is not None

    index = bisect_left(range(len(nodes)), True, key=fails_up_to)
    where = where_of(nodes[index]) if index < len(nodes) else "model"
    expected = f"one that has the types of all nodes, and onnx says: {one_line(error)}"
    raise GridSampleError(where, "opset", f"{opset} in the patched model", expected)


def _type_error(model: onnx.ModelProto) -> Exception | None:
    """Return the error that onnx's inference of types raises, or None."""
    try:
        shape_inference.infer_shapes(model, check_type=True)
    except shape_inference.InferenceError as error:
        return error
    return None
