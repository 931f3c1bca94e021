"""The kernels of the compiled ops: what a node says, and the compiled functions that it takes, as one state."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from ... import checks, spec
from ...errors import where
from .c_api import Api, Refused


@dataclass(frozen=True)
class Kernel:
    """What a node's kernel is made of.

    Attributes:
        compute: the address of its KernelComputeV2.
        numbers: its state, but for the first, which is the address of ONNX Runtime's table of functions.
        sentences: what it may have to say, as bytes that end with 0; their addresses are the last of the state.
    """

    compute: int
    numbers: Sequence[int]
    sentences: Sequence[bytes]

    def memory(self, at: int, table: int) -> bytes:
        """The state as it lies in memory, ``at``."""
        end = at + 8 * (1 + len(self.numbers) + len(self.sentences))
        addresses = []
        for sentence in self.sentences:
            addresses.append(end)
            end += len(sentence)
        return np.array([table, *self.numbers, *addresses], np.int64).tobytes() + b"".join(self.sentences)


def grid_sample(api: Api, info: int, types: Sequence[str]) -> Kernel:
    """The kernel of a GridSample node, for X and grid of ``types``.

    Raises:
        GridSampleError: an attribute is not one of its values.
        Exception: whatever Numba raises.
    """
    here = where("GridSample", _label(api, info))
    mode = spec.mode_of(_said(api.text, info, "mode", spec.MODES[1]))
    padding_mode = _said(api.text, info, "padding_mode", spec.PADDING_MODES[0])
    checks.mode_and_padding(here, mode, padding_mode, types[0])
    aligned = _said(api.integer, info, "align_corners", 0)
    return grid_sample_kernel(here, mode, padding_mode, bool(aligned), *types)


def grid_sample_kernel(
    here: str, mode: str, padding_mode: str, aligned: bool, X_type: str, grid_type: str
) -> Kernel:
    """The kernel that samples so; compiled now, if no other was made of the same functions before."""
    from ...core import jit_core
    from . import sampling, sentences

    coordinate = np.dtype("float64" if grid_type == "float64" else "float32")
    real = coordinate if mode == "nearest" else np.dtype(spec.TYPES[X_type].compute)
    X_size, grid_size = _size(X_type), _size(grid_type)
    numbers = [
        _compiled("lane"),
        _compiled("axis", coordinate, real),
        _compiled("combine", real),
        _compiled("copy", np.dtype(f"u{X_size}")) if mode == "nearest" else _compiled("sum", X_type, real),
        _compiled("widen", grid_type) if grid_type in sampling.HALVES else 0,
        jit_core.TAPS[mode],
        jit_core.PADDING[padding_mode],
        int(aligned),
        X_size,
        grid_size,
        coordinate.itemsize,
        real.itemsize,
    ]
    said = [sentences.as_bytes(sentence, here, padding_mode=padding_mode) for sentence in sampling.SAID]
    return Kernel(_compiled("compute"), numbers, said)


def affine_grid(api: Api, info: int, types: Sequence[str]) -> Kernel:
    """The kernel of an AffineGrid node, for theta of the first of ``types``."""
    raise NotImplementedError


@cache
def _compiled(what: str, *of: Any) -> int:
    """The address of one of :mod:`.sampling`'s functions."""
    from . import sampling
    from .compile import address_of

    if what == "compute":
        return address_of(sampling.compute, 2)
    if what == "lane":
        return address_of(sampling.lane, 2)
    if what == "axis":
        return address_of(sampling.axis_for(*of), 5)
    if what == "combine":
        return address_of(sampling.combine_for(*of), 6)
    if what == "copy":
        return address_of(sampling.copy_for(*of), 6)
    if what == "widen":
        _, widened, _ = sampling.HALVES[of[0]]
        return address_of(sampling.widen_for(widened), 3)
    X_type, real = of
    if X_type in sampling.HALVES:
        bits, _, rounded = sampling.HALVES[X_type]
        return address_of(sampling.sum_halves_for(bits, rounded), 6)
    return address_of(sampling.sum_for(np.dtype(X_type), real), 6)


def _size(type_name: str) -> int:
    """The bytes of one element."""
    return 2 if type_name == "bfloat16" else np.dtype(type_name).itemsize


def _label(api: Api, info: int) -> str:
    """How errors name the node."""
    return _said(api.text, info, "node", "") or api.node_name(info)


def _said(ask: Any, info: int, attribute: str, default: Any) -> Any:
    try:
        return ask(info, attribute)
    except Refused:  # it says nothing
        return default
