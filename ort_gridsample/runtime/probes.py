"""What a kind of node is asked, to see whether a kernel of it answers rightly: inputs, and the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import helper

from .. import spec
from ..core.arrays import Array
from ..functions import affine_grid
from ..model.inference import Value
from ..model.records import NodeRecord, spatial_axes
from .native import fed, one_node, sampled

#: Lengths of axes that only a run knows: a batch of heads, some channels, pixels, and few positions.
_BATCH, _CHANNELS, _LENGTHS, _OUT = 8, 4, (9, 7, 6), (5, 3, 4)

#: Of more values X has few channels in a probe.
_LARGE = 1 << 23

Shape = list[int | str | None]


@dataclass(frozen=True)
class Probe:
    """A model of one node, and what makes its inputs (values in [0, 1), positions far from any tie) and Y."""

    model: onnx.ModelProto
    make: Callable[[], tuple[Mapping[str, Array], Array]]


def probe(record: NodeRecord, case: Sequence[Value], opsets: Mapping[str, int], alone: bool) -> Probe | None:
    """The probe of a node that is called as in ``case``; None where too little is known of it.

    Its shapes are what is known of the node's, ``opsets`` the versions of its domains; ``alone``: whether the model is
    to have no other node, as some providers take nothing that is alone.
    """
    types = {name: value.type for name, value in zip(record.values, case, strict=True) if value.type}
    axes = spatial_axes(record.operator, case)
    is_float = next(iter(types.values()), "") in spec.FLOATS
    if axes not in (1, 2, 3) or len(types) < len(case) or not is_float or any(0 in (v.shape or ()) for v in case):
        return None
    said = record.possible_attributes
    known: list[Shape] = [[] if value.shape is None else list(value.shape) for value in case]
    if record.operator == "AffineGrid":
        shapes: list[Shape] = [known[0] or [None, axes, axes + 1], [axes + 2]]
    else:
        unknown: Shape = [None] * (axes + 2)
        shapes = [known[0] or unknown[:], [*(known[1] or unknown)[:-1], axes]]
        lengths = _lengths(shapes[0], shapes[1])
    align_corners = bool(said["align_corners"])

    def make() -> tuple[Mapping[str, Array], Array]:
        if record.operator == "AffineGrid":
            arrays = _theta_and_size(shapes[0], record.constants.get("size"), axes)
            expected = affine_grid(*arrays, align_corners)
        else:
            arrays = _x_and_grid(*lengths, align_corners)
            expected = sampled(*arrays, str(said["mode"]), str(said["padding_mode"]), align_corners)
        return {name: each.astype(fed(types[name])) for name, each in zip(types, arrays, strict=True)}, expected

    imports = [(domain, opsets.get(domain, 1)) for domain in dict.fromkeys(("", record.domain))]
    model = one_node(record.bare(), imports, types.items(), shapes)
    if not alone:
        source = model.graph.input[0].name
        for reader in model.graph.node:
            reader.input[:] = ["beside" if name == source else name for name in reader.input]
        model.graph.node.insert(0, helper.make_node("Relu", [source], ["beside"]))  # no value in it is below 0
    return Probe(model, make)


def _theta_and_size(theta: Shape, size: Array | None, axes: int) -> tuple[Array, Array]:
    lengths = [_BATCH, _CHANNELS, *_OUT[:axes]] if size is None else size.tolist()
    n = theta[0] if isinstance(theta[0], int) else lengths[0]
    return np.random.default_rng(0).random((n, axes, axes + 1)), np.array([n, *lengths[1:]], np.int64)


def _lengths(X_shape: Shape, grid_shape: Shape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The lengths of X and the grid in a probe; where X is large, ``X_shape`` gets few channels."""
    axes, lengths = len(X_shape) - 2, dict[str, int]()

    def filled(shape: Shape, guess: Sequence[int]) -> tuple[int, ...]:
        pairs = zip(shape, guess, strict=True)
        return tuple(d if isinstance(d, int) else lengths.setdefault(d, g) if d else g for d, g in pairs)

    n = next((d for d in (X_shape[0], grid_shape[0]) if isinstance(d, int)), _BATCH)
    if prod(filled([n, *X_shape[1:]], [n, _CHANNELS, *_LENGTHS[:axes]])) > _LARGE:
        X_shape[1] = min(_CHANNELS, X_shape[1]) if isinstance(X_shape[1], int) else X_shape[1]
    X = filled([n, *X_shape[1:]], [n, _CHANNELS, *_LENGTHS[:axes]])
    return X, filled([n, *grid_shape[1:]], [n, *_OUT[:axes], axes])


def _x_and_grid(X: tuple[int, ...], positions: tuple[int, ...], align_corners: bool) -> tuple[Array, Array]:
    rng, sides = np.random.default_rng(0), np.array(X[:1:-1], np.float64)
    pixels = np.floor(rng.uniform(-1, sides + 1, positions)) + rng.uniform(0.1, 0.4, positions)
    grid = 2 * pixels / np.maximum(sides - 1, 1) - 1 if align_corners else (2 * pixels + 1) / sides - 1
    return rng.random(X), grid
