"""Lower GridSample to 4-D GridSamples of opset 16, the only ones that most accelerators have.

For three spatial axes, slices of X along one axis are laid side by side along another axis; with
zeros padding, X gets a border of zeros first. At each position, the two slices around it are
sampled and weighted. For one spatial axis, another axis of one pixel is added. Coordinates are
unnormalized and padded before, by the reference's functions.

A normalized coordinate spans all slices that lie side by side, S pixels, in float32. It is off by
up to :data:`COORDINATE_ERROR` · S pixels, and Y by as many times the difference between
neighbouring pixels. Hence the two axes with the least product are laid together if lengths are
known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import onnx

from ... import spec
from ...errors import GridSampleError
from ...functions import validation
from ...graph.expressions import DimLike, Expressions, Tensor
from ...reference.coordinates import PADDING_RULES, Axis, Padding, normalize
from ...reference.taps import MODE_RULES, pixel_coordinates
from .lowered_arguments import (
    Argument,
    check_grid_sample,
    check_opset,
    dims_of,
    grid_checks,
    input_of,
)
from .primitives import may_be_single

#: The opsets in which the nodes can be written: later opsets have other names for the modes.
FIRST_OPSET = 16
LAST_OPSET = 19
#: The error of a coordinate, relative to the pixels that it spans: 4 roundings of a float32.
COORDINATE_ERROR = 2.0**-22
#: The attributes ``padding_mode`` and ``align_corners`` of the GridSamples for three axes, whose
#: coordinates are padded before.
PADDING_OF_SLICES = ("border", 1)
#: The modes for three axes: two neighboring slices of X are weighted, or one is copied.
_MODES_OF_VOLUMES = ("linear", "nearest")
#: The types of X with three axes, which is sampled in float32: accelerators have no wider type.
_TYPES_OF_VOLUMES = ("float16", "bfloat16", "float32")

_ATTRIBUTES = spec.OPERATORS["GridSample"][FIRST_OPSET].attributes
#: Mode -> its name in opset 16.
_MODE_WORDS = {spec.mode_of(str(word)): str(word) for word in _ATTRIBUTES["mode"].allowed}
_PADDING_MODES = [str(word) for word in _ATTRIBUTES["padding_mode"].allowed]


def lower_grid_sample(
    e: Expressions,
    X: Argument,
    grid: Argument,
    Y: str,
    *,
    mode: str,
    padding_mode: str,
    align_corners: bool,
) -> list[onnx.NodeProto]:
    """Return nodes that compute GridSample with GridSamples of two spatial axes.

    The arguments are those of :func:`.primitives.lower_grid_sample`, with r ≤ 3, and an opset from
    16 to 19, or later if the runtime accepts the modes of opset 16 in it. With r = 3, X is of
    floats of up to 32 bits, and ``mode`` linear or nearest.

    Raises:
        GridSampleError: the operator is not defined for the arguments, or an argument is not as
            above.

    Source: ONNX GridSample-16 and GridSample-22.
    """
    mode = spec.mode_of(mode)
    check_opset(e, FIRST_OPSET)
    X_shape, grid_shape = check_grid_sample(e.origin, X, grid, mode, padding_mode)
    r = len(X_shape) - 2
    refusal = refusal_of(e.origin, X.type, mode, padding_mode, r)
    if refusal is not None:
        raise refusal
    image = e.input(X.name, X.type)
    # Volumes are sampled at computed coordinates, images at those of the grid.
    coordinates = input_of(e, grid) if r == 3 else e.input(grid.name, grid.type)
    dims = dims_of(e, "X", X, image, X_shape)
    grid_batches, *output_lengths, n_coordinates = dims_of(e, "grid", grid, coordinates, grid_shape)
    if r != 2:  # GridSample itself checks a grid of two axes
        checks = grid_checks(
            e, X, image, grid_batches=grid_batches, n_coordinates=n_coordinates, r=r
        )
        if checks:
            image = e.reshape(image, dims, checks=checks)
    operands = _PlaneOperands(image, coordinates, dims, output_lengths)
    if r == 3:
        total = _sample_volume(
            operands,
            mode=mode,
            padding=PADDING_RULES[padding_mode],
            align_corners=bool(align_corners),
        )
    else:
        total = _sample_image(
            operands,
            mode=_MODE_WORDS[mode],
            padding_mode=padding_mode,
            align_corners=int(align_corners),
        )
    if r != 2:
        total = e.reshape(total, [*dims[:2], *output_lengths])
    return e.finish(total.astype(X.type), Y)


class _PlaneOperands(NamedTuple):
    """The tensors of a GridSample, and their lengths as far as they are known.

    Attributes:
        image: X (N, C, D1, …, Dr).
        grid: (N, D1_out, …, Dr_out, r).
        dims: the lengths of ``image``.
        output_lengths: the lengths D1_out, …, Dr_out.
    """

    image: Tensor
    grid: Tensor
    dims: Sequence[DimLike]
    output_lengths: Sequence[DimLike]


def refusal_of(
    name: str,
    X_type: str,
    mode: str,
    padding_mode: str,
    r: int,
) -> GridSampleError | None:
    """Return why a GridSample cannot be written with two spatial axes, or None.

    Args:
        name: the place that the error names.
        X_type: the type of X, in :data:`ort_gridsample.spec.TYPES`.
        mode: the mode, by its name in opset 20.
        r: the number of spatial axes.
    """
    if r > 3:
        return _unsupported(name, "X", f"{r + 2}-D", "at most 5-D")
    if r < 3 and mode not in _MODE_WORDS:
        expected = validation.format_choices(_MODE_WORDS)
        return _unsupported(name, "mode", repr(mode), expected)
    if r < 3 and padding_mode not in _PADDING_MODES:
        expected = validation.format_choices(_PADDING_MODES)
        return _unsupported(name, "padding_mode", repr(padding_mode), expected)
    if r == 3 and mode not in _MODES_OF_VOLUMES:
        expected = " or ".join(_MODES_OF_VOLUMES)
        return _unsupported(name, "mode", f"{mode!r} of 5-D", expected)
    if r == 3 and PADDING_RULES[padding_mode].pads_taps:
        expected = "a padding of coordinates"
        return _unsupported(name, "padding_mode", f"{padding_mode!r} of 5-D", expected)
    if r == 3 and X_type not in _TYPES_OF_VOLUMES:
        expected = validation.format_choices(_TYPES_OF_VOLUMES)
        return _unsupported(name, "X", f"of type {X_type}, 5-D", expected)
    return None


def _unsupported(name: str, argument: str, found: str, expected: str) -> GridSampleError:
    expected = f"{expected}; target 'primitives' has others"
    return GridSampleError(name, argument, found, expected)


def _sample_image(
    operands: _PlaneOperands,
    *,
    mode: str,
    padding_mode: str,
    align_corners: int,
) -> Tensor:
    """Sample an image of one or two spatial axes.

    Args:
        mode: the attribute of GridSample, as are the following.
    """
    image, grid, dims, output_lengths = operands
    e = image.owner
    batches, channels, *lengths = dims
    # No GridSample has bfloat16 before opset 22.
    if image.type == "bfloat16":
        image = image.astype("float32")
    if grid.type == "bfloat16":
        grid = grid.astype("float32")
    if len(lengths) == 1:
        column = [batches, 1, output_lengths[0], 1]
        grid = e.reshape(grid, column)
        grid = e.concatenate([grid, e.zeros(column, grid.type)], axis=3)
        image = e.reshape(image, [batches, channels, 1, *lengths])
    return e.op(
        "GridSample",
        image,
        grid,
        mode=mode,
        padding_mode=padding_mode,
        align_corners=align_corners,
    )


def _sample_volume(
    operands: _PlaneOperands,
    *,
    mode: str,
    padding: Padding,
    align_corners: bool,
) -> Tensor:
    """Sample an image of three spatial axes.

    Args:
        mode: linear or nearest.
        padding: how positions outside of X are read.

    Returns:
        Y as (N, C, D1_out, D2_out · D3_out).
    """
    image, grid, dims, output_lengths = operands
    e = image.owner
    batches, _, *lengths = dims
    positions = [batches, output_lengths[0], e.product(output_lengths[1:])]
    image = image.astype("float32")
    pixels = _pixels_in_volume(
        e.reshape(grid, [*positions, 3]),
        lengths,
        mode=mode,
        padding=padding,
        align_corners=align_corners,
    )
    first, second = _axes_to_join(lengths)
    if padding.zero_outside:
        image = e.pad(image, [0, 0, 1, 1, 1])
        pixels = pixels + 1
        lengths = [length + 2 for length in lengths]
    coordinates = e.split(pixels, 3, 1, axis=3)[::-1]  # in the order of X's axes
    slices = _Slices.of(
        image,
        [*dims[:2], *lengths],
        coordinates,
        first=first,
        second=second,
        mode=_MODE_WORDS[mode],
    )
    if MODE_RULES[mode].copies_values:
        return slices.sample(coordinates[first])
    below = e.floor(coordinates[first])
    distance = (coordinates[first] - below).astype(image.type)
    weight = e.reshape(distance, [batches, 1, *positions[1:]])
    above = e.minimum(below + 1, slices.number(lengths[first]) - 1)
    return slices.sample(below) * (1 - weight) + slices.sample(above) * weight


def _pixels_in_volume(
    grid: Tensor,
    lengths: Sequence[DimLike],
    *,
    mode: str,
    padding: Padding,
    align_corners: bool,
) -> Tensor:
    """Return the pixel coordinates of a grid (…, 3), the innermost axis first.

    They are inside of X, or at most one pixel outside of it if ``padding`` is zeros.

    Args:
        grid: the normalized coordinates.
        lengths: the spatial lengths of X.
        mode: linear or nearest.
        padding: how positions outside of X are read.
    """
    e = grid.owner
    length = e.shape(lengths[::-1]).astype(grid.type)
    axis = Axis.of(length, align_corners, may_be_single=may_be_single(lengths), maximum=e.maximum)
    pixels = pixel_coordinates(e, grid, axis, MODE_RULES[mode], padding)
    if MODE_RULES[mode].copies_values:
        pixels = MODE_RULES[mode].base(e, pixels)
    if padding.zero_outside:
        pixels = e.minimum(e.maximum(pixels, -1), length)
    return pixels


def _axes_to_join(lengths: Sequence[DimLike]) -> tuple[int, int]:
    """Return the two axes with the least product if lengths are known, or the outer axes."""
    known = [length for length in lengths if isinstance(length, int)]
    if len(known) < 3:
        return 0, 1
    return min(combinations(range(3), 2), key=lambda pair: known[pair[0]] * known[pair[1]])


@dataclass(frozen=True)
class _Slices:
    """The slices of a volume along one axis, laid side by side along another axis.

    Attributes:
        image: the slices (N, C, height, width).
        shape: (height, width).
        coordinates: the pixel coordinates along each axis of the volume.
        second: the axis along which the slices lie.
        second_length: the length of a slice along ``second``.
        other: the axis that is not joined: 2, the width, or another axis, the height.
        mode: the mode, as opset 16 names it.
    """

    image: Tensor
    shape: Sequence[DimLike]
    coordinates: Sequence[Tensor]
    second: int
    second_length: DimLike
    other: int
    mode: str

    @classmethod
    def of(
        cls,
        image: Tensor,
        dims: Sequence[DimLike],
        coordinates: Sequence[Tensor],
        *,
        first: int,
        second: int,
        mode: str,
    ) -> _Slices:
        """Return the slices of ``image``, of shape ``dims``, along the axis ``first``."""
        e = image.owner
        batches, channels, *lengths = dims
        other = 3 - first - second
        if (first, second) == (0, 2):
            image = e.transpose(image, (0, 1, 3, 2, 4))
        joined = e.product([lengths[first], lengths[second]])
        shape = [joined, lengths[other]] if other == 2 else [lengths[other], joined]
        image = e.reshape(image, [batches, channels, *shape])
        return cls(image, shape, coordinates, second, lengths[second], other, mode)

    def number(self, length: DimLike) -> Tensor:
        """Return a length in the type of the coordinates."""
        return self.image.owner.shape([length]).astype(self.coordinates[0].type)

    def sample(self, slice_indices: Tensor) -> Tensor:
        """Sample the slices with these indices, each at its position."""
        e = self.image.owner
        joined = slice_indices * self.number(self.second_length) + self.coordinates[self.second]
        if self.other == 2:
            columns = self.coordinates[self.other]
            rows = joined
        else:
            columns = joined
            rows = self.coordinates[self.other]
        width_and_height = self.shape[::-1]
        axes = [
            Axis.of(self.number(length), True, may_be_single=True, maximum=e.maximum)
            for length in width_and_height
        ]
        pixels_and_axes = zip((columns, rows), axes, strict=True)
        normalized = [normalize(pixels, axis.last, axis.span) for pixels, axis in pixels_and_axes]
        grid = e.concatenate(normalized, axis=3).astype(self.image.type)
        padding_mode, align_corners = PADDING_OF_SLICES
        return e.op(
            "GridSample",
            self.image,
            grid,
            mode=self.mode,
            padding_mode=padding_mode,
            align_corners=align_corners,
        )
