"""ONNX's numbers of the element types in :data:`ort_gridsample.spec.TYPES`."""

from __future__ import annotations

from onnx import TensorProto

from ..spec import TYPES


def elem_type(type_name: str) -> int:
    """Return ONNX's number of a type, by its name in :data:`ort_gridsample.spec.TYPES`."""
    return int(TensorProto.DataType.Value(TYPES[type_name].onnx.upper()))


def type_of(number: int) -> str | None:
    """Return the name of the type with ONNX's ``number``, or None if the table lacks it."""
    return next((name for name in TYPES if elem_type(name) == number), None)
