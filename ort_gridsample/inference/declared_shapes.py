"""Shapes that a model declares, and that a run need not have."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx

from ..graph.scope import Scope
from ..spec import Shape
from .backward_slice import NamesByScope
from .types import Inference


def names_with_declared_shapes(scopes: Sequence[Scope]) -> dict[int, list[str]]:
    """Return the values whose shapes value_info declares, by the id of their scope."""
    names: dict[int, list[str]] = {}
    for scope in scopes:
        for value in scope.container.value_info:
            if value.type.tensor_type.HasField("shape"):
                names.setdefault(id(scope), []).append(value.name)
    return names


def clear_unconfirmed_shapes(
    scopes: Sequence[Scope], names: NamesByScope, inference: Inference
) -> None:
    """Clear declared shapes and lengths unless inference confirms them.

    onnxruntime replaces a Shape by what is declared, even if a run has other shapes.

    Args:
        names: the values whose declarations are cleared, by the id of their scope.
        inference: the inference of the model, which can confirm :func:`names_with_declared_shapes`.
    """
    for scope in scopes:
        names_in_scope = names.get(id(scope), ())
        if not names_in_scope:
            continue
        values = [value for value in scope.container.value_info if value.name in names_in_scope]
        for value in inference.inexactly_declared(scope, values):
            if value.type.tensor_type.HasField("shape"):
                _clear_unconfirmed(value, inference.confirmed_shapes(scope, value.name))


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
