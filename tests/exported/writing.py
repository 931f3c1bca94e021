"""What the scripts here have in common: a PyTorch module in, a small ONNX model out."""

from __future__ import annotations

import argparse
import io
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnxscript.optimizer
import torch
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions, get_decompositions

Axes = Sequence[Sequence[int]]


class Call(nn.Module):
    """A function of two or three values as a module; the exporters call them so."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: Tensor, b: Tensor, c: Tensor | None = None) -> Any:
        return self.function(*([a, b] if c is None else [a, b, c]))


@dataclass
class Form:
    """A module, or a program that PyTorch traced already; named inputs to trace it with, and how it is exported."""

    module: Any
    inputs: Mapping[str, Tensor]
    outputs: Sequence[str] = ("Y",)
    opset: int = 20
    dynamo: bool = True
    dynamic: Mapping[str, Any] = field(default_factory=dict)  # what the exporter is told of axes
    other: Mapping[str, Tensor] | None = None  # where axes are dynamic, the inputs to run it on
    fold: bool = False  # by ONNX Script's optimizer


def called(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    axes: Axes = ((), ()),
    decompose: bool = False,
    **how: Any,
) -> Form:
    """The form of a function, with the dynamic axes of each input; whether PyTorch's operators are decomposed first."""
    module, named = Call(function).eval(), dict(zip("abc", inputs, strict=False))
    if how.get("dynamo", True):
        shapes = tuple(dict.fromkeys(each, torch.export.Dim.DYNAMIC) for each in axes)
        module = torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
    else:
        how["dynamic"] = {
            "dynamic_axes": {n: {i: f"{n}{i}" for i in e} for n, e in zip(named, axes, strict=True)}
        }
    if decompose:
        decompositions = core_aten_decompositions()
        decompositions.update(get_decompositions([torch.ops.aten.grid_sampler_2d]))
        module = module.run_decompositions(decompositions)
    return Form(module, named, **{"opset": 18} | how)


def anonymous(message: Any) -> Any:
    """``message`` without what the exporters note about the machine: stack traces, doc strings, profiling scopes.

    Types go as well: they are half of a small file, and onnxruntime infers them again.
    """
    for name in {"doc_string", "metadata_props", "value_info"}.intersection(
        message.DESCRIPTOR.fields_by_name
    ):
        message.ClearField(name)
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                anonymous(each)
    return message


def exported(form: Form) -> onnx.ModelProto:
    """The model that PyTorch writes."""
    options = {
        "input_names": [*form.inputs],
        "output_names": [*form.outputs],
        "opset_version": form.opset,
    }
    options |= {"dynamo": form.dynamo, "verbose": False, **form.dynamic}
    torch.onnx.export(form.module, tuple(form.inputs.values()), buffer := io.BytesIO(), **options)
    model = onnx.load_from_string(buffer.getvalue())
    model = anonymous(onnxscript.optimizer.optimize(model) if form.fold else model)
    onnx.checker.check_model(model, full_check=True)
    return model


def write(script: str, forms: Iterable[tuple[str, Form]]) -> None:
    """Write all models into the archive beside the ``script``, or the one that the command line names."""
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description="Make models, as this script's docstring says.")
    parser.add_argument(
        "--into", type=Path, default=Path(script).with_suffix(".zip"), metavar="FILE"
    )
    with zipfile.ZipFile(parser.parse_args().into, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, form in forms:
            entry = zipfile.ZipInfo(f"{name}.onnx", (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, exported(form).SerializeToString(deterministic=True))
