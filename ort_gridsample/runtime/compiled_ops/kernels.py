"""The kernels of the compiled ops: what a node says, and the compiled functions that it takes, as one state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import checks, spec
from ...errors import where
from .c_api import Api, RefusedError


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
    from ...core import ways
    from . import affine_sampling, sampling, sentences

    theta = grid.theta_type
    compute, *numbers = ways.state_of(
        X_type, grid.type, mode, padding_mode, aligned,
        entry=((affine_sampling if theta else sampling).compute,),
        coordinates=(affine_sampling.coordinates_for, theta, grid.type) if theta else None,
        columns=affine_sampling.MOST_COLUMNS if theta else 0,
        grid_aligned=grid.aligned,
    )  # fmt: skip
    said = [sentences.as_bytes(sentence, here, padding_mode=padding_mode) for sentence in sampling.SAID]
    return Kernel(compute, numbers, [*said, *(_said_of_theta(grid.where) if theta else ())])


def affine_grid(api: Api, info: int, types: Sequence[str]) -> Kernel:
    """The kernel of an AffineGrid node, for theta of the first of ``types``."""
    aligned = _said(api.integer, info, "align_corners", 0)
    return affine_grid_kernel(where("AffineGrid", _label(api, info)), bool(aligned), types[0])


def affine_grid_kernel(here: str, aligned: bool, theta_type: str) -> Kernel:
    """The kernel that makes grids so; compiled now, if no other was made of the same functions before."""
    from ...core import compilation, halves
    from . import affine

    compute, fill = compilation.addresses([(affine.compute,), (affine.fill_for, theta_type)])
    return Kernel(compute, [fill, int(aligned), halves.stored(theta_type).itemsize], _said_of_theta(here))


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
