"""Shapes that a model declares, and that a run need not have."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx

from ..graph.scope import Scope
from ..spec import Shape
from .backward_slice import NamesByScope
from .types import Inference


def clear_unconfirmed_shapes(
    model: onnx.ModelProto, scopes: Sequence[Scope], requested_names: NamesByScope
) -> None:
    """Clear declared shapes and lengths of ``requested_names`` unless inference confirms them.

    onnxruntime replaces a Shape by what is declared, even if a run has other shapes.
    """
    declared = [
        (scope, value)
        for scope in scopes
        for value in scope.container.value_info
        if value.name in requested_names.get(id(scope), ())
        and value.type.tensor_type.HasField("shape")
    ]
    if not declared:
        return
    names: dict[int, list[str]] = {}
    for scope, value in declared:
        names.setdefault(id(scope), []).append(value.name)
    inference = Inference(model, scopes, requested_names=names, uses_declared_ranks=False)
    for scope, value in declared:
        if not inference.declares_exactly_as_inferred(scope, value):
            shapes = {
                inferred.shape for (inferred,) in inference.values_by_call(scope, [value.name])
            }
            _clear_unconfirmed(value, shapes)


def _clear_unconfirmed(
    value: onnx.ValueInfoProto,
    shapes: Collection[Shape | None],
) -> None:
    """Clear the lengths of ``value`` that are not those of all inferred ``shapes``."""
    tensor = value.type.tensor_type
    dims = tensor.shape.dim
    known = [shape for shape in shapes if shape is not None]
    is_inferred = len(known) == len(shapes)
    has_other_rank = any(len(shape) != len(dims) for shape in known)
    if has_other_rank or (not is_inferred and not dims):
        tensor.ClearField("shape")
        return
    for axis, dim in enumerate(dims):
        is_confirmed = is_inferred and all(shape[axis] == dim.dim_value for shape in known)
        if dim.HasField("dim_value") and not is_confirmed:
            dim.ClearField("dim_value")
