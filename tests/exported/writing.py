"""What the scripts here have in common: a PyTorch module in, a small ONNX model out."""

from __future__ import annotations

import argparse
import io
import warnings
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions, get_decompositions

DYNAMIC = torch.export.Dim.DYNAMIC


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def written(module: Any, inputs: tuple[Tensor, ...], **options: Any) -> onnx.ModelProto:
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


class Named(Call):
    """A function of two or three values, which the exporters call so."""

    def forward(self, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        return self.function(*([a, b] if c is None else [a, b, c]))


@dataclass
class Form:
    """A function, inputs to trace it with, their dynamic axes, and whether PyTorch's operators are decomposed first."""

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    axes: tuple[tuple[int, ...], ...] = ((), ())
    dynamo: bool = True
    decompose: bool = False
    opset: int = 18


def exported(form: Form) -> onnx.ModelProto:
    """The model that PyTorch writes."""
    names = "abc"[: len(form.inputs)]
    module = Named(form.function).eval()
    options = {"input_names": list(names), "output_names": ["Y"], "opset_version": form.opset}
    if not form.dynamo:
        axes = {n: {i: f"{n}{i}" for i in each} for n, each in zip(names, form.axes, strict=True)}
        model = written(module, form.inputs, dynamo=False, dynamic_axes=axes, **options)
    else:
        shapes = {name: dict.fromkeys(axes, DYNAMIC) for name, axes in zip(names, form.axes, strict=True)}
        program = torch.export.export(module, form.inputs, dynamic_shapes=shapes)
        if form.decompose:
            decompositions = core_aten_decompositions()
            decompositions.update(get_decompositions([torch.ops.aten.grid_sampler_2d]))
            program = program.run_decompositions(decompositions)
        model = written(program, (), **options)
    onnx.checker.check_model(anonymous(model))
    return model


def write(script: str, forms: Iterable[tuple[str, Form]]) -> None:
    """Write all models into the archive beside the ``script``, or the one that the command line names."""
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description="Make models, as this script's docstring says.")
    parser.add_argument("--into", type=Path, default=Path(script).with_suffix(".zip"), metavar="FILE")
    with zipfile.ZipFile(parser.parse_args().into, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, form in forms:
            entry = zipfile.ZipInfo(f"{name}.onnx", (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, exported(form).SerializeToString(deterministic=True))
