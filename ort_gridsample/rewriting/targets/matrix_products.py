"""Lower GridSample and AffineGrid without Gather, for runtimes that lack it: as matrix products.

Along one axis of X, each output position has a row of weights, one for each pixel of the axis. The
weight of a pixel is the sum of those of the taps that lie on it. Two integers are equal if
``max(0, 1 - |tap - pixel|)`` is 1. For linear, the same formula of the coordinate is the weight
itself. A tap outside of X equals no pixel, which is zeros padding.

X is multiplied by the weights of its longest axis, which leaves the fewest values: for each
position one for each pixel of the other axes. They are multiplied by the weights of the other axes,
one axis after the other, and summed. Where these values would take much memory, the positions are
computed in blocks.

Coordinates, paddings, taps and weights are those of :mod:`ort_gridsample.reference`. Tensors of the
spatial axes are (N, r, P), innermost axis first, and with taps (N, r, taps, P). No tensor has more
than four axes, except X and Y, and every sum is over the last axis but one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import cast

import numpy as np
import onnx
from numpy.polynomial import chebyshev

from ... import spec
from ...detection.records import multiply_adds
from ...errors import GridSampleError
from ...functions import validation
from ...graph.expressions import Expressions, Tensor
from ...graph.substitutes import MissingOperatorError, largest_finite
from ...reference.affine import transform
from ...reference.arrays import Array
from ...reference.coordinates import (
    PADDING_RULES,
    Axis,
    Namespace,
    Padding,
    Values,
    normalize,
)
from ...reference.taps import MODE_RULES, Mode, pads_taps, pixel_coordinates, taps_at
from .lowered_arguments import (
    Argument,
    check_grid_sample,
    check_opset,
    check_type,
    input_of,
)
from .primitives import FIRST_OPSET, affine_axes, may_be_single

#: The maximum size of a tensor of values for each position, unless :data:`MAX_BLOCKS` is reached.
MAX_INTERMEDIATE_BYTES = 1 << 26
#: The maximum number of blocks of positions. Each block has nodes of its own.
MAX_BLOCKS = 64
#: The maximum degree of a polynomial for the weights of a mode.
MAX_DEGREE = 24
#: The error of a polynomial of float64, by its rounding.
MIN_POLYNOMIAL_ERROR = 64 * float(np.finfo("float64").eps)
#: In the shape of a Reshape: the length of the input, and the length that remains.
SAME = 0
REST = -1


@dataclass(frozen=True)
class _Shapes:
    """The lengths of a GridSample, None where they are not known.

    Attributes:
        batches: N.
        channels: C.
        lengths: D1, …, Dr.
        output_lengths: D1_out, …, Dr_out, of which one at most is not known.
    """

    batches: int | None
    channels: int | None
    lengths: Sequence[int]
    output_lengths: Sequence[int | None]

    @property
    def positions(self) -> int | None:
        """P, the number of output positions of a batch."""
        known = [length for length in self.output_lengths if length is not None]
        return prod(known) if len(known) == len(self.output_lengths) else None

    @property
    def kept_batches(self) -> int:
        """N in the shape of a Reshape whose first axis stays."""
        return SAME if self.batches is None else self.batches


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
    """Return nodes that compute GridSample with matrix products.

    Args:
        e: new expressions, which hold the nodes.
        X: (N, C, D1, …, Dr), floating point. D1, …, Dr must be known.
        grid: (N, D1_out, …, Dr_out, r). N, C and one of D1_out, …, Dr_out need not be known, but C
            or all of the latter must be.
        Y: the name of the output.

    Raises:
        GridSampleError: the operator is not defined for the arguments, a length that must be known
            is not, the opset is too old, or the products take too many multiply-adds.
    """
    mode = spec.mode_of(mode)
    check_opset(e, FIRST_OPSET)
    X_shape, grid_shape = check_grid_sample(e.origin, X, grid, mode, padding_mode)
    check_type(e.origin, "X", X, spec.FLOATS)
    shapes = _known_shapes(e, X_shape, grid_shape)
    _check_axes(e, shapes, str(spec.TYPES[grid.type].compute))
    number = multiply_adds(X_shape, grid_shape)
    check_cost(e.origin, number, e.runtime.max_multiply_adds, X=X_shape, grid=grid_shape)
    if 0 in (*X_shape, *grid_shape[1:-1]):
        return e.finish(_zeros(e, X, shapes), Y)
    compute = str(spec.TYPES[X.type].compute)
    sampler = _MatrixSampler(
        e,
        MODE_RULES[mode],
        PADDING_RULES[padding_mode],
        shapes,
        align_corners=bool(align_corners),
        weight_type=compute,
    )
    image = e.input(X.name, X.type).astype(compute)
    # The weights of a constant grid are constant as well.
    grid_tensor = input_of(e, grid, sampler.n_coordinates)
    blocks = sampler.pixel_coordinates(grid_tensor)
    samples = e.concatenate([sampler.samples(image, block) for block in blocks], axis=2)
    if len(shapes.lengths) > 1:
        channels = SAME if shapes.channels is None else shapes.channels
        output = [REST if length is None else length for length in shapes.output_lengths]
        samples = _reshape_all(e, samples, [shapes.kept_batches, channels, *output])
    return e.finish(samples.astype(X.type), Y)


def check_cost(where: str, number: int | None, maximum: int, **shapes: spec.Shape) -> None:
    """Check that matrix products do not take too long.

    Args:
        number: their number of multiply-adds, None if it is not known.
        maximum: the maximum number.
        shapes: argument of the node -> its shape.

    Raises:
        GridSampleError: there are more.
    """
    if number is not None and number > maximum:
        texts = [f"{name} of shape {validation.format_shape(s)}" for name, s in shapes.items()]
        found = f"{number:,}, for {' and '.join(texts)}"
        expected = (
            f"at most {maximum:,}; a larger max_multiply_adds (--max-multiply-adds) allows more"
        )
        raise GridSampleError(where, "the number of multiply-adds", found, expected)


def _check_axes(e: Expressions, shapes: _Shapes, coordinate_type: str) -> None:
    """Check that all pixel coordinates inside X count as finite.

    Raises:
        GridSampleError: an axis is too long.
    """
    longest = max(shapes.lengths)
    maximum = int(largest_finite(coordinate_type))
    if longest > maximum:
        found = f"with an axis of {longest:,} pixels"
        expected = f"at most {maximum:,} pixels on an axis, for a grid of {coordinate_type}"
        raise GridSampleError(e.origin, "X", found, expected)


def _known_shapes(e: Expressions, X_shape: spec.Shape, grid_shape: spec.Shape) -> _Shapes:
    """Return the lengths of a GridSample.

    Raises:
        GridSampleError: too few of them are known.
    """
    batches, channels, *lengths = _numbers(X_shape)
    output_lengths = _numbers(grid_shape[1:-1])
    known_lengths = [length for length in lengths if length is not None]
    n_unknown = output_lengths.count(None)
    X_found = f"of shape {validation.format_shape(X_shape)}"
    if len(known_lengths) < len(lengths):
        expected = "spatial lengths that the model states, without operators that read shapes"
        raise GridSampleError(e.origin, "X", X_found, expected)
    if n_unknown > 1:
        found = f"of shape {validation.format_shape(grid_shape)}"
        expected = "at most one unknown length between the first and the last"
        raise GridSampleError(e.origin, "grid", found, expected)
    if n_unknown and channels is None:
        expected = "a number of channels that the model states, or a grid of known lengths"
        raise GridSampleError(e.origin, "X", X_found, expected)
    return _Shapes(batches, channels, known_lengths, output_lengths)


def _numbers(shape: spec.Shape) -> list[int | None]:
    """Return a shape with None for the lengths that have only names."""
    return [length if isinstance(length, int) else None for length in shape]


def _zeros(e: Expressions, X: Argument, shapes: _Shapes) -> Tensor:
    """Return Y where it has no elements, or X has no pixels.

    Raises:
        GridSampleError: the shape of Y is not known.
    """
    known = [
        length
        for length in (shapes.batches, shapes.channels, *shapes.output_lengths)
        if length is not None
    ]
    if len(known) < 2 + len(shapes.output_lengths):
        found = f"of shape {validation.format_shape(X.known_shape or ())}"
        expected = "known lengths of the output, if X or the output is empty"
        raise GridSampleError(e.origin, "X", found, expected)
    return e.constant(np.zeros(known), X.type)


class _MatrixSampler:
    """Samples X by products with the weights of all pixels of each axis.

    Args:
        mode: determines the taps and the weights on each axis.
        shapes: the lengths.
        weight_type: the type of the weights, and of X.
    """

    def __init__(
        self,
        e: Expressions,
        mode: Mode,
        padding: Padding,
        shapes: _Shapes,
        *,
        align_corners: bool,
        weight_type: str,
    ) -> None:
        self._e = e
        self._mode = _mode_for(e, mode)
        self._padding = padding
        self._batches = shapes.kept_batches
        self._channels = shapes.channels
        self._lengths = shapes.lengths
        self._align_corners = align_corners
        self._weight_type = weight_type
        self._r = len(shapes.lengths)
        #: Whether weights are a function of the coordinate, without taps.
        self._is_tent = is_tent(mode) and not pads_taps(mode, padding)
        # The longest axis; of equal ones the innermost, for which X is not transposed.
        self._first_axis = max(range(self._r), key=lambda axis: (shapes.lengths[axis], axis))
        self._positions = shapes.positions
        self._n_blocks = self._number_of_blocks(shapes.batches or 1)
        self._block_positions = REST
        if self._positions is not None:
            self._block_positions = self._positions // self._n_blocks

    @property
    def n_coordinates(self) -> int:
        """The number of weights and coordinates of a grid of known lengths."""
        return max(self._batches, 1) * (self._positions or 1) * (sum(self._lengths) + self._r)

    def pixel_coordinates(self, grid: Tensor) -> list[Tensor]:
        """Return the pixel coordinates (N, r, P) of a grid in blocks of positions."""
        e = self._e
        positions = REST if self._positions is None else self._positions
        if self._r == 1:
            normalized = reshaped(e, grid, [self._batches, 1, positions])
        else:
            by_position = reshaped(e, grid, [self._batches, positions, self._r])
            normalized = e.transpose(by_position, (0, 2, 1))
        axis = self._axis(grid.type, (self._r, 1))
        pixels = pixel_coordinates(e, normalized, axis, self._mode, self._padding)
        return self._blocks(pixels)

    def _axis(self, coordinate_type: str, shape: Sequence[int]) -> Axis:
        """Return the axes of X, innermost first, with numbers of this ``shape``."""
        length = self._e.constant(np.reshape(self._lengths[::-1], shape), coordinate_type)
        return Axis.of(
            length,
            self._align_corners,
            may_be_single=may_be_single(self._lengths),
            maximum=self._e.maximum,
        )

    def _blocks(self, pixels: Tensor) -> list[Tensor]:
        """Return coordinates (N, r, P) in blocks of positions.

        A block is the sum of all blocks, each multiplied by 1 or 0: there is no operator to slice.
        """
        e = self._e
        if self._n_blocks == 1:
            return [pixels]
        shape = [self._batches, self._r, self._n_blocks, self._block_positions]
        by_block = reshaped(e, pixels, shape)
        blocks = []
        for row in np.eye(self._n_blocks):
            terms = by_block * e.constant(row[:, None], pixels.type)
            block = summed(e, terms, 2, self._n_blocks)
            blocks.append(reshaped(e, block, [self._batches, self._r, self._block_positions]))
        return blocks

    def _number_of_blocks(self, batches: int) -> int:
        """Return the number of blocks, a divisor of the number of positions."""
        positions = self._positions
        if positions is None:
            return 1
        n_taps = 1 if self._is_tent else self._mode.taps
        values = n_taps * max(self._lengths)
        if self._r > 1:
            other_lengths = prod(self._lengths) // self._lengths[self._first_axis]
            values = max(values, (self._channels or 1) * other_lengths)
        n_bytes = batches * values * positions * np.dtype(self._weight_type).itemsize
        needed = -(-n_bytes // MAX_INTERMEDIATE_BYTES)
        divisors = [n for n in range(1, MAX_BLOCKS + 1) if positions % n == 0]
        return min((n for n in divisors if n >= needed), default=divisors[-1])

    def samples(self, image: Tensor, pixels: Tensor) -> Tensor:
        """Return the samples (N, C, P) of X at pixel coordinates (N, r, P)."""
        e = self._e
        weights = self._axis_weights(pixels)
        first = self._first_axis
        others = [axis for axis in range(self._r) if axis != first]
        n_rows = prod(self._lengths[axis] for axis in others)  # of a channel
        image = self._with_last_axis(image, first, n_rows)
        total = e.op("MatMul", image, weights[first])
        for axis in reversed(others):
            length = self._lengths[axis]
            n_rows //= length
            shape = [self._batches, self._all_rows(n_rows), length, self._block_positions]
            axis_weights = reshaped(
                e, weights[axis], [self._batches, 1, length, self._block_positions]
            )
            terms = reshaped(e, total, shape) * axis_weights
            total = summed(e, terms, 2, length)
        if others and self._n_blocks > 1:
            total = reshaped(e, total, [self._batches, self._all_rows(1), self._block_positions])
        return total

    def _with_last_axis(self, image: Tensor, axis: int, n_rows: int) -> Tensor:
        """Return X as (N, C·rows, D), where D is an ``axis`` and rows are those of the others."""
        e = self._e
        if self._r == 1:
            return image
        length = self._lengths[axis]
        n_after = prod(self._lengths[axis + 1 :])
        if n_after > 1:
            if self._r > 2:
                n_before = self._all_rows(prod(self._lengths[:axis]))
                image = reshaped(e, image, [self._batches, n_before, length, n_after])
            image = e.transpose(image, (0, 1, 3, 2))
        return reshaped(e, image, [self._batches, self._all_rows(n_rows), length])

    def _all_rows(self, n_rows: int) -> int:
        """Return the number of rows of all channels in the shape of a Reshape."""
        return REST if self._channels is None else self._channels * n_rows

    def _axis_weights(self, pixels: Tensor) -> list[Tensor]:
        """Return the weights (N, D, P) of all pixels of each axis, outermost first."""
        e = self._e
        if self._is_tent:
            rows = self._by_axis(pixels)
            return [self._tent(row, length) for row, length in self._with_lengths(rows)]
        by_tap = reshaped(e, pixels, [self._batches, self._r, 1, self._block_positions])
        axis = self._axis(pixels.type, (self._r, 1, 1))
        taps, tap_weights = taps_at(e, by_tap, axis, self._mode, self._padding, self._weight_type)
        positions = self._taps_by_axis(taps)
        if tap_weights is None:
            return [self._tent(row, length) for row, length in self._with_lengths(positions)]
        weights = []
        factors = self._taps_by_axis(tap_weights)[::-1]
        for factor, (row, length) in zip(factors, self._with_lengths(positions), strict=True):
            weights.append(self._sum_of_taps(self._tent(row, length) * factor, length))
        return weights

    def _with_lengths(self, rows: Sequence[Tensor]) -> list[tuple[Tensor, int]]:
        """Return the tensors of all axes with the lengths of X, outermost first."""
        return list(zip(reversed(rows), self._lengths, strict=True))

    def _tent(self, positions: Tensor, length: int) -> Tensor:
        """Return the tents of positions (…, 1, P) around all pixels of an axis, (…, D, P)."""
        return tent(positions, np.arange(length)[:, None]).astype(self._weight_type)

    def _by_axis(self, rows: Tensor) -> list[Tensor]:
        """Return the rows (N, 1, values) of the axes, of finite ones (N, r, values)."""
        e = self._e
        if self._r == 1:
            return [rows]
        return [
            summed(e, rows * e.constant(row[:, None], rows.type), 1, self._r)
            for row in np.eye(self._r)
        ]

    def _taps_by_axis(self, values: Tensor) -> list[Tensor]:
        """Return the values (N, taps, 1, P) of each axis, of (N, r, taps, P) finite ones.

        For one tap they are (N, 1, P).
        """
        e = self._e
        n_taps = self._mode.taps
        rows = reshaped(e, values, [self._batches, self._r, self._all_positions(n_taps)])
        by_axis = self._by_axis(rows)
        if n_taps == 1:
            return by_axis
        shape = [self._batches, n_taps, 1, self._block_positions]
        return [reshaped(e, row, shape) for row in by_axis]

    def _sum_of_taps(self, weight: Tensor, length: int) -> Tensor:
        """Return the sums (N, D, P) of the weights (N, taps, D, P) of an axis."""
        e = self._e
        n_taps = self._mode.taps
        if n_taps == 1:
            return weight
        by_tap = reshaped(e, weight, [self._batches, n_taps, self._all_positions(length)])
        total = summed(e, by_tap, 1, n_taps)
        return reshaped(e, total, [self._batches, length, self._block_positions])

    def _all_positions(self, number: int) -> int:
        """Return a number of values for each position in the shape of a Reshape."""
        return REST if self._block_positions == REST else number * self._block_positions


def tent(positions: Tensor, pixels: Array) -> Tensor:
    """Return 1 less the distances of positions from pixels, or 0 if that is negative."""
    e = positions.owner
    return e.maximum(1 - e.abs(positions - e.constant(pixels, positions.type)), 0)


def is_tent(mode: Mode) -> bool:
    """Whether the weight of each pixel is 1 less its distance from the coordinate, or 0."""
    if mode.weights is None or tuple(mode.offsets) != (0, 1):
        return False
    t = np.linspace(0, 1, 9)[None, :-1]
    return np.array_equal(mode.weights(np, t), np.concatenate([1 - t, t]))


def _mode_for(e: Expressions, mode: Mode) -> Mode:
    """Return a mode with the same weights, as polynomials if the runtime lacks an operator."""
    compute_weights = mode.weights
    if compute_weights is None:
        return mode

    def weights(xp: Expressions, t: Tensor) -> Tensor:
        try:
            return cast(Tensor, compute_weights(xp, t))
        except MissingOperatorError as error:
            operator = str(error)
        first = _first_distance(mode)
        coefficients = _coefficients_of(compute_weights, first, float(np.finfo(t.type).eps))
        if coefficients is None:
            found = f"one whose weights are computed with {operator}"
            expected = f"one whose weights are polynomials nearly, for a runtime without {operator}"
            raise GridSampleError(e.origin, "mode", found, expected)
        columns = [e.constant(column[:, None], t.type) for column in coefficients]
        return cast(Tensor, _polynomial(columns, t * 2 - (1 + 2 * first)))

    return replace(mode, weights=weights)


def _first_distance(mode: Mode) -> float:
    """Return the least distance of a coordinate from the pixel from which taps are counted."""
    coordinates = np.arange(0, 2, 2**-6)
    return float((coordinates - mode.base(np, coordinates)).min())


def _coefficients_of(
    compute_weights: Callable[[Namespace, Values], Values], first: float, tolerance: float
) -> Array | None:
    """Return the coefficients of polynomials for the weights of a mode.

    Args:
        compute_weights: :attr:`.Mode.weights`.
        tolerance: the largest error, unless the rounding of float64 makes it larger.

    Returns:
        (degree + 1, taps), lowest power first, of ``2 · (t - first) - 1``, which is in [-1, 1].
        None if a high degree does not suffice.
    """
    tolerance = max(tolerance, MIN_POLYNOMIAL_ERROR)
    tests = np.linspace(-1, 1, 200, endpoint=False)
    expected = compute_weights(np, (tests[None] + 1) / 2 + first)
    for degree in range(1, MAX_DEGREE + 1):
        points = chebyshev.chebpts1(degree + 1)
        values = compute_weights(np, (points[None] + 1) / 2 + first)
        series = chebyshev.chebfit(points, values.T, degree)
        coefficients = np.zeros_like(series)
        for tap, column in enumerate(series.T):
            powers = chebyshev.cheb2poly(column)
            coefficients[: len(powers), tap] = powers
        actual = _polynomial(list(coefficients[:, :, None]), tests)
        if np.abs(actual - expected).max() <= tolerance:
            return coefficients
    return None


def _polynomial(columns: Sequence[Values], u: Values) -> Values:
    """Return the value of a polynomial with these coefficients, lowest power first."""
    total = columns[-1]
    for column in columns[-2::-1]:
        total = total * u + column
    return total


def lower_affine_grid(
    e: Expressions,
    theta: Argument,
    size: Argument,
    grid: str,
    *,
    align_corners: bool,
) -> list[onnx.NodeProto]:
    """Return nodes that compute AffineGrid without Gather and Range.

    Args:
        e: new expressions, which hold the nodes.
        theta: (N, r, r + 1).
        size: (r + 2,), int64, a constant.
        grid: the name of the output.

    Raises:
        GridSampleError: the operator is not defined for the arguments, the size is not constant, or
            the opset is too old.
    """
    check_opset(e, FIRST_OPSET)
    check_type(e.origin, "theta", theta, spec.FLOATS)
    check_type(e.origin, "size", size, ("int64",))
    r = affine_axes(e, theta, size)
    if size.constant is None:
        expected = "a constant: the shape of the grid cannot be computed"
        raise GridSampleError(e.origin, "size", "computed", expected)
    batches, _, *lengths = (int(length) for length in size.constant)
    rows = input_of(e, theta, r * batches * prod(lengths))
    if batches == 0 or 0 in lengths:
        return e.finish(e.constant(np.zeros([batches, *lengths, r]), theta.type), grid)
    matrix = reshaped(e, rows, [batches, r, r + 1])
    by_column = e.transpose(matrix, (0, 2, 1))
    columns = []
    for row in np.eye(r + 1):
        column = summed(e, by_column * e.constant(row[:, None], matrix.type), 1, r + 1)
        columns.append(reshaped(e, column, [batches, r, 1]))
    positions = [
        e.constant(position, matrix.type) for position in _positions(lengths, align_corners)
    ]
    total = e.transpose(transform(columns, positions).astype(theta.type), (0, 2, 1))
    return e.finish(_reshape_all(e, total, [batches, *lengths, r]), grid)


def _positions(lengths: Sequence[int], align_corners: bool) -> list[Array]:
    """Return the normalized positions (P,) of all pixels along each axis, outermost first."""
    by_axis = []
    for length in lengths:
        axis = Axis.of(float(length), align_corners, may_be_single=length == 1)
        by_axis.append(normalize(np.arange(length, dtype=np.float64), axis.last, axis.span))
    return [position.ravel() for position in np.meshgrid(*by_axis, indexing="ij")]


def summed(e: Expressions, x: Tensor, axis: int, length: int) -> Tensor:
    """Return the sum along ``axis``, the last but one, of this length. The axis is kept."""
    if e.runtime.lacks("ReduceSum") and x.constant is None:
        return e.op("MatMul", e.constant(np.ones((1, length)), x.type), x)
    return e.sum(x, axis)


def reshaped(e: Expressions, x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return ``x`` in a shape with at most one :data:`REST`; :data:`SAME` keeps a length."""
    if x.constant is not None:
        lengths = [x.constant.shape[i] if dim == SAME else dim for i, dim in enumerate(dims)]
        return e.constant(x.constant.reshape(lengths), x.type)
    return e.op("Reshape", x, e.row(*dims))


def _reshape_all(e: Expressions, x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return ``x`` in the shape of an output, which may have more axes than a Reshape may have.

    The sum with a zero of as many axes has a first axis of length 1.
    """
    max_axes = e.runtime.max_reshape_axes
    if max_axes is None or len(dims) <= max_axes or dims[0] != 1:
        return reshaped(e, x, dims)
    return reshaped(e, x, dims[1:]) + e.constant(np.zeros([1] * len(dims)), x.type)


#: As :data:`.primitives.GRID_LOWERINGS`.
GRID_LOWERINGS: Mapping[str, Callable[..., list[onnx.NodeProto]]] = {
    "AffineGrid": lower_affine_grid,
}
