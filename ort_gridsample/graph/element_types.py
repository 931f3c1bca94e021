"""ONNX's numbers for the element types of the table."""

from __future__ import annotations

from onnx import TensorProto

from ..spec import TYPES


def elem_type(type_name: str) -> int:
    """ONNX's number for a type of :data:`ort_gridsample.spec.TYPES`."""
    return int(TensorProto.DataType.Value(TYPES[type_name].onnx.upper()))


def type_of(number: int) -> str | None:
    """The type of :data:`ort_gridsample.spec.TYPES` that is ONNX's ``number``; None where it is none of them."""
    return next((name for name in TYPES if elem_type(name) == number), None)
