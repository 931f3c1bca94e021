"""PyTorch's ``grid_sample`` and ``affine_grid`` as standard operators, for its two exporters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from typing import Any

from .. import spec
from ..dialects.registry import dialects
from ..dialects.table import SAMPLERS, standard
from ..errors import GridSampleError
from ..system.process import created_once

#: The functions of the contexts of :func:`torch_symbolics` that have not ended. The first context
#: registers its function with PyTorch, the last one to end unregisters it.
_active_symbolics: list[Callable[..., Any]] = []
_symbolics_lock = Lock()


def torch_translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the ``custom_translation_table`` for ``torch.onnx.export(…, dynamo=True)``.

    ``grid_sample`` becomes GridSample in all modes, for images and volumes, also in the bodies of
    If and Loop. ``affine_grid`` becomes AffineGrid from opset 20 on, also with dynamic sizes.

    >>> table = torch_translation_table()                                   # doctest: +SKIP
    >>> torch.onnx.export(model, arguments, "model.onnx", dynamo=True,
    ...                   custom_translation_table=table)                   # doctest: +SKIP

    A GridSample has the attributes of the export's opset.

    The first call registers a shape function for affine grids with ``torch.export``, for this
    process. PyTorch's own function makes sizes constant.

    Returns:
        PyTorch's operators, and the functions that write their nodes. The export raises
        GridSampleError for ``affine_grid`` before opset 20.

    Raises:
        ImportError: PyTorch, or onnxscript, which its exporter needs, is not installed.
    """
    evaluator: Any = import_module("onnxscript.evaluator")
    aten: Any = import_module("torch").ops.aten

    # The exporter distinguishes attributes from inputs by these annotations.
    def grid_sample(
        input: Any,
        grid: Any,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
    ) -> Any:
        # The operators of the export's opset record their calls.
        opset = evaluator.default().opset
        attributes = _attributes(opset.version, interpolation_mode, padding_mode, align_corners)
        return opset.GridSample(input, grid, **attributes)

    def affine_grid(theta: Any, size: Any, align_corners: bool) -> Any:
        opset = evaluator.default().opset
        oldest = min(spec.OPERATORS["AffineGrid"])
        if opset.version < oldest:
            found = str(opset.version)
            raise GridSampleError("affine_grid", "opset_version", found, f"at least {oldest}")
        return opset.AffineGrid(theta, size, align_corners=int(align_corners))

    _register_affine_grid_shape()
    table = {getattr(aten, name).default: grid_sample for name in SAMPLERS}
    return {**table, aten.affine_grid_generator.default: affine_grid}


@contextmanager
def torch_symbolics() -> Iterator[None]:
    """Let ``torch.onnx.export(…, dynamo=False)`` export the sampling of volumes at opsets 16 to 19.

    Call it inside ``with ogs.torch_symbolics():``. At opset 20 this exporter itself writes
    GridSample and AffineGrid, also with dynamic sizes.

    >>> with torch_symbolics():                                              # doctest: +SKIP
    ...     torch.onnx.export(model, arguments, "model.onnx", dynamo=False)

    Contexts may be nested, and may overlap in several threads. A function that was registered for
    ``aten::grid_sampler`` and opset 16 before is no longer registered afterwards.

    Raises:
        ImportError: PyTorch is not installed, or no longer has this exporter.
    """
    exporter: Any = import_module("torch.onnx")
    symbolic_helper: Any = import_module("torch.onnx.symbolic_helper")

    @symbolic_helper.parse_args("v", "v", "i", "i", "b")  # type: ignore[untyped-decorator]
    def grid_sample(
        g: Any,
        input: Any,
        grid: Any,
        mode: int,
        padding_mode: int,
        align_corners: bool,
    ) -> Any:
        attributes = _attributes(g.opset, mode, padding_mode, align_corners)
        # torch.onnx reads the type of an attribute from the suffix of its name.
        suffixes = {str: "s", int: "i"}
        suffixed = {f"{name}_{suffixes[type(v)]}": v for name, v in attributes.items()}
        return g.op("GridSample", input, grid, **suffixed)

    # The exporter uses the newest registered version that is not newer than the export's opset.
    name = "aten::grid_sampler"
    version = min(spec.OPERATORS["GridSample"])
    with _symbolics_lock:
        if not _active_symbolics:
            exporter.register_custom_op_symbolic(name, grid_sample, version)
        _active_symbolics.append(grid_sample)
    try:
        yield
    finally:
        with _symbolics_lock:
            _active_symbolics.remove(grid_sample)
            if not _active_symbolics:
                exporter.unregister_custom_op_symbolic(name, version)


def _attributes(
    opset: int,
    mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Mapping[str, str | int]:
    """Convert PyTorch's arguments to the attributes of GridSample in ``opset``.

    Raises:
        GridSampleError: PyTorch has no mode or padding mode of this number.
    """
    written = {}
    spelling = standard("GridSample", opset).attributes
    aten = next(d for d in dialects() if d.op_type == SAMPLERS[0] and "aten" in d.domains)
    arguments = (mode, padding_mode, align_corners)
    for (name, code), argument in zip(aten.attributes.items(), arguments, strict=True):
        plain = next((plain for plain, number in code.values.items() if number == argument), None)
        if plain is None:
            raise GridSampleError("grid_sample", code.name, str(argument), code.choices_text())
        written[spelling[name].name] = spelling[name].values[plain]
    return written


@created_once
def _register_affine_grid_shape() -> Any:
    """Register the shape of an affine grid with PyTorch.

    PyTorch forgets it when the returned library is deleted, so the decorator keeps the library.
    """
    torch: Any = import_module("torch")
    library = torch.library.Library("aten", "IMPL")

    def shape(theta: Any, size: Sequence[Any], align_corners: bool) -> Any:
        return theta.new_empty((size[0], *size[2:], len(size) - 2))

    torch.library.register_fake("aten::affine_grid_generator", shape, lib=library)
    # PyTorch would still prefer its own decomposition, which makes the sizes constant.
    torch._decomp.meta_table[torch.ops.aten.affine_grid_generator.default] = shape
    return library
