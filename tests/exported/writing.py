"""Export PyTorch modules as small ONNX models, for the scripts in this folder."""

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
    """A function of two or three values as a module, which the exporters need."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: Tensor, b: Tensor, c: Tensor | None = None) -> Any:
        return self.function(*([a, b] if c is None else [a, b, c]))


@dataclass
class Form:
    """A module with its inputs, and how it is exported.

    Attributes:
        module: a module, or a program that PyTorch has traced.
        inputs: the inputs to trace it with, by name.
        outputs: the names of the outputs.
        opset: the opset.
        dynamo: whether the dynamo exporter writes it, or the TorchScript exporter.
        dynamic: the exporter's arguments for dynamic axes.
        other: inputs of other lengths to run it with, if axes are dynamic.
        fold: whether ONNX Script's optimizer folds constants.
    """

    module: Any
    inputs: Mapping[str, Tensor]
    outputs: Sequence[str] = ("Y",)
    opset: int = 20
    dynamo: bool = True
    dynamic: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Tensor] | None = None
    fold: bool = False


def called(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    axes: Axes = ((), ()),
    decompose: bool = False,
    **how: Any,
) -> Form:
    """Return the form of a function.

    Args:
        function: a function of two or three tensors.
        inputs: the inputs to trace it with.
        axes: the dynamic axes of each input.
        decompose: whether PyTorch's operators are decomposed before the export.
        how: attributes of the form.
    """
    module = Call(function).eval()
    named = dict(zip("abc", inputs, strict=False))
    if how.get("dynamo", True):
        shapes = tuple(dict.fromkeys(input_axes, torch.export.Dim.DYNAMIC) for input_axes in axes)
        module = torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
    else:
        dynamic_axes = {
            name: {axis: f"{name}{axis}" for axis in input_axes}
            for name, input_axes in zip(named, axes, strict=True)
        }
        how["dynamic"] = {"dynamic_axes": dynamic_axes}
    if decompose:
        decompositions = core_aten_decompositions()
        decompositions.update(get_decompositions([torch.ops.aten.grid_sampler_2d]))
        module = module.run_decompositions(decompositions)
    return Form(module, named, **{"opset": 18} | how)


def anonymous(message: Any) -> Any:
    """Remove what the exporters write about the machine: stack traces, doc strings and scopes.

    Types are removed as well: they are half of a small file, and onnxruntime infers them.
    """
    for name in {"doc_string", "metadata_props", "value_info"}.intersection(
        message.DESCRIPTOR.fields_by_name
    ):
        message.ClearField(name)
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for child in [value] if hasattr(value, "ListFields") else value:
                anonymous(child)
    return message


def exported(form: Form) -> onnx.ModelProto:
    """Return the checked model that PyTorch writes."""
    options = {
        "input_names": [*form.inputs],
        "output_names": [*form.outputs],
        "opset_version": form.opset,
    }
    options |= {"dynamo": form.dynamo, "verbose": False, **form.dynamic}
    buffer = io.BytesIO()
    torch.onnx.export(form.module, tuple(form.inputs.values()), buffer, **options)
    model = onnx.load_from_string(buffer.getvalue())
    model = anonymous(onnxscript.optimizer.optimize(model) if form.fold else model)
    onnx.checker.check_model(model, full_check=True)
    return model


def write(script: str, forms: Iterable[tuple[str, Form]]) -> None:
    """Write all models to the archive next to ``script``, or to the one on the command line."""
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
