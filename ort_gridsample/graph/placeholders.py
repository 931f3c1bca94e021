"""Placeholders: tensors with a name, a type and a shape whose values are not in the model.

The values are in a file of external data (:mod:`.external_data`), belong to a
:class:`.ModelSource`, or are unknown. ONNX has one mark for all of them, that of external data, and
its tools read no values of a tensor with this mark. Nothing else in this package reads or writes
the mark.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnx import TensorProto

#: The location of values that are not in the tensor.
_ELSEWHERE = TensorProto.EXTERNAL


def is_placeholder(tensor: TensorProto) -> bool:
    """Whether the values of ``tensor`` are not in the model."""
    return tensor.data_location == _ELSEWHERE


def new_placeholder(data_type: int, dims: Iterable[int], name: str = "") -> TensorProto:
    """Return a placeholder of an element type of ONNX."""
    return TensorProto(name=name, data_type=data_type, dims=dims, data_location=_ELSEWHERE)


def make_placeholder(tensor: TensorProto) -> None:
    """Mark ``tensor`` as a placeholder. Nothing reads values that it has while it is marked."""
    tensor.data_location = _ELSEWHERE


def remove_mark(tensor: TensorProto) -> None:
    """Make ``tensor`` a tensor that has its values."""
    tensor.ClearField("data_location")
    tensor.ClearField("external_data")


def refer_to(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """State in a placeholder where its values are: bytes of the file at ``location``."""
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="offset", value=str(offset))
    tensor.external_data.add(key="length", value=str(length))
