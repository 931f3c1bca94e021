"""The types of a model's values, and nodes with types that an older opset does not allow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import defs, helper, shape_inference

from ... import spec
from ...graph.scope import Scope, domain_of, scopes_of
from ...inference.types import Inference
from ..schema_functions import schema_of
from .obstacles import ObstacleError


def inference_of_all_values(model: onnx.ModelProto, scopes: Sequence[Scope]) -> Inference:
    """Return the inference of the types of all values that nodes of ``model`` make.

    Args:
        model: the model whose values are inferred; not changed.
        scopes: the scopes of ``model``.
    """
    values = {}
    for scope in scopes:
        values[id(scope)] = {name for outputs in scope.outputs for name in outputs if name}
    return Inference(model, scopes, _IdentityProbe(), values)


class _IdentityProbe:
    """A probe that returns the types behind operators of ONNX for which onnx infers none."""

    #: Operators whose output has the type of their first input.
    op_types = ("GroupNormalization", "MeanVarianceNormalization")

    def types_of(self, model: onnx.ModelProto) -> Mapping[str, onnx.TypeProto]:
        """Return the types that onnx infers if these operators are replaced by Identity."""
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        standard_nodes = [node for node in copy.graph.node if not domain_of(node.domain)]
        nodes = [node for node in standard_nodes if node.op_type in self.op_types]
        if not nodes:
            return {}
        for node in nodes:
            node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output[:1]))
        inferred = shape_inference.infer_shapes(copy).graph
        values = [*inferred.value_info, *inferred.output]
        return {value.name: value.type for value in values if value.type.tensor_type.elem_type}

    def refusal(self, *args: Any) -> str:
        """Return no reason to refuse a model."""
        return ""

    def outputs(self, *args: Any) -> None:
        """Run no model."""


def nodes_with_forbidden_types(
    model: onnx.ModelProto,
    inference: Inference,
    scopes: Sequence[Scope],
    *,
    new_opset: int,
    unconverted: Collection[tuple[int, str]],
) -> Iterator[tuple[Scope, onnx.NodeProto, ObstacleError]]:
    """Yield the nodes of ``model`` with types that an opset does not allow, and their obstacles.

    The scope of a node is one of ``scopes``.

    Args:
        inference: the types of the values before the conversion.
        scopes: the scopes before the conversion.
        new_opset: the opset of ``model``.
        unconverted: outputs of nodes that are not converted, which are left out. Each is the id of
            its scope among ``scopes``, and its name.
    """
    new_scopes = scopes_of(model)
    new_inference = inference_of_all_values(model, new_scopes)
    for new_scope, old_scope in zip(new_scopes, scopes, strict=True):

        def type_of(name: str, new: Scope = new_scope, old: Scope = old_scope) -> str | None:
            old_type = (
                inference.value_in_all_calls(old, name).type
                if old.defining_scope(name) is not None
                else None
            )
            return old_type or new_inference.value_in_all_calls(new, name).type

        for node in new_scope:
            if domain_of(node.domain):
                continue
            if any((id(old_scope), name) in unconverted for name in node.output):
                continue
            schema = schema_of(node.op_type, new_opset)
            if schema is None:
                continue
            obstacle = _forbidden_type(node, schema, new_opset, type_of)
            if obstacle is not None:
                yield old_scope, node, obstacle


def _forbidden_type(
    node: onnx.NodeProto,
    schema: defs.OpSchema,
    new_opset: int,
    type_of: Callable[[str], str | None],
) -> ObstacleError | None:
    """Return the obstacle of the first type of ``node`` that ``schema`` does not allow."""
    # In onnx 1.20, the types of a parameter itself cannot be read.
    constraints = {
        constraint.type_param_str: constraint.allowed_type_strs
        for constraint in schema.type_constraints
    }
    first_types: dict[str, str] = {}  # type parameter -> the type of the first value that has it
    for values, parameters in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for index, name in enumerate(values):
            type_name = type_of(name) if name and parameters else None
            if not type_name:
                continue
            parameter = parameters[min(index, len(parameters) - 1)]
            allowed_types = constraints.get(parameter.type_str, (parameter.type_str,))
            if _schema_type(type_name) not in allowed_types:
                expected = f"a type that opset {new_opset} has for {parameter.name}"
                return ObstacleError(f"the type of {name}", type_name, expected)
            is_bound = parameter.is_homogeneous and parameter.type_str in constraints
            if not is_bound:
                continue
            first_type = first_types.setdefault(parameter.type_str, type_name)
            if first_type != type_name:
                expected = f"{first_type} in opset {new_opset}, as another input has"
                return ObstacleError(f"the type of {name}", type_name, expected)
    return None


def _schema_type(type_name: str) -> str:
    """Return a type as the schemas of operators write it."""
    known = spec.TYPES.get(type_name)
    return f"tensor({known.onnx if known is not None else type_name})"
