"""The kernels of the compiled ops: what a node says, and the compiled functions that it takes, as one state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import checks, progress, spec
from ...core.threads import available_cpus
from ...errors import where
from .c_api import Api, RefusedError

if TYPE_CHECKING:
    from .compile import Function


@dataclass(frozen=True)
class Kernel:
    """What a node's kernel is made of.

    Attributes:
        compute: the address of its KernelComputeV2.
        numbers: its state, but for the first two, which are addresses: of ONNX Runtime's table of functions, and of the
            one among them that a release need not have.
        sentences: what it may have to say, as bytes that end with 0; their addresses are the last of the state.
    """

    compute: int
    numbers: Sequence[int]
    sentences: Sequence[bytes]

    def memory(self, at: int, api: Api) -> bytes:
        """The state as it lies in memory, ``at``."""
        end = at + 8 * (2 + len(self.numbers) + len(self.sentences))
        addresses = []
        for sentence in self.sentences:
            addresses.append(end)
            end += len(sentence)
        return np.array([api.table, api.shape_of, *self.numbers, *addresses], np.int64).tobytes() + b"".join(
            self.sentences
        )


def grid_sample(api: Api, info: int, types: Sequence[str]) -> Kernel:
    """The kernel of a GridSample node, for X and grid of ``types``.

    Raises:
        GridSampleError: an attribute is not one of its values.
        Exception: whatever Numba raises.
    """
    return _sampling(where("GridSample", _label(api, info)), api, info, types[0], Grid(types[1]))


def affine_grid_sample(api: Api, info: int, types: Sequence[str]) -> Kernel:
    """The kernel of an AffineGrid and a GridSample node in one, for X and theta of the first of ``types``.

    Raises: as :func:`grid_sample`.
    """
    here = where("AffineGrid", _said(api.text, info, "affine_grid_node", ""))
    aligned = bool(_said(api.integer, info, "affine_grid_align_corners", 0))
    grid = Grid(_said(api.text, info, "grid_type", types[1]), types[1], aligned, here)
    return _sampling(where("GridSample", _label(api, info)), api, info, types[0], grid)


@dataclass(frozen=True)
class Grid:
    """Where the coordinates come from: a grid, or theta.

    Attributes:
        type: the grid's type.
        theta_type: the type of theta; empty where the grid is given.
        aligned: ``align_corners`` of the AffineGrid.
        where: how errors name the AffineGrid.
    """

    type: str
    theta_type: str = ""
    aligned: bool = False
    where: str = ""


def _sampling(here: str, api: Api, info: int, X_type: str, grid: Grid) -> Kernel:
    mode = spec.mode_of(_said(api.text, info, "mode", spec.MODES[1]))
    padding_mode = _said(api.text, info, "padding_mode", spec.PADDING_MODES[0])
    checks.mode_and_padding(here, mode, padding_mode, X_type)
    aligned = _said(api.integer, info, "align_corners", 0)
    return grid_sample_kernel(here, mode, padding_mode, bool(aligned), X_type, grid)


def grid_sample_kernel(here: str, mode: str, padding_mode: str, aligned: bool, X_type: str, grid: Grid) -> Kernel:
    """The kernel that samples so; compiled now, if no other was made of the same functions before."""
    from ...core import jit_core
    from . import affine_sampling, sampling, sentences

    coordinate = "float64" if grid.type == "float64" else "float32"
    real = coordinate if mode == "nearest" else str(spec.TYPES[X_type].compute)
    in_rows = mode != "nearest" and X_type in spec.FLOATS
    compute, *parts = _addresses(
        ("sample at theta",) if grid.theta_type else ("sample",),
        ("lane",),
        ("coordinates of theta", grid.theta_type, grid.type) if grid.theta_type else ("coordinates", grid.type),
        ("axis", coordinate, real),
        ("combine", real),
        ("copy", f"uint{8 * _size(X_type)}") if mode == "nearest" else ("sum", X_type),
        ("reorder", X_type) if in_rows else None,
        ("sum rows", X_type) if in_rows else None,
    )
    numbers = [
        *parts,
        jit_core.TAPS[mode],
        jit_core.PADDING[padding_mode],
        int(aligned),
        *map(_size, (X_type, coordinate, real)),
        available_cpus(),
        affine_sampling.MOST_COLUMNS if grid.theta_type else 0,
        int(grid.aligned),
    ]
    said = [sentences.as_bytes(sentence, here, padding_mode=padding_mode) for sentence in sampling.SAID]
    return Kernel(compute, numbers, [*said, *(_said_of_theta(grid.where) if grid.theta_type else ())])


def affine_grid(api: Api, info: int, types: Sequence[str]) -> Kernel:
    """The kernel of an AffineGrid node, for theta of the first of ``types``."""
    aligned = _said(api.integer, info, "align_corners", 0)
    return affine_grid_kernel(where("AffineGrid", _label(api, info)), bool(aligned), types[0])


def affine_grid_kernel(here: str, aligned: bool, theta_type: str) -> Kernel:
    """The kernel that makes grids so; compiled now, if no other was made of the same functions before."""
    compute, fill = _addresses(("make grid",), ("fill", theta_type))
    return Kernel(compute, [fill, int(aligned), _size(theta_type)], _said_of_theta(here))


def _said_of_theta(here: str) -> list[bytes]:
    """What the AffineGrid ``here`` may have to say, of 2 and of 3 spatial axes."""
    from . import affine, sentences

    return [
        sentences.as_bytes(sentence, here, axes=axes, type="int64")
        for axes in checks.SIZE.values()
        for sentence in affine.SAID
    ]


#: How long functions take to compile, the longest first and last, as two processes take them from both ends.
_ORDER = (
    "sample", "sample at theta", "make grid", "sum", "copy", "lane", "combine", "sum rows", "reorder", "fill", "axis",
    "coordinates of theta", "coordinates",
)  # fmt: skip


def _addresses(*names: tuple[str, ...] | None) -> list[int]:
    """The addresses of the functions of these ``names``, compiled if need be; 0 for None."""
    from .compile import helped

    ordered = sorted(filter(None, names), key=lambda name: _ORDER.index(name[0]))
    missing = [name for name in ordered if not _function(*name).is_at_hand]
    with helped(missing), progress.shown("compiling", len(missing)) as begin:
        for name in missing:
            begin(" ".join(name))
            _function(*name).address()
    return [0 if name is None else _function(*name).address() for name in names]


def compile_last(names: Sequence[tuple[str, ...]]) -> None:
    """Put the functions of these ``names`` on disk, the last first, until one is there."""
    for name in reversed(names):
        if _function(*name).is_at_hand:
            return
        _function(*name).address()


@cache
def _function(what: str, *types: str) -> Function:
    """One of the functions of :mod:`.sampling`, :mod:`.affine` and :mod:`.affine_sampling`, for these types."""
    from . import affine, affine_sampling, sampling
    from .compile import Function

    made: dict[str, tuple[Callable[..., Any], int]] = {
        "sample": (sampling.compute, 2),
        "sample at theta": (affine_sampling.compute, 2),
        "lane": (sampling.lane, 2),
        "coordinates": (sampling.coordinates_for, 6),
        "coordinates of theta": (affine_sampling.coordinates_for, 6),
        "axis": (sampling.axis_for, 4),
        "combine": (sampling.combine_for, 7),
        "copy": (sampling.copy_for, 6),
        "sum": (sampling.sum_for, 6),
        "reorder": (sampling.reorder_for, 5),
        "sum rows": (sampling.sum_rows_for, 6),
        "make grid": (affine.compute, 2),
        "fill": (affine.fill_for, 2),
    }
    function, arguments = made[what]
    return Function(function(*types) if types else function, arguments)


def _size(type_name: str) -> int:
    """The bytes of one element."""
    return 2 if type_name == "bfloat16" else np.dtype(type_name).itemsize


def _label(api: Api, info: int) -> str:
    """How errors name the node."""
    return _said(api.text, info, "node", "") or api.node_name(info)


def _said(ask: Any, info: int, attribute: str, default: Any) -> Any:
    try:
        return ask(info, attribute)
    except RefusedError:  # it says nothing
        return default
