"""Lower GridSample and AffineGrid to basic standard operators, which every ONNX runtime has.

A lowered GridSample takes X as rows: one row for each pixel, with all its channels. Each tap is a
row number and a weight. Y is the weighted sum of the gathered rows. With zeros padding, X is
surrounded by zeros, and a tap outside reads one of them: no infinity is multiplied by 0, and no
logic tells inside from outside. For a large X this takes longer than the logic; such an X gets a
single row of zeros. The coordinates of all axes are computed together, as a tensor (axes, taps,
N·P) over P output positions, innermost axis first as in the grid. Rank, mode and padding are data.

Modes, paddings and sums are those of :mod:`ort_gridsample.reference`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import cast

import numpy as np
import onnx

from ... import spec
from ...errors import GridSampleError
from ...functions import validation
from ...reference.affine import transform
from ...reference.arrays import Array
from ...reference.coordinates import PADDING, Axis, Padding, normalize
from ...reference.sums import to_integers
from ...reference.taps import MODES, Mode, pixel_coordinates, taps_at
from .expressions import DimLike, Expressions, Tensor
from .runtimes import ANY

#: The oldest opset that the nodes can be written in: it has Round, and a Pad with inputs.
FIRST_OPSET = 11
#: A constant grid of more bytes stays in the model as it is: its indices and weights take 5
#: (linear) to 17 (cubic) times as many, and onnxruntime computes them once, when a session is made.
MAX_FOLDED_BYTES = 1 << 20
#: The types of X for which every runtime has a Pad.
PADDED_TYPES = ("float32", "float64")
#: Up to this number of channels, gathered values are transposed before they are weighted: operators
#: on tensors whose last axis is short are slow, in ONNX Runtime by a factor of 2 for 3 channels.
MAX_FEW_CHANNELS = 8
#: The number of values of X, and of channels for each tap, from which zeros around X are slower
#: than logic: a Pad in ONNX Runtime writes all of its output twice.
MIN_LARGE_VALUES = 1 << 17
MIN_LARGE_CHANNELS_PER_TAP = 32

Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Value:
    """A value of a model, as far as it is known.

    Attributes:
        name: its name.
        type: its type, in :data:`ort_gridsample.spec.TYPES`.
        shape: its shape, with integers where lengths are known; None: the rank is not known.
        constant: its elements, if they are constant.
    """

    name: str
    type: str
    shape: Shape | None
    constant: Array | None = None

    @property
    def known_shape(self) -> Shape | None:
        """The shape, by the elements if they are constant."""
        return self.shape if self.constant is None else self.constant.shape


def lower_grid_sample(
    e: Expressions,
    X: Value,
    grid: Value,
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
        mode: the attribute, or its synonym.
        padding_mode: the attribute.
        align_corners: the attribute.

    Raises:
        GridSampleError: the operator is not defined for the arguments, the rank is not known, or
            the opset is too old.

    Source: ONNX GridSample-22.
    """
    mode = spec.mode_of(mode)
    check_opset(e, FIRST_OPSET)
    X_shape, grid_shape = check_grid_sample(e.prefix, X, grid, mode, padding_mode)
    image = e.input(X.name, X.type)
    coordinates = input_of(e, grid)
    if X.type == "bfloat16":
        image = image.astype("float32")  # few runtimes compute with bfloat16
    batches, c, *lengths = e.dims(image, X_shape, unranked_argument("X", X))
    n, *out, last = e.dims(coordinates, grid_shape, unranked_argument("grid", grid))
    zeros = required_batches(e, X, image, n=n, last=last, r=len(lengths))
    if 0 in (n, c, *out, *lengths):  # Y is empty, or X has no pixel
        return e.finish(e.zeros([n, c, *out], image.type, zeros).astype(X.type), Y)

    compute = _compute_type(e, X)
    if MODES[mode].weights is not None and image.dtype.kind not in "iu":
        image = image.astype(str(compute))
    if zeros and not e.runtime.computes_shapes:
        image, coordinates = _with_checked_batches(
            e, X, image, coordinates, image_dims=[n, c, *lengths], grid_dims=[n, *out, len(lengths)]
        )
        zeros = []
    padding = PADDING[padding_mode]
    if zeros and all(isinstance(dim, int) for dim in (n, last, c, *lengths)):
        pixels = e.reshape(image, [n, c, e.product(lengths)])  # fails by itself
    else:
        pixels = e.reshape(image, [batches, c, e.product(lengths)], zeros=zeros)
    rows = e.transpose(pixels, (0, 2, 1))
    layout = _layout(e, MODES[mode], padding, [batches, c, *lengths])
    if layout.border:
        rows = _surrounded(e, rows, [batches, *lengths, c])
    sampler = _Sampler(e, MODES[mode], [n, c, *lengths], out, layout)
    rows = sampler.joined_rows(rows, batches, c)

    g = sampler.coordinates(coordinates)
    length = e.reshape(e.shape(lengths[::-1]), [len(lengths), 1, 1]).astype(g.type)
    axis = Axis.of(length, bool(align_corners), may_be_single(lengths), e.maximum)
    grid_compute = str(spec.TYPES[grid.type].compute)
    x = _pixel_coordinates(e, g, axis, sampler.mode, padding, grid_compute)
    weight_type = e.runtime.coordinates or compute
    position, weight = taps_at(e, x, axis, sampler.mode, padding, weight_type, layout.border)
    index = sampler.index(position, axis)
    if weight is None:
        total = sampler.values(rows, index[0])
    else:
        weights = [group.astype(str(compute)) for group in sampler.weight(weight)]
        total = sampler.sum(rows, index, weights)
    total = sampler.channels_first(total.astype(X.type), c)
    return e.finish(e.reshape(total, [n, c, *out]), Y)


