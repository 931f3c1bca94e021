"""The kernels of the compiled ops: what a node says, and the compiled functions that it takes, as one state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import checks, spec
from ...errors import where
from .c_api import Api, RefusedError

if TYPE_CHECKING:
    from ...core.compilation import Part  # which imports Numba


@dataclass(frozen=True)
class Kernel:
    """What a node's kernel is made of.

    Attributes:
        compute: the address of its KernelComputeV2.
        numbers: its state, but for the first two, which are addresses: of ONNX Runtime's table of functions, and of the
            one among them that a release need not have.
        texts: what it may have to say, as bytes that end with 0, and what else lies behind the state, which has their
            addresses last.
    """

    compute: int
    numbers: Sequence[int]
    texts: Sequence[bytes]

    def memory(self, at: int, api: Api) -> bytes:
        """The state as it lies in memory, ``at``."""
        padded = [text + bytes(-len(text) % 8) for text in self.texts]
        lengths = [8 * (2 + len(self.numbers) + len(padded)), *map(len, padded)]
        addresses = (at + end for end in accumulate(lengths[:-1]))
        return np.array([api.table, api.shape_of, *self.numbers, *addresses], np.int64).tobytes() + b"".join(padded)


def grid_sample(api: Api, info: int, types: Sequence[str]) -> Kernel:
    """The kernel of a GridSample node, for X and grid of ``types``.

    Raises:
        GridSampleError: an attribute is not one of its values.
        Exception: whatever Numba raises.
    """
    return _sampling(where("GridSample", _label(api, info)), api, info, types[0], Grid(types[1]))


def fused_grid_sample(api: Api, info: int, types: Sequence[str]) -> Kernel:
    """The kernel of a GridSample node and what computes its grid, for X, scalars or size, and sources of ``types``.

    Raises: as :func:`grid_sample`; of a node that no session wrote whatever reading it does.
    """
    if types[1] != "int64":
        return _program_sample(api, info, types)
    from . import affine_sampling

    here = where("AffineGrid", _said(api.text, info, "affine_grid_node", ""))
    aligned = bool(_said(api.integer, info, "affine_grid_align_corners", 0))
    grid_type = _said(api.text, info, "grid_type", types[2])
    grid = Grid(
        grid_type,
        (affine_sampling.compute,),
        (affine_sampling.coordinates_for, types[2], grid_type),
        affine_sampling.MOST_COLUMNS,
        aligned,
        _said_of_theta(here),
    )
    return _sampling(where("GridSample", _label(api, info)), api, info, types[0], grid)


def _program_sample(api: Api, info: int, types: Sequence[str]) -> Kernel:
    from . import pixel_sampling

    here = where("GridSample", _label(api, info))
    coordinates, sources = (json.loads(api.text(info, name)) for name in ("coordinates", "sources"))
    texts = pixel_sampling.texts(here, types[1], coordinates, sources)
    part = pixel_sampling.coordinates_for, types[1]
    return _sampling(here, api, info, types[0], Grid(types[1], (pixel_sampling.compute,), part, texts=texts))


@dataclass(frozen=True)
class Grid:
    """Where the coordinates come from.

    Attributes:
        type: the grid's type.
        entry: what ONNX Runtime calls; None where the grid is given.
        coordinates: what works out the coordinates of a block; None where they are read from the grid.
        columns: see :mod:`ort_gridsample.core.lanes`.
        aligned: ``align_corners`` of an AffineGrid.
        texts: those behind the sentences of sampling.
    """

    type: str
    entry: Part | None = None
    coordinates: Part | None = None
    columns: int = 0
    aligned: bool = False
    texts: Sequence[bytes] = ()


def _sampling(here: str, api: Api, info: int, X_type: str, grid: Grid) -> Kernel:
    mode = spec.mode_of(_said(api.text, info, "mode", spec.MODES[1]))
    padding_mode = _said(api.text, info, "padding_mode", spec.PADDING_MODES[0])
    checks.mode_and_padding(here, mode, padding_mode, X_type)
    aligned = _said(api.integer, info, "align_corners", 0)
    return grid_sample_kernel(here, mode, padding_mode, bool(aligned), X_type, grid)


def grid_sample_kernel(here: str, mode: str, padding_mode: str, aligned: bool, X_type: str, grid: Grid) -> Kernel:
    """The kernel that samples so; compiled now, if no other was made of the same functions before."""
    from ...core import structs, variants
    from . import sampling, sentences

    (compute,), fields = variants.descriptor(
        X_type, grid.type, mode, padding_mode, aligned, entry=[grid.entry or (sampling.compute,)],
        coordinates=grid.coordinates, columns=grid.columns, grid_align_corners=grid.aligned,
    )  # fmt: skip
    numbers = [fields[name] for name in (structs.KERNEL.names or ())[2:]]
    said = [sentences.as_bytes(sentence, here, padding_mode=padding_mode) for sentence in sampling.SAID]
    return Kernel(compute, numbers, [*said, *grid.texts])


def affine_grid(api: Api, info: int, types: Sequence[str]) -> Kernel:
    """The kernel of an AffineGrid node, for theta of the first of ``types``."""
    aligned = _said(api.integer, info, "align_corners", 0)
    return affine_grid_kernel(where("AffineGrid", _label(api, info)), bool(aligned), types[0])


def affine_grid_kernel(here: str, aligned: bool, theta_type: str) -> Kernel:
    """The kernel that makes grids so; compiled now, if no other was made of the same functions before."""
    from ...core import compilation, halves, threads
    from . import affine

    compute, fill = compilation.addresses([(affine.compute,), (affine.fill_for, theta_type)])
    numbers = [fill, int(aligned), halves.stored(theta_type).itemsize, threads.available_cpus()]
    return Kernel(compute, numbers, _said_of_theta(here))


def _said_of_theta(here: str) -> list[bytes]:
    """What the AffineGrid ``here`` may have to say, of 2 and of 3 spatial axes."""
    from . import affine, sentences

    return [
        sentences.as_bytes(sentence, here, axes=axes, type="int64")
        for axes in checks.SIZE.values()
        for sentence in affine.SAID
    ]


def _label(api: Api, info: int) -> str:
    """How errors name the node."""
    return _said(api.text, info, "node", "") or api.node_name(info)


def _said(ask: Any, info: int, attribute: str, default: Any) -> Any:
    try:
        return ask(info, attribute)
    except RefusedError:  # it says nothing
        return default
