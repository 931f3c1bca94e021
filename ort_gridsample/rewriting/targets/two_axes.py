"""Lower GridSample to 4-D GridSamples of opset 16: accelerators have those, and hardly one has others.

Of three spatial axes, slices of X along one axis are laid side by side along another; with zeros padding, X gets a
border of zeros first. At each position the two slices around it are sampled, and weighed. To one spatial axis another
of one pixel is added. Coordinates are unnormalized and padded before, by the core's functions.

A normalized coordinate spans all slices that lie side by side, S pixels, in float32: it is off by up to
:data:`COORDINATE_ERROR` · S pixels, and Y by as many times the difference between neighbouring pixels. Hence the two
axes whose product is least are laid together, where lengths are known.
"""

from collections.abc import Sequence
from itertools import combinations

import onnx

from ... import spec
from ...errors import GridSampleError
from ...functions import validation
from ...reference.coordinates import PADDING, Axis, Padding, normalize
from ...reference.taps import MODES, pixel_coordinates
from .expressions import Dim, Expressions, Tensor
from .primitives import (  # fmt: skip
    Value,
    check_grid_sample,
    check_opset,
    input_of,
    may_be_single,
    required_batches,
    unranked_argument,
)

#: The opsets in which the nodes can be written: later ones have other names for the modes.
FIRST_OPSET, LAST_OPSET = 16, 19
#: The error of a coordinate, relative to the pixels that it spans: 4 roundings of a float32.
COORDINATE_ERROR = 2.0**-22
#: The types of X with three axes, which is sampled in float32: accelerators have no wider type.
_TYPES = ("float16", "bfloat16", "float32")

_WORDS = {word: written for written in ("bilinear", "nearest", "bicubic") for word in (spec.mode_of(written),)}


def lower_grid_sample(
    e: Expressions, X: Value, grid: Value, Y: str, *, mode: str, padding_mode: str, align_corners: bool
) -> list[onnx.NodeProto]:
    """Nodes that compute GridSample with GridSamples of two spatial axes.

    The arguments are those of :func:`.primitives.lower_grid_sample`, with r ≤ 3, and an opset from 16 to 19, or later
    where the runtime accepts the modes of opset 16 in it. With r = 3, X is of floats of up to 32 bits, and ``mode``
    linear or nearest.

    Raises:
        GridSampleError: the operator is not defined for these, or an argument is not as above.

    Source: ONNX GridSample-16 and GridSample-22.
    """
    mode = spec.mode_of(mode)
    check_opset(e, FIRST_OPSET)
    X_shape, grid_shape = check_grid_sample(e.prefix, X, grid, mode, padding_mode)
    r = len(X_shape) - 2
    for refused, argument, found, expected in (
        (r > 3, "X", f"{r + 2}-D", "at most 5-D"),
        (r == 3 and mode == "cubic", "mode", "'cubic' of 5-D", "linear or nearest"),
        (r == 3 and X.type not in _TYPES, "X", f"of type {X.type}, 5-D", validation.format_choices(_TYPES)),
    ):
        if refused:
            raise GridSampleError(e.prefix, argument, found, f"{expected}; target 'primitives' has others")
    image, coordinates = e.input(X.name, X.type), input_of(e, grid) if r == 3 else e.input(grid.name, grid.type)
    n, c, *lengths = e.dims(image, X_shape, unranked_argument("X", X))
    batches, *out, last = e.dims(coordinates, grid_shape, unranked_argument("grid", grid))
    if r != 2:  # GridSample itself checks the grid of two axes
        zeros = required_batches(e, X, image, batches, last, r)
        image = e.reshape(image, [n, c, *lengths], zeros=zeros) if zeros else image
    if r == 3:
        total = _of_slices(image, coordinates, [n, c, *lengths], out, mode, PADDING[padding_mode], bool(align_corners))
    else:
        # No GridSample takes bfloat16 before opset 22.
        image, g = (x.astype("float32") if x.type == "bfloat16" else x for x in (image, coordinates))
        if r == 1:
            g = e.reshape(g, [n, 1, out[0], 1])
            g = e.concatenate([g, e.zeros([n, 1, out[0], 1], g.type)], axis=3)
            image = e.reshape(image, [n, c, 1, *lengths])
        aligned = int(align_corners)
        total = e.op("GridSample", image, g, mode=_WORDS[mode], padding_mode=padding_mode, align_corners=aligned)
    if r != 2:
        total = e.reshape(total, [n, c, *out])
    return e.finish(total.astype(X.type), Y)


def _of_slices(
    image: Tensor, grid: Tensor, dims: Sequence[Dim], out: Sequence[Dim], mode: str, padding: Padding, aligned: bool
) -> Tensor:
    """Y (N, C, D1_out, D2_out · D3_out) of an image of three spatial axes, whose shape is ``dims``."""
    e, (n, c, *lengths) = image.owner, dims
    positions = [n, out[0], e.product(out[1:])]
    image = image.astype("float32")
    # The two axes whose product is least, where lengths are known; else the outer ones.
    first, second, other = 0, 1, 2
    known = [length for length in lengths if isinstance(length, int)]
    if len(known) == 3:
        first, second = min(combinations(range(3), 2), key=lambda pair: known[pair[0]] * known[pair[1]])
        other = 3 - first - second
    # Pixel coordinates, innermost axis first: inside X, or one pixel around it with zeros.
    g, length = e.reshape(grid, [*positions, 3]), e.shape(lengths[::-1]).astype(grid.type)
    axis = Axis.of(length, aligned, may_be_single(lengths), e.maximum)
    x = pixel_coordinates(e, g, axis, MODES[mode], padding)
    if mode == "nearest":
        x = e.rint(x)
    if padding.zero_outside:
        x = e.minimum(e.maximum(x, -1), length)
        image, x = e.pad(image, [0, 0, 1, 1, 1]), x + 1
        lengths = [length + 2 for length in lengths]
    along = e.split(x, 3, 1, axis=3)[::-1]  # as the axes of X
    if (first, second) == (0, 2):
        image = e.transpose(image, (0, 1, 3, 2, 4))
    together = e.product([lengths[first], lengths[second]])
    shape = [together, lengths[other]] if other == 2 else [lengths[other], together]
    image = e.reshape(image, [n, c, *shape])

    def number(length: Dim) -> Tensor:
        return e.shape([length]).astype(grid.type)

    def sample(slices: Tensor) -> Tensor:
        """The slices with these numbers, each at its position."""
        place = slices * number(lengths[second]) + along[second]
        columns, rows = (along[other], place) if other == 2 else (place, along[other])
        axes = [Axis.of(number(length), True, True, e.maximum) for length in shape[::-1]]
        each = [normalize(x, axis.last, axis.span) for x, axis in zip((columns, rows), axes, strict=True)]
        g = e.concatenate(each, axis=3).astype(image.type)
        return e.op("GridSample", image, g, mode=_WORDS[mode], padding_mode="border", align_corners=1)

    if mode == "nearest":
        return sample(along[first])
    below = e.floor(along[first])
    t = e.reshape((along[first] - below).astype(image.type), [n, 1, *positions[1:]])
    above = e.minimum(below + 1, number(lengths[first]) - 1)
    return sample(below) * (1 - t) + sample(above) * t
