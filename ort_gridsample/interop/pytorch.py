"""``grid_sample`` and ``affine_grid`` of PyTorch as the standard operators, for its two exporters to ONNX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from .. import spec
from ..dialects.registry import dialects
from ..dialects.table import SAMPLERS, standard
from ..errors import GridSampleError
from ..functions import validation


def torch_translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The table for ``torch.onnx.export(…, dynamo=True, custom_translation_table=…)``.

    ``grid_sample`` becomes GridSample in every mode, of images and volumes, in If and Loop bodies too, in the spelling
    of the export's opset; ``affine_grid`` becomes AffineGrid, of sizes that may be dynamic, from opset 20 on.

    The first call teaches ``torch.export``, for this process, the shape of an affine grid; by itself it fixes the
    sizes.

    Raises:
        ImportError: PyTorch or onnxscript, which its exporter needs, is not installed.
        GridSampleError: in the export, ``affine_grid`` before opset 20.
    """
    evaluator: Any = import_module("onnxscript.evaluator")
    aten: Any = import_module("torch").ops.aten

    # The exporter tells attributes from inputs by their annotations.
    def grid_sample(input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
        opset = evaluator.default().opset  # the export's, whose operators record themselves
        attributes = _attributes(opset.version, interpolation_mode, padding_mode, align_corners)
        return opset.GridSample(input, grid, **attributes)

    def affine_grid(theta: Any, size: Any, align_corners: bool) -> Any:
        opset = evaluator.default().opset
        least = min(spec.OPERATORS["AffineGrid"])
        if opset.version < least:
            raise GridSampleError("affine_grid", "opset_version", str(opset.version), f"at least {least}")
        return opset.AffineGrid(theta, size, align_corners=int(align_corners))

    _teach_shape()
    table = {getattr(aten, name).default: grid_sample for name in SAMPLERS}
    return {**table, aten.affine_grid_generator.default: affine_grid}


@contextmanager
def torch_symbolics() -> Iterator[None]:
    """Let ``torch.onnx.export(…, dynamo=False)`` sample volumes at opsets 16 to 19 too, within the ``with``.

    That exporter writes GridSample and AffineGrid, of dynamic sizes too, by itself at opset 20.

    Raises:
        ImportError: PyTorch is not installed, or has this exporter no longer.
    """
    exporter: Any = import_module("torch.onnx")
    helper: Any = import_module("torch.onnx.symbolic_helper")

    @helper.parse_args("v", "v", "i", "i", "b")  # type: ignore[untyped-decorator]
    def grid_sample(g: Any, input: Any, grid: Any, mode: int, padding_mode: int, align_corners: bool) -> Any:
        attributes = _attributes(g.opset, mode, padding_mode, align_corners)
        suffixed = {f"{name}_{'s' if isinstance(value, str) else 'i'}": value for name, value in attributes.items()}
        return g.op("GridSample", input, grid, **suffixed)

    # The newest registered version counts that is not newer than the export's opset.
    known = "aten::grid_sampler", min(spec.OPERATORS["GridSample"])
    exporter.register_custom_op_symbolic(known[0], grid_sample, known[1])
    try:
        yield
    finally:
        exporter.unregister_custom_op_symbolic(*known)


def _attributes(opset: int, *numbers: int) -> Mapping[str, str | int]:
    """GridSample's attributes as ``opset`` spells them, of PyTorch's mode, padding mode and align_corners."""
    written = {}
    spelling = standard("GridSample", opset).attributes
    own = next(each for each in dialects() if each.op_type == SAMPLERS[0] and "aten" in each.domains)
    for (name, code), number in zip(own.attributes.items(), numbers, strict=True):
        plain = next((plain for plain, each in code.values.items() if each == number), None)
        if plain is None:
            raise GridSampleError("grid_sample", code.name, str(number), validation.listed(code.values.values()))
        written[spelling[name].name] = spelling[name].values[plain]
    return written


@cache
def _teach_shape() -> Any:
    """Teach PyTorch the shape of an affine grid; it forgets when the returned library is deleted."""
    torch: Any = import_module("torch")
    library = torch.library.Library("aten", "IMPL")

    def shape(theta: Any, size: Sequence[Any], align_corners: bool) -> Any:
        return theta.new_empty((size[0], *size[2:], len(size) - 2))

    torch.library.register_fake("aten::affine_grid_generator", shape, lib=library)
    # Else its own decomposition, which fixes the sizes, would still come first.
    torch._decomp.meta_table[torch.ops.aten.affine_grid_generator.default] = shape
    return library
