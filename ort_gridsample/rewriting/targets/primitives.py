"""Lower GridSample and AffineGrid to basic standard operators, which every ONNX runtime has.

A lowered GridSample gathers rows of X and adds them up with weights (:mod:`.row_sampler`). With
zeros padding, X is surrounded by zeros, and a tap outside of X reads one of them. Therefore no
infinity is multiplied by 0, and no logic has to tell whether a tap is inside. For a large X, a Pad
takes longer than this logic, and X gets a single row of zeros instead.

The coordinates of all axes are computed together, as a tensor (axes, taps, N·P) for P output
positions. The innermost axis comes first, as in the grid. Modes, paddings and sums are those of
:mod:`ort_gridsample.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, cast

import numpy as np
import onnx

from ... import spec
from ...errors import GridSampleError
from ...functions import error_templates as templates
from ...functions import validation
from ...graph.expressions import DimLike, Expressions, Tensor
from ...graph.run_errors import check_lengths, shape_error, write_check
from ...reference.affine import transform
from ...reference.coordinates import PADDING_RULES, Axis, Padding, normalize
from ...reference.taps import MODE_RULES, Mode, pixel_coordinates, taps_at
from .lowered_arguments import (
    Argument,
    batch_error,
    batches_of,
    check_grid_sample,
    check_opset,
    check_type,
    dims_of,
    grid_checks,
    input_of,
)
from .row_sampler import RowSampler
from .zero_rows import ZeroRows, surrounded_by_zeros, zero_rows_for

#: The oldest opset that the nodes can be written in: it has Round, and a Pad with inputs.
FIRST_OPSET = 11


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
    """Return nodes that compute GridSample with basic standard operators only.

    Args:
        e: new expressions, which hold the nodes.
        X: (N, C, D1, …, Dr), r ≥ 1. Known lengths are folded; ``X.constant`` is ignored.
        grid: (N, D1_out, …, Dr_out, r). A constant grid of at most :data:`MAX_FOLDED_BYTES` bytes
            becomes constant indices and weights.
        Y: the name of the output.

    Raises:
        GridSampleError: the operator is not defined for the arguments, the rank is not known, or
            the opset is too old.

    Source: ONNX GridSample-22.
    """
    mode = spec.mode_of(mode)
    check_opset(e, FIRST_OPSET)
    X_shape, grid_shape = check_grid_sample(e.origin, X, grid, mode, padding_mode)
    operands = _operands(e, X, grid, X_shape, grid_shape)
    if 0 in (*operands.output_shape, *operands.lengths):  # Y is empty, or X has no pixel
        zeros = e.zeros(operands.output_shape, operands.image.type, operands.checks)
        return e.finish(zeros.astype(X.type), Y)

    types = _compute_types(e, X, grid, MODE_RULES[mode])
    prepared = _prepared_operands(e, X, operands, types)
    padding = PADDING_RULES[padding_mode]
    image_shape = [prepared.image_batches, prepared.channels, *prepared.lengths]
    zero_rows = zero_rows_for(e, MODE_RULES[mode], padding, image_shape)
    sampled_shape = [prepared.grid_batches, prepared.channels, *prepared.lengths]
    sampler = RowSampler(
        e, MODE_RULES[mode], padding, sampled_shape, prepared.output_lengths, zero_rows
    )
    rows_of_X = sampler.joined_rows(
        _image_rows(e, prepared, zero_rows), prepared.image_batches, prepared.channels
    )
    inputs = _SamplingInputs(
        operands=prepared,
        padding=padding,
        align_corners=bool(align_corners),
        types=types,
    )
    rows_of_Y = _weighted_rows(e, sampler, rows_of_X, inputs)
    by_channel = sampler.channels_first(rows_of_Y.astype(X.type), prepared.channels)
    return e.finish(e.reshape(by_channel, prepared.output_shape), Y)


class _ComputeTypes(NamedTuple):
    """The types of a lowered GridSample.

    Attributes:
        coordinate_type: of pixel coordinates, indices and weights of one axis; the runtime's, if
            it requires one.
        rounding_type: the type whose rounding the coordinates have: the one that the standard
            computes the grid in.
        value_type: in which values of X are weighted, None if the mode has no weights.
    """

    coordinate_type: str | None
    rounding_type: str
    value_type: str | None


def _compute_types(e: Expressions, X: Argument, grid: Argument, mode: Mode) -> _ComputeTypes:
    """Return the types in which a GridSample of ``X`` and ``grid`` is computed."""
    value_type = None if mode.weights is None else _compute_type(e, X)
    return _ComputeTypes(
        coordinate_type=e.runtime.coordinate_type or value_type,
        rounding_type=str(spec.TYPES[grid.type].compute),
        value_type=value_type,
    )


def _prepared_operands(
    e: Expressions, X: Argument, operands: _Operands, types: _ComputeTypes
) -> _Operands:
    """Return the operands with the image in the type in which it is weighted.

    For a runtime without computed shapes, the batches are checked here; otherwise
    :func:`_pixel_rows` reads the checks.
    """
    prepared = operands
    if types.value_type is not None and operands.image.dtype.kind not in "iu":
        prepared = replace(operands, image=operands.image.astype(types.value_type))
    if operands.checks and not e.runtime.computes_shapes:
        return _with_checked_batches(e, X, prepared)
    return prepared


def _image_rows(e: Expressions, operands: _Operands, zero_rows: ZeroRows) -> Tensor:
    """Return the pixels of X as rows, with zeros around the axes if ``zero_rows`` has a border."""
    rows = _pixel_rows(e, operands)
    if not zero_rows.border:
        return rows
    dims = [operands.image_batches, *operands.lengths, operands.channels]
    return surrounded_by_zeros(e, rows, dims)


@dataclass(frozen=True)
class _SamplingInputs:
    """The operands and attributes of a GridSample from which taps are computed.

    Attributes:
        operands: the tensors of the GridSample.
        padding: the padding mode.
        align_corners: the attribute.
        types: the types of the GridSample.
    """

    operands: _Operands
    padding: Padding
    align_corners: bool
    types: _ComputeTypes


def _weighted_rows(
    e: Expressions,
    sampler: RowSampler,
    rows_of_X: Tensor,
    inputs: _SamplingInputs,
) -> Tensor:
    """Return the rows of X at the taps of all output positions, weighted and added up."""
    lengths = inputs.operands.lengths
    padding = inputs.padding
    normalized = sampler.to_coordinates(inputs.operands.grid)
    length = e.reshape(e.shape(lengths[::-1]), [len(lengths), 1, 1]).astype(normalized.type)
    axis = Axis.of(
        length,
        inputs.align_corners,
        may_be_single=may_be_single(lengths),
        maximum=e.maximum,
    )
    types = inputs.types
    pixels = _pixel_coordinates(e, normalized, axis, sampler.mode, padding, types.rounding_type)
    border = sampler.zero_rows.border
    tap_positions, weight = taps_at(
        e, pixels, axis, sampler.mode, padding, types.coordinate_type, border
    )
    index_groups = sampler.row_numbers.row_indices(tap_positions, axis)
    if weight is None:
        return sampler.gathered(rows_of_X, index_groups[0])
    weight_groups = [group.astype(str(types.value_type)) for group in sampler.tap_weights(weight)]
    return sampler.weighted_sum(rows_of_X, index_groups, weight_groups)


@dataclass(frozen=True)
class _Operands:
    """The tensors of a GridSample, and their lengths as far as they are known.

    Attributes:
        image: X.
        grid: the grid.
        image_batches: the length of X's first axis.
        grid_batches: the length of the grid's first axis, which must be that of X.
        channels: C.
        lengths: the lengths of X's spatial axes.
        output_lengths: the lengths of Y's spatial axes.
        n_coordinates: the length of the grid's last axis.
        checks: the outputs of nodes that fail in a run if the grid does not fit X.
    """

    image: Tensor
    grid: Tensor
    image_batches: DimLike
    grid_batches: DimLike
    channels: DimLike
    lengths: list[DimLike]
    output_lengths: list[DimLike]
    n_coordinates: DimLike
    checks: list[Tensor]

    @property
    def output_shape(self) -> list[DimLike]:
        """The lengths of Y."""
        return [self.grid_batches, self.channels, *self.output_lengths]


def _operands(
    e: Expressions,
    X: Argument,
    grid: Argument,
    X_shape: spec.Shape,
    grid_shape: spec.Shape,
) -> _Operands:
    """Return the tensors of ``X`` and ``grid``, whose shapes are known in part."""
    image = e.input(X.name, X.type)
    grid_tensor = input_of(e, grid)
    if X.type == "bfloat16":
        image = image.astype("float32")  # few runtimes compute with bfloat16
    image_batches, channels, *lengths = dims_of(e, "X", X, image, X_shape)
    grid_dims = dims_of(e, "grid", grid, grid_tensor, grid_shape)
    grid_batches, *output_lengths, n_coordinates = grid_dims
    checks = grid_checks(
        e, X, image, grid_batches=grid_batches, n_coordinates=n_coordinates, r=len(lengths)
    )
    return _Operands(
        image=image,
        grid=grid_tensor,
        image_batches=image_batches,
        grid_batches=grid_batches,
        channels=channels,
        lengths=lengths,
        output_lengths=output_lengths,
        n_coordinates=n_coordinates,
        checks=checks,
    )


def _pixel_rows(e: Expressions, operands: _Operands) -> Tensor:
    """Return the pixels of the image, (N, pixels, C), after the checks."""
    lengths = operands.lengths
    image_lengths = (operands.channels, *lengths)
    are_known = all(
        isinstance(length, int)
        for length in (operands.grid_batches, operands.n_coordinates, *image_lengths)
    )
    n_pixels = e.product(lengths)
    if operands.checks and are_known:
        # The Reshape fails by itself.
        pixels = e.reshape(
            operands.image,
            [operands.grid_batches, operands.channels, n_pixels],
            name=str(batch_error(e)),
        )
    else:
        dims = [operands.image_batches, operands.channels, n_pixels]
        pixels = e.reshape(operands.image, dims, checks=operands.checks)
    return e.transpose(pixels, (0, 2, 1))


def _compute_type(e: Expressions, X: Argument) -> str | None:
    """Return the type in which values of X are weighted."""
    compute = spec.TYPES[X.type].compute
    if e.runtime.coordinate_type and compute and X.type not in spec.FLOATS:
        # Integers as floats are as exact as coordinates must be.
        return e.runtime.coordinate_type
    return compute


def _with_checked_batches(e: Expressions, X: Argument, operands: _Operands) -> _Operands:
    """Check in a run that X and grid have the same batches, for a runtime without lengths.

    The runtime follows no computed lengths, but a Reshape to the lengths of another value fails by
    itself. Each Reshape is written twice: if a single Reshape reads a computed shape, ONNX Runtime
    replaces its unknown length by -1, and nothing is checked.

    Returns:
        The operands without checks.
    """
    image = operands.image
    grid = operands.grid
    image_dims = [operands.grid_batches, operands.channels, *operands.lengths]
    grid_dims: list[DimLike] = [
        operands.grid_batches,
        *operands.output_lengths,
        len(operands.lengths),
    ]
    batches = batches_of(X)
    if isinstance(batches, int):
        grid_dims = [batches, *grid_dims[1:]]
    for _ in range(2):
        grid = e.reshape(grid, grid_dims, exact=True)
        if not isinstance(batches, int):
            image = e.reshape(image, image_dims, exact=True)
    return replace(operands, image=image, grid=grid, checks=[])


def _pixel_coordinates(
    e: Expressions,
    normalized: Tensor,
    axis: Axis,
    mode: Mode,
    padding: Padding,
    rounding: str,
) -> Tensor:
    """Return the pixel coordinates of a grid, with the rounding of the type ``rounding``."""
    if normalized.type == rounding:
        return cast(Tensor, pixel_coordinates(e, normalized, axis, mode, padding))
    # Infinity must not reach the rounding to float32, which would return NaN.
    padding = replace(padding, pad_handles_infinity=False)
    with e.rounding_to_float32():
        return cast(Tensor, pixel_coordinates(e, normalized, axis, mode, padding))


def may_be_single(lengths: Sequence[DimLike]) -> bool:
    """Whether an axis of these ``lengths`` may have one pixel."""
    return not all(isinstance(length, int) and length > 1 for length in lengths)


def lower_affine_grid(
    e: Expressions,
    theta: Argument,
    size: Argument,
    grid: str,
    *,
    align_corners: bool,
) -> list[onnx.NodeProto]:
    """Return nodes that compute AffineGrid with basic standard operators only.

    On an axis of one pixel with ``align_corners`` the position is 0, as in PyTorch.

    Args:
        e: new expressions, which hold the nodes.
        theta: (N, r, r + 1).
        size: (r + 2,), int64. A constant size becomes constant positions of the output's pixels.
        grid: the name of the output.

    Raises:
        GridSampleError: the operator is not defined for the arguments, the rank is not known, or
            the opset is too old.

    Source: ONNX AffineGrid-20.
    """
    check_opset(e, FIRST_OPSET)
    check_type(e.origin, "theta", theta, spec.FLOATS)
    check_type(e.origin, "size", size, ("int64",))
    r = affine_axes(e, theta, size)
    n_coordinates = 0
    if size.constant is not None:
        n_coordinates = r * prod(np.delete(size.constant, 1).tolist())  # without the channels
    rows = input_of(e, theta, n_coordinates)
    known = size.constant
    sizes = e.constant(known) if known is not None else e.input(size.name, size.type)
    axes = validation.SIZE_AXIS_NAMES[r]
    misfit = shape_error(e.origin, "theta", f"shape (N, {r}, {r + 1}) for a size {axes}")
    n, checks = _affine_size_checks(e, theta, rows, size, sizes, r, misfit)
    # A Reshape to known lengths fails by itself, and is not checked.
    name = "" if checks else str(misfit)
    matrix = e.reshape(rows, [n, r, *[1] * (r - 1), r + 1], checks=checks, name=name)
    positions = []
    for index in range(r):
        length = e.gather(sizes, 2 + index)
        pixels = e.op("Range", 0, length, 1).astype(matrix.type)
        axis = Axis.of(
            length.astype(matrix.type),
            align_corners,
            may_be_single=True,
            maximum=e.maximum,
        )
        normalized = normalize(pixels, axis.last, axis.span)
        positions.append(e.reshape(normalized, [-1, *[1] * (r - 1 - index)]))
    total = transform(e.split(matrix, r + 1, 1, axis=r + 1), positions)
    channels_last = [0, *range(2, r + 2), 1]
    return e.finish(e.transpose(total.astype(theta.type), channels_last), grid)


def affine_axes(e: Expressions, theta: Argument, size: Argument) -> int:
    """Return the number of spatial axes of an AffineGrid.

    Raises:
        GridSampleError: the shapes do not fit, or neither is known.
    """
    theta_shape = theta.known_shape
    size_shape = size.known_shape
    matching = []
    for r in (2, 3):
        fits_theta = validation.may_match(theta_shape, (None, r, r + 1))
        if fits_theta and validation.may_match(size_shape, (r + 2,)):
            matching.append(r)
    if len(matching) != 1:
        found = f"of {_described(theta_shape)}, for a size of {_described(size_shape)}"
        expected = "shape (N, 2, 3) for a size of 4 numbers, or (N, 3, 4) for one of 5"
        raise GridSampleError(e.origin, "theta", found, expected)
    return matching[0]


def _described(shape: spec.Shape | None) -> str:
    """Return a shape as an error shows it."""
    return "unknown shape" if shape is None else f"shape {validation.format_shape(shape)}"


def _affine_size_checks(
    e: Expressions,
    theta: Argument,
    theta_tensor: Tensor,
    size: Argument,
    size_tensor: Tensor,
    r: int,
    misfit: GridSampleError,
) -> tuple[int, list[Tensor]]:
    """Write nodes that fail in a run where theta and size do not fit, with the error ``misfit``.

    Returns:
        The number of batches in a Reshape of theta, and the outputs of the nodes, which are 0.
    """
    theta_shape = theta.known_shape or (None,) * 3
    theta_dims = dims_of(e, "theta", theta, theta_tensor, theta_shape)
    if size.constant is not None:
        n = int(size.constant[0])
        if n > 0 and theta_dims[1:] == [r, r + 1]:
            return n, []
        return -1, check_lengths(e, theta_dims, [n, r, r + 1], misfit)
    size_shape = size.shape or (None,)
    size_dims = dims_of(e, "size", size, size_tensor, size_shape)
    expected: list[DimLike] = [e.gather(size_tensor, [0]), r, r + 1, r + 2]
    is_negative = e.less(size_tensor, 0).astype("int64")
    negative = templates.LENGTHS_NEGATIVE.error(e.origin, argument="size")
    return -1, [
        *check_lengths(e, [*theta_dims, *size_dims], expected, misfit),
        write_check(e, is_negative, negative),
    ]


#: The operators that compute a grid -> the function that lowers a node. Its arguments are those of
#: :func:`lower_affine_grid`.
GRID_LOWERINGS: Mapping[str, Callable[..., list[onnx.NodeProto]]] = {
    "AffineGrid": lower_affine_grid,
}
