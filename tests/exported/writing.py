"""What export.py and unrolled.py have in common: a PyTorch module in, a small ONNX model out."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import onnx
import torch
from torch import nn


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def written(module: Any, inputs: tuple[torch.Tensor, ...], **options: Any) -> onnx.ModelProto:
    """The model that PyTorch writes."""
    buffer = io.BytesIO()
    torch.onnx.export(module, inputs, buffer, verbose=False, **options)
    return onnx.load_from_string(buffer.getvalue())


def anonymous(message: Any) -> Any:
    """``message`` without what the exporters note about the machine: stack traces, doc strings, profiling scopes.

    Types go as well: they are half of a small file, and onnxruntime infers them again.
    """
    for name in {"doc_string", "metadata_props", "value_info"}.intersection(message.DESCRIPTOR.fields_by_name):
        message.ClearField(name)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                anonymous(each)
    return message
