"""Lower GridSample to 4-D GridSamples of opset 16: accelerators have those, and hardly one has others.

Three spatial axes: slices of X along one axis are laid side by side along another, with a border of zeros around each
axis where what lies outside counts as 0. Of each position the two slices around it are sampled, and weighed. One
spatial axis: the other one has one pixel, at 0. Everything that an attribute says of coordinates is done before.

A normalized coordinate spans all slices that lie side by side, S pixels, in float32: it is off by up to
:data:`COORDINATE_ERROR` · S pixels, and Y by as many times the difference between neighbouring pixels. Hence the two
axes whose product is least are laid together, where lengths are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import onnx

from ... import checks, spec
from ...core.coordinates import PADDING, Axis, normalize
from ...core.taps import MODES, pixel_coordinates
from ...errors import GridSampleError
from .expressions import Dim, Expressions, Tensor
from .primitives import Value, check_grid_sample, check_opset, input_of, zeros_of
from .runtimes import ANY, Runtime

#: The opsets whose GridSample is written: later ones call the modes otherwise.
FIRST_OPSET, LAST_OPSET = 16, 19

#: How far a coordinate may be off, in parts of the pixels that it spans: 4 roundings of a float32.
COORDINATE_ERROR = 2.0**-22

#: Of X with three axes, sampled in float32: accelerators have no wider one.
_TYPES = ("float16", "bfloat16", "float32")

_WORDS = {word: written for written in ("bilinear", "nearest", "bicubic") for word in (spec.mode_of(written),)}


def lower_grid_sample(
    name: str,
    X: Value,
    grid: Value,
    Y: str,
    *,
    mode: str,
    padding_mode: str,
    align_corners: bool,
    opset: int,
    runtime: Runtime = ANY,
) -> list[onnx.NodeProto]:
    """Nodes that compute GridSample with GridSamples of two spatial axes.

    The arguments are those of :func:`.primitives.lower_grid_sample`, with r ≤ 3, and ``opset`` from 16 to 19, unless
    what runs them takes the words of opset 16 in later ones. With r = 3, X is of floats of up to 32 bits, and ``mode``
    linear or nearest.

    Raises:
        GridSampleError: the operator is not defined for these, or what is said above does not hold.

    Source: ONNX GridSample-16 and GridSample-22.
    """
    mode = spec.mode_of(mode)
    check_opset(name, opset, FIRST_OPSET)
    X_shape, grid_shape = check_grid_sample(name, X, grid, mode, padding_mode)
    r = len(X_shape) - 2
    for refused, argument, found, expected in (
        (r > 3, "X", f"{r + 2}-D", "at most 5-D"),
        (r == 3 and mode == "cubic", "mode", "'cubic' of 5-D", "linear or nearest"),
        (r == 3 and X.type not in _TYPES, "X", f"of type {X.type}, 5-D", checks.listed(_TYPES)),
    ):
        if refused:
            raise GridSampleError(name, argument, found, f"{expected}; target 'primitives' has others")
    e = Expressions(name, opset, runtime)
    image, coordinates = e.input(X.name, X.type), e.input(grid.name, grid.type)
    if r == 3:
        coordinates = input_of(e, grid, 0 if grid.constant is None else grid.constant.size)
    dims, out = e.dims(image, X_shape), e.dims(coordinates, grid_shape)[1:-1]
    if r == 3:
        total = _three(e, image, coordinates, dims, out, mode, padding_mode, align_corners)
        return e.finish(e.reshape(total, [*dims[:2], *out]).astype(X.type), Y)
    image, coordinates = (
        x.astype("float32") if x.type == "bfloat16" else x for x in (image, coordinates)
    )  # opset 22's
    if r == 1:
        g = e.reshape(coordinates, [dims[0], 1, out[0], 1])
        coordinates = e.concatenate([g, zeros_of(e, [dims[0], 1, out[0], 1], g.type)], axis=3)
        image = e.reshape(image, [*dims[:2], 1, dims[2]])
    total = _sampled(e, image, coordinates, mode, padding_mode, align_corners)
    if r == 1:
        total = e.reshape(total, [*dims[:2], *out])
    return e.finish(total.astype(X.type), Y)


def _sampled(e: Expressions, X: Tensor, grid: Tensor, mode: str, padding_mode: str, align_corners: bool) -> Tensor:
    said = {"mode": _WORDS[mode], "padding_mode": padding_mode, "align_corners": int(align_corners)}
    return e.op("GridSample", X, grid, type=X.type, **said)


def _three(
    e: Expressions,
    image: Tensor,
    grid: Tensor,
    dims: Sequence[Dim],
    out: Sequence[Dim],
    mode: str,
    padding_mode: str,
    align_corners: bool,
) -> Tensor:
    """Y (N, C, D1_out, D2_out · D3_out) of three axes."""
    compute, padding, (n, c, *lengths) = grid.type, PADDING[padding_mode], dims
    image = image.astype("float32")
    first, second = _laid_together(lengths)
    other = 3 - first - second
    g = e.reshape(grid, [n, out[0], e.product(out[1:]), 3])
    x = _pixels(e, g, lengths, mode, padding_mode, align_corners)
    if padding.zero_outside:
        image, x = e.op("Pad", image, e.constant([0, 0, 1, 1, 1] * 2), type=image.type), x + 1
        lengths = [length + 2 for length in lengths]
    along = e.split(x, 3, 1, axis=3)[::-1]  # as the axes of X
    if (first, second) == (0, 2):
        image = e.transpose(image, (0, 1, 3, 2, 4))
    together = e.product([lengths[first], lengths[second]])
    shape = [together, lengths[other]] if other == 2 else [lengths[other], together]
    image = e.reshape(image, [n, c, *shape])

    def sample(slices: Tensor) -> Tensor:
        """The slices with these numbers, each at its position."""
        place = slices * e.length(lengths[second]).astype(compute) + along[second]
        rows, columns = (place, along[other]) if other == 2 else (along[other], place)
        normalized = [_normalize(e, at, length) for at, length in zip((columns, rows), shape[::-1], strict=True)]
        g = e.concatenate(normalized, axis=3).astype(image.type)
        return _sampled(e, image, g, mode, "border", True)

    if mode == "nearest":
        return sample(along[first])
    below = e.floor(along[first])
    t = e.reshape((along[first] - below).astype(image.type), [n, 1, out[0], e.product(out[1:])])
    above = e.minimum(below + 1, e.length(lengths[first]).astype(compute) - 1)
    return sample(below) * (1 - t) + sample(above) * t


def _laid_together(lengths: Sequence[Dim]) -> tuple[int, int]:
    """The two axes whose product is least, where lengths are known; else the outer ones."""
    known = [length for length in lengths if isinstance(length, int)]
    if len(known) < len(lengths):
        return 0, 1
    return min(combinations(range(3), 2), key=lambda pair: known[pair[0]] * known[pair[1]])


def _pixels(
    e: Expressions, g: Tensor, lengths: Sequence[Dim], mode: str, padding_mode: str, align_corners: bool
) -> Tensor:
    """The pixel coordinates (…, 3), innermost axis first: inside X, or one pixel around it with zeros."""
    length = e.shape(lengths[::-1]).astype(g.type)
    may_be_single = not all(isinstance(length, int) and length > 1 for length in lengths)
    axis = Axis.of(length, align_corners, may_be_single, e.maximum)
    x = pixel_coordinates(e, g, axis, MODES[mode], PADDING[padding_mode])
    if mode == "nearest":
        x = e.rint(x)
    return e.minimum(e.maximum(x, -1), length) if PADDING[padding_mode].zero_outside else x


def _normalize(e: Expressions, x: Tensor, length: Dim) -> Tensor:
    """The coordinates of pixels ``x`` where -1 and 1 are the centres of the first and the last; of one pixel, 0."""
    last = e.length(length).astype(x.type) - 1
    return normalize(x, last, e.maximum(last, 1))