def _compute_type(e: Expressions, X: Value) -> str | None:
    """Return the type in which values of X are weighted."""
    compute = spec.TYPES[X.type].compute
    if e.runtime.coordinates and compute and X.type not in spec.FLOATS:
        return e.runtime.coordinates  # integers as floats are as exact as coordinates must be
    return compute


def _with_checked_batches(
    e: Expressions,
    X: Value,
    image: Tensor,
    coordinates: Tensor,
    *,
    image_dims: Sequence[DimLike],
    grid_dims: Sequence[DimLike],
) -> tuple[Tensor, Tensor]:
    """Check in a run that X and grid have the same batches, for a runtime without lengths.

    The runtime follows no computed lengths, but a Reshape to the lengths of another value fails by
    itself. There are two of each, because ONNX Runtime replaces an unknown length by -1 if a single
    Reshape reads the shape.

    Returns:
        The image and the coordinates.
    """
    batches = _batches_of(X)
    if isinstance(batches, int):
        grid_dims = [batches, *grid_dims[1:]]
    for _ in range(2):
        coordinates = e.reshape(coordinates, grid_dims, exact=True)
        if not isinstance(batches, int):
            image = e.reshape(image, image_dims, exact=True)
    return image, coordinates


def lower_affine_grid(
    e: Expressions,
    theta: Value,
    size: Value,
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
        align_corners: the attribute.

    Raises:
        GridSampleError: the operator is not defined for the arguments, the rank is not known, or
            the opset is too old.

    Source: ONNX AffineGrid-20.
    """
    check_opset(e, FIRST_OPSET)
    _check_type(e.prefix, "theta", theta, spec.FLOATS)
    _check_type(e.prefix, "size", size, ("int64",))
    r = _affine_axes(e, theta, size)
    n_coordinates = 0
    if size.constant is not None:
        n_coordinates = r * prod(np.delete(size.constant, 1).tolist())  # without the channels
    rows = input_of(e, theta, n_coordinates)
    known = size.constant
    sizes = e.constant(known) if known is not None else e.input(size.name, size.type)
    n, zeros = _required_size(e, theta, rows, size, sizes, r)
    matrix = e.reshape(rows, [n, r, *[1] * (r - 1), r + 1], zeros=zeros)
    positions = []
    for index in range(r):
        length = e.gather(sizes, 2 + index)
        pixels = e.op("Range", 0, length, 1).astype(matrix.type)
        axis = Axis.of(length.astype(matrix.type), align_corners, True, e.maximum)
        normalized = normalize(pixels, axis.last, axis.span)
        positions.append(e.reshape(normalized, [-1, *[1] * (r - 1 - index)]))
    total = transform(e.split(matrix, r + 1, 1, axis=r + 1), positions)
    channels_last = [0, *range(2, r + 2), 1]
    return e.finish(e.transpose(total.astype(theta.type), channels_last), grid)


def _affine_axes(e: Expressions, theta: Value, size: Value) -> int:
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
        found = f"of shape {theta_shape} for a size of shape {size_shape}"
        expected = "(N, 2, 3) for a size (4,), or (N, 3, 4) for a size (5,)"
        raise GridSampleError(e.prefix, "theta", found, expected)
    return matching[0]


def input_of(e: Expressions, value: Value, n_coordinates: int | None = None) -> Tensor:
    """Return a grid or theta in the type that coordinates are computed in.

    Args:
        e: the expressions.
        value: the grid or theta, which becomes a constant if it is constant and small.
        n_coordinates: the number of coordinates that are computed from ``value``; None: the number
            of its elements.
    """
    compute = e.runtime.coordinates or spec.TYPES[value.type].compute or value.type
    if value.constant is not None:
        if n_coordinates is None:
            n_coordinates = value.constant.size
        if n_coordinates * value.constant.itemsize <= MAX_FOLDED_BYTES:
            return e.constant(value.constant.astype(compute), compute)
    return e.input(value.name, value.type).astype(compute)


def _required_size(
    e: Expressions,
    theta: Value,
    theta_tensor: Tensor,
    size: Value,
    size_tensor: Tensor,
    r: int,
) -> tuple[int, list[Tensor]]:
    """Write nodes that fail in a run where theta and size do not fit.

    Returns:
        The number of batches in a Reshape of theta, and zeros from the nodes.
    """
    theta_shape = theta.known_shape or (None,) * 3
    theta_dims = e.dims(theta_tensor, theta_shape, unranked_argument("theta", theta))
    if size.constant is not None:
        n = int(size.constant[0])
        if n > 0 and theta_dims[1:] == [r, r + 1]:
            return n, []  # a Reshape to known lengths fails by itself
        zeros = [e.require_equal(theta_dims, [n, r, r + 1], "size_must_fit_theta")]
    else:
        size_shape = size.shape or (None,)
        size_dims = e.dims(size_tensor, size_shape, unranked_argument("size", size))
        expected: list[DimLike] = [e.gather(size_tensor, [0]), r, r + 1, r + 2]
        zeros = [e.require_equal([*theta_dims, *size_dims], expected, "size_must_fit_theta")]
        is_negative = e.less(size_tensor, 0).astype("int64")
        zeros.append(e.require_zeros(is_negative, r + 2, "size_must_not_be_negative"))
    return -1, [zero for zero in zeros if zero is not None]


def unranked_argument(argument: str, value: Value) -> str:
    """Return ``argument`` if the rank of its ``value`` is not known, or an empty text."""
    return argument if value.known_shape is None else ""


def required_batches(
    e: Expressions,
    X: Value,
    image: Tensor,
    *,
    n: DimLike,
    last: DimLike,
    r: int,
) -> list[Tensor]:
    """Write nodes that fail in a run where a grid does not fit X.

    Args:
        e: the expressions.
        X: the value X.
        image: the tensor of ``X``.
        n: the length of grid's first axis.
        last: the length of grid's last axis.
        r: the number of X's spatial axes.

    Returns:
        Zeros from the nodes; empty if all lengths are known.
    """
    batches = e.dims(image, [_batches_of(X)])
    zeros = [
        e.require_equal([n], batches, "grid_must_have_the_batches_of_X"),
        e.require_equal([last], [r], f"grid_must_have_{r}_coordinates"),
    ]
    return [zero for zero in zeros if zero is not None]


def _batches_of(X: Value) -> int | str | None:
    """Return the number of batches that ``X`` itself has, as far as it is known."""
    return X.shape[0] if X.shape else None


def _pixel_coordinates(
    e: Expressions,
    g: Tensor,
    axis: Axis,
    mode: Mode,
    padding: Padding,
    compute: str,
) -> Tensor:
    """Return the pixel coordinates of ``g``, with the rounding of the type ``compute``."""
    if g.type == compute:
        return cast(Tensor, pixel_coordinates(e, g, axis, mode, padding))
    # Infinity must not reach the rounding to float32, which would return NaN.
    padding = replace(padding, bounds=False)
    with e.rounding_to_float32():
        return cast(Tensor, pixel_coordinates(e, g, axis, mode, padding))


def may_be_single(lengths: Sequence[DimLike]) -> bool:
    """Whether an axis of these ``lengths`` may have one pixel."""
    return not all(isinstance(length, int) and length > 1 for length in lengths)


@dataclass(frozen=True)
class _Layout:
    """The zeros among the rows of X.

    Attributes:
        border: the number of zeros before and after the pixels of each axis, 0 or 1.
        has_zero_row: whether there is one row of zeros before all others.
    """

    border: int
    has_zero_row: bool


def _layout(e: Expressions, mode: Mode, padding: Padding, dims: Sequence[DimLike]) -> _Layout:
    """Return the faster layout for an X of shape ``dims``."""
    if not padding.zero_outside:
        return _Layout(border=0, has_zero_row=False)
    known = [dim for dim in dims if isinstance(dim, int)]
    r = len(dims) - 2
    is_large = (
        len(known) == len(dims)
        and prod(known) >= MIN_LARGE_VALUES
        and known[1] >= MIN_LARGE_CHANNELS_PER_TAP * mode.taps**r
    )
    if is_large and e.runtime == ANY:
        return _Layout(border=0, has_zero_row=True)
    return _Layout(border=1, has_zero_row=False)


def _surrounded(e: Expressions, rows: Tensor, dims: list[DimLike]) -> Tensor:
    """Return rows (N, S, C) with zeros before and after each spatial axis.

    Args:
        e: the expressions.
        rows: the rows.
        dims: (N, D1, …, Dr, C).
    """
    n, *outer, inner, c = dims
    if rows.type in PADDED_TYPES and isinstance(c, int):
        # The last two axes as one: not every runtime has kernels for many axes.
        rows = e.reshape(rows, [n, *outer, e.product([inner, c])])
        return e.pad(rows, [0, *[1] * len(outer), c])
    rows = e.reshape(rows, dims)
    if rows.type in PADDED_TYPES:
        return e.pad(rows, [0, *[1] * (len(dims) - 2), 0])
    for axis in range(1, len(dims) - 1):
        zeros = e.zeros([*dims[:axis], 1, *dims[axis + 1 :]], rows.type)
        dims = [*dims[:axis], dims[axis] + 2, *dims[axis + 1 :]]
        rows = e.concatenate([zeros, rows, zeros], axis)
    return rows


class _Sampler:
    """The taps of all P output positions of all N batches.

    Tensors of the spatial axes list these first, innermost first. The combinations of all axes'
    taps are computed in groups, one group for each gather.

    Args:
        e: the expressions.
        mode: the mode.
        dims: (N, C, D1, …, Dr).
        out: (D1_out, …, Dr_out).
        layout: the zeros among the rows of X.
    """

    def __init__(
        self,
        e: Expressions,
        mode: Mode,
        dims: Sequence[DimLike],
        out: list[DimLike],
        layout: _Layout,
    ) -> None:
        self.e = e
        self.mode = mode
        n, c, *lengths = dims
        self.n = n
        self.lengths = lengths
        self.out = out
        self.layout = layout
        self.r = len(lengths)
        self.taps = mode.taps
        self.positions = e.product([n, *out])  # N·P
        # D1, …, Dr with the zeros around them
        self.padded = [length + 2 * layout.border for length in lengths]
        # With few channels, values (…, N·P, C) are weighted as (…, C, N·P).
        self.has_few_channels = isinstance(c, int) and c <= MAX_FEW_CHANNELS
        # Whether the runtime follows shapes that are computed from lengths of a run.
        self.follows_lengths = e.runtime.computes_shapes
        # IREE cannot gather by an index with an axis of 1, for the taps, before an unknown axis.
        self.is_flat = self.taps == 1 and not self.follows_lengths
        # The number of outer axes of which each combination of taps is a group.
        max_gathers = e.runtime.max_gathers
        self.outer_axes = max(axes for axes in range(self.r + 1) if self.taps**axes <= max_gathers)
        # The number of taps in a group.
        self.group_size = int(self.taps ** (self.r - self.outer_axes))
        # int32 is faster. It is used where it is known to suffice.
        total = e.product([n, *self.padded])
        is_small = isinstance(total, int) and total < 2**31
        is_int32 = is_small or not e.runtime.has_int64_indices
        self.index_type = "int32" if is_int32 else "int64"

    def joined_rows(self, rows: Tensor, batches: DimLike, c: DimLike) -> Tensor:
        """Return the rows of all batches along one axis, after the row of zeros if there is one."""
        e = self.e
        rows = e.reshape(rows, [e.product([batches, *self.padded]), c])
        if self.layout.has_zero_row:
            rows = e.concatenate([e.zeros([1, c], rows.type), rows])
        return rows

    def coordinates(self, grid: Tensor) -> Tensor:
        """Return the coordinates (r, 1, N·P) of a grid."""
        e = self.e
        if self.follows_lengths:
            return e.transpose(e.reshape(grid, [1, self.positions, self.r]), (2, 0, 1))
        # IREE takes the 1 for N.
        by_axis = e.transpose(e.reshape(grid, [self.positions, self.r]), (1, 0))
        return e.reshape(by_axis, [self.r, 1, self.positions])

    def channels_first(self, total: Tensor, c: DimLike) -> Tensor:
        """Return the sums (N·P, C), or (C, N·P) for few channels, with C before P."""
        e = self.e
        if not self.has_few_channels:
            return e.transpose(e.reshape(total, [self.n, e.product(self.out), c]), (0, 2, 1))
        if self.n != 1:
            return e.transpose(e.reshape(total, [c, self.n, e.product(self.out)]), (1, 0, 2))
        return total

    def index(self, position: Tensor, axis: Axis) -> list[Tensor]:
        """Return the rows to read, (group size, N·P) or flat, for each group.

        Args:
            position: the positions of the taps (axes, taps, N·P).
            axis: the axes of X.
        """
        e = self.e
        r = self.r
        pixel = self._inside(position, axis)
        index = pixel.astype(self.index_type)
        if self.is_flat:
            return [self._flat_index(index)]
        if r > 1:
            index = index * e.reshape(self._strides(range(r, 0, -1)), [r, 1, 1])
        *inner, outer = e.split(index, r, 1, axis=0)
        if self.n != 1:
            by_batch = e.reshape(outer, [self.taps, self.n, e.product(self.out)])
            outer = by_batch + self._first_rows()
            if not self.follows_lengths:
                outer = e.reshape(outer, [self.taps, self.positions])
        tail: list[DimLike] = [self.positions]
        if self.layout.has_zero_row:
            is_inside = e.equal(position, pixel).astype(index.type)
            factors = self._groups(e.split(is_inside, r, 1, axis=0)[::-1], Tensor.__mul__, tail)
            rows = self._groups([outer + 1, *reversed(inner)], Tensor.__add__, tail)
            indices = [row * factor for row, factor in zip(rows, factors, strict=True)]
        else:
            indices = self._groups([outer, *reversed(inner)], Tensor.__add__, tail)
        return [_as_small_constant(index) for index in indices]

    def _inside(self, position: Tensor, axis: Axis) -> Tensor:
        """Return the positions, moved to the nearest pixel or zero."""
        e = self.e
        if self.layout.border:
            return e.minimum(e.maximum(position, 0), axis.length + 1)
        if self.layout.has_zero_row:
            return e.minimum(e.maximum(position, 0), axis.last)
        if self.taps > 1 and not self.mode.pads_taps:
            # The coordinate is inside, but the pixel after it need not be.
            return e.minimum(position, axis.last)
        return position

    def weight(self, weight: Tensor) -> list[Tensor]:
        """Return the weights of each group from those of each axis.

        They are (group size, N·P, 1), or (group size, 1, N·P) for few channels.
        """
        axes = self.e.split(weight, self.r, 1, axis=0)[::-1]
        tail: list[DimLike] = [self.positions, 1]
        if self.has_few_channels:
            tail.reverse()
        return self._groups(axes, Tensor.__mul__, tail)

    def values(self, rows: Tensor, index: Tensor) -> Tensor:
        """Return the rows at these indices: (…, N·P, C), or (…, C, N·P) for few channels."""
        e = self.e
        if rows.type == "str":
            # Of a row of strings, ONNX Runtime up to 1.32 gathers only the first.
            by_channel = e.gather(e.transpose(rows, (1, 0)), index, axis=1)
            values = e.transpose(by_channel, (1, 0) if self.is_flat else (1, 2, 0))
        else:
            values = e.gather(rows, index)
        if not self.has_few_channels:
            return values
        return e.transpose(values, (1, 0) if self.is_flat else (0, 2, 1))

    def sum(self, rows: Tensor, index: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        """Return the weighted sum of the rows.

        The sum of integers is the first tap plus the weighted differences from it.
        """
        e = self.e
        is_integer = rows.dtype.kind in "iu"
        converted = rows.astype(weights[0].type)
        values = [self.values(converted, group) for group in index]
        first_index = index[0]
        origin = values[0]
        if is_integer:
            if self.group_size > 1:
                first_index = e.gather(first_index, [0])
                origin = e.gather(origin, [0])
            values = [value - origin for value in values]
        terms = [value * weight for value, weight in zip(values, weights, strict=True)]
        if self.group_size > 1:
            terms = [e.sum(term) for term in terms]
        total = reduce(Tensor.__add__, terms)
        if not is_integer:
            return total

        def first_tap() -> Tensor:
            return self.values(rows, first_index).astype("int64")

        return to_integers(e, origin, total, rows.type, first_tap)

    def _numbers(self, dims: Sequence[DimLike]) -> Tensor:
        """Return lengths as one tensor of the indices' type.

        tract cannot multiply an index by a number of the type of a shape, hence the detour.
        """
        return self.e.shape(dims).astype("float64").astype(self.index_type)

    def _strides(self, first_axes: Sequence[int]) -> Tensor:
        """Return the number of rows of all axes from each of ``first_axes`` on."""
        e = self.e
        if self.follows_lengths:
            return self._numbers([e.product(self.padded[axis:]) for axis in first_axes])
        padded: list[DimLike] = []
        for length in self.lengths:
            number = length if isinstance(length, int) else self._numbers([length])
            padded.append(number + 2 * self.layout.border)
        totals = [e.product(padded[axis:]) for axis in first_axes]
        parts = [self._numbers([total]) if isinstance(total, int) else total for total in totals]
        return e.concatenate(parts)

    def _first_rows(self) -> Tensor:
        """Return the first row of each batch, (N, 1)."""
        e = self.e
        if not self.follows_lengths and isinstance(self.n, Tensor):
            stride = e.reshape(self._strides([0]), [1, 1])
            return e.op("CumSum", e.expand(stride, [self.n, 1]), e.constant(0), exclusive=1)
        batch = e.op("Range", 0, e.gather(e.shape([self.n]), 0), 1).astype(self.index_type)
        return e.reshape(batch * self._strides([0]), [-1, 1])

    def _flat_index(self, index: Tensor) -> Tensor:
        """Return the rows to read, (N·P,), for an ``index`` (axes, 1, N·P).

        IREE cannot split such an index.
        """
        e = self.e
        r = self.r
        index = e.reshape(index, [r, self.positions])
        if r > 1:
            index = index * e.reshape(self._strides(range(r, 0, -1)), [r, 1])
        parts = [e.reshape(part, [-1]) for part in e.split(index, r, 1, axis=0)]
        if self.n != 1:
            first_rows = e.reshape(self._first_rows(), [self.n, *[1] * r])
            parts.append(e.reshape(e.expand(first_rows, [self.n, *self.out]), [-1]))
        return reduce(Tensor.__add__, parts)

    def _groups(
        self,
        axes: Sequence[Tensor],
        combine: Callable[..., Tensor],
        tail: list[DimLike],
    ) -> list[Tensor]:
        """Return all combinations of the axes' taps in groups.

        Args:
            axes: the taps (1, taps, N·P) of each axis, outermost first.
            combine: combines the taps of two axes.
            tail: the shape of a group is (group size, *tail).
        """
        return self._outer_groups(axes, self.outer_axes, combine, tail)

    def _outer_groups(
        self,
        axes: Sequence[Tensor],
        n_outer: int,
        combine: Callable[..., Tensor],
        tail: list[DimLike],
    ) -> list[Tensor]:
        """Do as :meth:`_groups`, with a group for each combination of the outer axes' taps.

        No Split has more outputs than the runtime allows.
        """
        e = self.e
        n_groups = self.taps**n_outer
        group_size = self.taps ** (len(axes) - n_outer)
        if n_groups <= e.runtime.max_split_outputs or n_outer <= 1:
            combined = self._combined(axes, combine, tail)
            return e.split(combined, n_groups, group_size, axis=0)
        inner = self._combined(axes[n_outer - 1 :], combine, tail)
        outer_rows = self._outer_groups(axes[: n_outer - 1], n_outer - 1, combine, tail)
        groups = []
        for outer_row in outer_rows:
            groups += e.split(combine(outer_row, inner), self.taps, group_size, axis=0)
        return groups

    def _combined(
        self,
        axes: Sequence[Tensor],
        combine: Callable[..., Tensor],
        tail: list[DimLike],
    ) -> Tensor:
        """Return all combinations of the axes' taps, (combinations, *tail)."""
        e = self.e
        total = axes[0]
        n_combinations = self.taps
        for axis_taps in axes[1:]:
            total = combine(e.reshape(total, [n_combinations, 1, self.positions]), axis_taps)
            n_combinations *= self.taps
        return e.reshape(total, [n_combinations, *tail])


def _as_small_constant(index: Tensor) -> Tensor:
    """Return ``index`` as int32 if it is constant and fits, which halves its size."""
    if index.constant is not None and index.constant.max() < 2**31:
        return index.astype("int32")
    return index


def check_opset(e: Expressions, first: int) -> None:
    """Check that the opset of ``e`` is at least ``first``.

    Raises:
        GridSampleError: it is older.
    """
    if e.opset < first:
        expected = f"{first} or newer to be lowered to primitives"
        raise GridSampleError(e.prefix, "opset", str(e.opset), expected)


def check_grid_sample(
    name: str,
    X: Value,
    grid: Value,
    mode: str,
    padding_mode: str,
) -> tuple[Shape, Shape]:
    """Check the arguments of a GridSample, as far as they are known.

    Returns:
        The shapes of X and grid, with the lengths that are known from each other.

    Raises:
        GridSampleError: the operator is not defined for the arguments, or no rank is known.
    """
    allowed = [type.name for type in spec.TYPES.values() if not type.name.startswith("complex")]
    _check_type(name, "X", X, allowed)
    _check_type(name, "grid", grid, spec.FLOATS)
    validation.check_mode_and_padding(name, mode, padding_mode, X.type)
    known_grid_shape = grid.known_shape
    if X.shape is None and known_grid_shape is None:
        expected = "a known rank to be lowered to primitives"
        raise GridSampleError(name, "X", "of unknown rank", expected)
    X_shape = X.shape if X.shape is not None else (None,) * len(known_grid_shape or ())
    grid_shape = known_grid_shape if known_grid_shape is not None else (None,) * len(X_shape)
    validation.check_grid_sample_shapes(name, X_shape, grid_shape, padding_mode)
    is_Y_empty = 0 in (*X_shape[:2], *grid_shape[1:-1])
    if 0 in X_shape[2:] and padding_mode != "zeros" and not is_Y_empty:
        expected = f"a pixel, which {padding_mode!r} padding needs"
        raise GridSampleError(name, "X", f"of shape {X_shape}", expected)
    batches = [dim for dim in (*X_shape[:1], *grid_shape[:1]) if isinstance(dim, int)]
    n = batches[0] if batches else None
    return (n, *X_shape[1:]), grid_shape


def _check_type(name: str, argument: str, value: Value, allowed: Sequence[str]) -> None:
    """Check that the type of ``value`` is one of ``allowed``.

    Raises:
        GridSampleError: it is another.
    """
    if value.type not in allowed:
        expected = f"one of {', '.join(allowed)}"
        raise GridSampleError(name, argument, f"of type {value.type}", expected)
