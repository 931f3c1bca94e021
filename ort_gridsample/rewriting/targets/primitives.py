"""Lower GridSample and AffineGrid to basic standard operators, which every ONNX runtime has.

A lowered GridSample takes X as rows, one for each pixel, of all its channels. Each tap is a row number and a weight; Y
is the weighted sum of the gathered rows. With zeros padding, zeros are put around X: a tap outside reads one of them,
so that no infinity is multiplied by 0 and no logic tells inside from outside. Of a large X that takes longer than the
logic; it gets a single row of zeros. The coordinates of all axes are computed together, as a tensor (axes, taps, N·P)
over P output positions, innermost axis first as in the grid. Rank, mode and padding are data.

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
from .expressions import Dim, Expressions, Tensor
from .runtimes import ANY

#: The oldest opset that the nodes are for: from it on, a Pad has inputs, and there is a Round.
FIRST_OPSET = 11
#: A constant grid of more bytes stays in the model as it is: its indices and weights take 5 (linear) to 17 (cubic)
#: times as many, and onnxruntime computes them once, when a session is made.
FOLDED = 1 << 20
#: The types of X of which every runtime has a Pad.
PADDED = ("float32", "float64")
#: Up to so many channels, gathered values are transposed before they are weighed: operators on tensors whose last axis
#: is short are slow, in ONNX Runtime by a factor of 2 for 3 channels.
FEW_CHANNELS = 8
#: The least number of values of X, and of its channels for each tap, for which zeros around X are slower than logic: a
#: Pad in ONNX Runtime writes all of its output twice.
LARGE, CHANNELS_PER_TAP = 1 << 17, 32

Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Value:
    """A value of a model, as far as it is known, of a ``type`` in :data:`ort_gridsample.spec.TYPES`.

    A length that is not known is anything but an int; where not even the rank is known, ``shape`` is None.
    """

    name: str
    type: str
    shape: Shape | None
    constant: Array | None = None


def lower_grid_sample(
    e: Expressions, X: Value, grid: Value, Y: str, *, mode: str, padding_mode: str, align_corners: bool
) -> list[onnx.NodeProto]:
    """Nodes that compute GridSample with basic standard operators only.

    Args:
        e: holds the nodes; it is new.
        X: (N, C, D1, …, Dr), r ≥ 1. Known lengths are folded; ``X.constant`` is ignored.
        grid: (N, D1_out, …, Dr_out, r). A constant one of at most :data:`FOLDED` bytes becomes constant indices and
            weights.
        Y: the name of the output.
        mode: the attribute, or its synonym.
        padding_mode: the attribute.
        align_corners: the attribute.

    Raises:
        GridSampleError: the operator is not defined for these, the rank is not known, or the opset is too old.

    Source: ONNX GridSample-22.
    """
    mode = spec.mode_of(mode)
    check_opset(e, FIRST_OPSET)
    X_shape, grid_shape = check_grid_sample(e.prefix, X, grid, mode, padding_mode)
    padding = PADDING[padding_mode]
    compute = spec.TYPES[X.type].compute
    if e.runtime.coordinates and compute and X.type not in spec.FLOATS:
        compute = e.runtime.coordinates  # integers as floats are as exact as coordinates must be
    image, coordinates = e.input(X.name, X.type), input_of(e, grid)
    if X.type == "bfloat16":
        image = image.astype("float32")  # few runtimes can do more with it
    batches, c, *lengths = e.dims(image, X_shape, unranked_argument("X", X))
    n, *out, last = e.dims(coordinates, grid_shape, unranked_argument("grid", grid))
    zeros = required_batches(e, X, image, n, last, len(lengths))
    if 0 in (n, c, *out, *lengths):  # Y is empty, or X has no pixel
        return e.finish(e.zeros([n, c, *out], image.type, zeros).astype(X.type), Y)

    if MODES[mode].weights is not None and image.dtype.kind not in "iu":
        image = image.astype(str(compute))
    if zeros and "lengths" in e.runtime.without:
        # It follows no computed lengths; a Reshape to the lengths of another value fails by itself. There are two, as
        # ONNX Runtime replaces a length that it does not know by -1 where a single one reads the shape.
        own = _batches_of(X)
        for _ in range(2):
            coordinates = e.reshape(coordinates, [own if isinstance(own, int) else n, *out, len(lengths)], exact=True)
            image = e.reshape(image, [n, c, *lengths], exact=True) if not isinstance(own, int) else image
        zeros = []
    # Few axes: not every runtime has kernels for many.
    if zeros and all(isinstance(dim, int) for dim in (n, last, c, *lengths)):
        rows = e.reshape(image, [n, c, e.product(lengths)])  # fails by itself
    else:
        rows = e.reshape(image, [batches, c, e.product(lengths)], zeros=zeros)
    rows = e.transpose(rows, (0, 2, 1))
    known = [dim for dim in (batches, c, *lengths) if isinstance(dim, int)]
    is_large = len(known) == 2 + len(lengths) and prod(known) >= LARGE
    is_large = is_large and known[1] >= CHANNELS_PER_TAP * MODES[mode].taps ** len(lengths)
    zeros_first = padding.zero_outside and e.runtime == ANY and is_large
    around = int(padding.zero_outside and not zeros_first)
    if around:
        rows = _surrounded(e, rows, [batches, *lengths, c])
    sampler = _Sampler(e, MODES[mode], [n, c, *lengths], out, around, zeros_first)
    rows = e.reshape(rows, [e.product([batches, *sampler.padded]), c])
    if zeros_first:
        rows = e.concatenate([e.zeros([1, c], rows.type), rows])
    if sampler.follows_lengths:
        g = e.transpose(e.reshape(coordinates, [1, sampler.positions, len(out)]), (2, 0, 1))
    else:  # IREE takes the 1 for N
        g = e.transpose(e.reshape(coordinates, [sampler.positions, len(out)]), (1, 0))
        g = e.reshape(g, [len(out), 1, sampler.positions])
    length = e.reshape(e.shape(lengths[::-1]), [len(lengths), 1, 1]).astype(g.type)
    axis = Axis.of(length, bool(align_corners), may_be_single(lengths), e.maximum)
    x = _pixel_coordinates(e, g, axis, sampler.mode, padding, str(spec.TYPES[grid.type].compute))
    position, weight = taps_at(e, x, axis, sampler.mode, padding, e.runtime.coordinates or compute, around)
    index = sampler.index(position, axis)
    if weight is None:
        total = sampler.values(rows, index[0])
    else:
        weights = [group.astype(str(compute)) for group in sampler.weight(weight)]
        total = sampler.sum(rows, index, weights)
    total = total.astype(X.type)
    if not sampler.few:
        total = e.transpose(e.reshape(total, [n, e.product(out), c]), (0, 2, 1))
    elif n != 1:
        total = e.transpose(e.reshape(total, [c, n, e.product(out)]), (1, 0, 2))
    return e.finish(e.reshape(total, [n, c, *out]), Y)


def lower_affine_grid(
    e: Expressions, theta: Value, size: Value, grid: str, *, align_corners: bool
) -> list[onnx.NodeProto]:
    """Nodes that compute AffineGrid with basic standard operators only.

    Args:
        e: holds the nodes; it is new.
        theta: (N, r, r + 1).
        size: (r + 2,), int64. A constant one becomes constant positions of the output's pixels.
        grid: the name of the output.
        align_corners: the attribute.

    Raises:
        GridSampleError: the operator is not defined for these, the rank is not known, or the opset is too old.

    Source: ONNX AffineGrid-20. On an axis of one pixel with ``align_corners`` the position is 0, as in PyTorch.
    """
    check_opset(e, FIRST_OPSET)
    _check_type(e.prefix, "theta", theta, spec.FLOATS)
    _check_type(e.prefix, "size", size, ("int64",))
    shapes = [each.shape if each.constant is None else each.constant.shape for each in (theta, size)]
    fits = [r for r in (2, 3) if all(map(validation.may_match, shapes, ((None, r, r + 1), (r + 2,))))]
    if len(fits) != 1:
        found = f"of shape {shapes[0]} for a size of shape {shapes[1]}"
        raise GridSampleError(e.prefix, "theta", found, "(N, 2, 3) for a size (4,), or (N, 3, 4) for a size (5,)")
    (r,) = fits
    made = 0 if size.constant is None else r * prod(np.delete(size.constant, 1).tolist())
    rows = input_of(e, theta, made)
    sizes = e.input(size.name, size.type) if size.constant is None else e.constant(size.constant)
    n, zeros = _required_size(e, theta, rows, shapes[0], size, sizes, r)
    row = e.reshape(rows, [n, r, *[1] * (r - 1), r + 1], zeros=zeros)
    positions = []
    for i in range(r):
        length = e.gather(sizes, 2 + i)
        pixels = e.op("Range", 0, length, 1).astype(row.type)
        axis = Axis.of(length.astype(row.type), align_corners, True, e.maximum)
        positions.append(e.reshape(normalize(pixels, axis.last, axis.span), [-1, *[1] * (r - 1 - i)]))
    total = transform(e.split(row, r + 1, 1, axis=r + 1), positions)
    return e.finish(e.transpose(total.astype(theta.type), [0, *range(2, r + 2), 1]), grid)


def input_of(e: Expressions, value: Value, made: int | None = None) -> Tensor:
    """A grid or theta in the type that coordinates are computed in; a constant, where it is small.

    ``made`` is the number of coordinates that are computed from it, by default as many as it has.
    """
    compute = e.runtime.coordinates or spec.TYPES[value.type].compute or value.type
    if value.constant is not None:
        made = value.constant.size if made is None else made
        if made * value.constant.itemsize <= FOLDED:
            return e.constant(value.constant.astype(compute), compute)
    return e.input(value.name, value.type).astype(compute)


def _required_size(
    e: Expressions, theta: Value, rows: Tensor, theta_shape: Shape | None, size: Value, sizes: Tensor, r: int
) -> tuple[int, list[Tensor]]:
    """The number of batches in a Reshape of theta, and zeros of nodes that fail where theta and size do not fit.

    ``rows`` and ``sizes`` are the tensors of ``theta`` and ``size``.
    """
    dims = e.dims(rows, theta_shape or (None,) * 3, unranked_argument("theta", theta))
    if size.constant is not None:
        n = int(size.constant[0])
        if n > 0 and dims[1:] == [r, r + 1]:
            return n, []  # a Reshape to known lengths fails by itself
        zeros = [e.require_equal(dims, [n, r, r + 1], "size_must_fit_theta")]
    else:
        count = e.dims(sizes, size.shape or (None,), unranked_argument("size", size))
        fitting: list[Dim] = [e.gather(sizes, [0]), r, r + 1, r + 2]
        zeros = [e.require_equal([*dims, *count], fitting, "size_must_fit_theta")]
        is_negative = e.less(sizes, 0).astype("int64")
        zeros.append(e.require_zeros(is_negative, r + 2, "size_must_not_be_negative"))
    return -1, [zero for zero in zeros if zero is not None]


def unranked_argument(argument: str, value: Value) -> str:
    """``argument`` if the rank of its ``value`` is not known, else nothing."""
    return argument if value.shape is None and value.constant is None else ""


def required_batches(e: Expressions, X: Value, image: Tensor, n: Dim, last: Dim, r: int) -> list[Tensor]:
    """Zeros of nodes that fail where a grid of ``n`` batches does not fit X; none where all is known.

    ``image`` is the tensor of ``X``, and ``last`` is the length of the last axis of grid.
    """
    batches = e.dims(image, [_batches_of(X)])
    zeros = [
        e.require_equal([n], batches, "grid_must_have_the_batches_of_X"),
        e.require_equal([last], [r], f"grid_must_have_{r}_coordinates"),
    ]
    return [zero for zero in zeros if zero is not None]


def _batches_of(X: Value) -> int | str | None:
    """The number of batches of ``X`` itself, as far as it is known."""
    return X.shape[0] if X.shape else None


def _pixel_coordinates(e: Expressions, g: Tensor, axis: Axis, mode: Mode, padding: Padding, compute: str) -> Tensor:
    """The pixel coordinates of ``g``, to the bit as in the type ``compute``, whatever the type of ``g``."""
    if g.type == compute:
        return cast(Tensor, pixel_coordinates(e, g, axis, mode, padding))
    # Infinity must not reach the rounding to float32, which makes NaN of it.
    padding = replace(padding, bounds=False)
    with e.rounding_to_float32():
        return cast(Tensor, pixel_coordinates(e, g, axis, mode, padding))


def may_be_single(lengths: Sequence[Dim]) -> bool:
    """Whether an axis of these ``lengths`` may have one pixel."""
    return not all(isinstance(length, int) and length > 1 for length in lengths)


def _surrounded(e: Expressions, rows: Tensor, dims: list[Dim]) -> Tensor:
    """The rows (N, S, C) in the shape ``dims``, (N, D1, …, Dr, C), with zeros before and after each spatial axis."""
    n, *outer, inner, c = dims
    if rows.type in PADDED and isinstance(c, int):  # the last two axes as one
        return e.pad(e.reshape(rows, [n, *outer, e.product([inner, c])]), [0, *[1] * len(outer), c])
    rows = e.reshape(rows, dims)
    if rows.type in PADDED:
        return e.pad(rows, [0, *[1] * (len(dims) - 2), 0])
    for axis in range(1, len(dims) - 1):
        zeros = e.zeros([*dims[:axis], 1, *dims[axis + 1 :]], rows.type)
        dims = [*dims[:axis], dims[axis] + 2, *dims[axis + 1 :]]
        rows = e.concatenate([zeros, rows, zeros], axis)
    return rows


class _Sampler:
    """The taps of all P output positions of all N batches.

    Tensors of the spatial axes list these first, innermost first. The combinations of all axes' taps are computed in
    groups, one for each gather. There are ``around`` zeros before and after the pixels of each axis, or with
    ``zeros_first`` a row of zeros before all others.
    """

    def __init__(
        self, e: Expressions, mode: Mode, dims: Sequence[Dim], out: list[Dim], around: int, zeros_first: bool
    ) -> None:
        n, c, *lengths = dims
        self.e, self.mode, self.n, self.lengths, self.out = e, mode, n, lengths, out
        self.around, self.zeros_first, self.r, self.t = around, zeros_first, len(lengths), mode.taps
        self.positions = e.product([n, *out])  # N·P
        self.padded = [length + 2 * around for length in lengths]  # D1, …, Dr with the zeros around them
        self.few = isinstance(c, int) and c <= FEW_CHANNELS  # then values (…, N·P, C) are weighed as (…, C, N·P)
        # Whether the runtime follows shapes that are computed from lengths known only when it runs.
        self.follows_lengths = "lengths" not in e.runtime.without
        # IREE gathers by no index with an axis of 1, for the taps, before an unknown one.
        self.is_flat = self.t == 1 and not self.follows_lengths
        # The number of outer axes of which each combination of taps is a group, and of the taps in a group.
        self.one_by_one = max(i for i in range(self.r + 1) if self.t**i <= e.runtime.gathers)
        self.together = int(self.t ** (self.r - self.one_by_one))
        # The type of row numbers: int32 where that is known to do, as it is faster.
        total = e.product([n, *self.padded])
        known = isinstance(total, int) and total < 2**31
        self.index_type = "int32" if known or "int64" in e.runtime.without else "int64"

    def index(self, position: Tensor, axis: Axis) -> list[Tensor]:
        """Of each group the rows to read, (together, N·P) or flat, for the taps' positions (axes, taps, N·P)."""
        e, r, t, pixel = self.e, self.r, self.t, position
        if self.around or self.zeros_first:
            pixel = e.minimum(e.maximum(position, 0), axis.length + 1 if self.around else axis.last)
        elif t > 1 and not self.mode.pads_taps:
            pixel = e.minimum(position, axis.last)  # the coordinate is inside, the pixel after it need not be
        index = pixel.astype(self.index_type)
        if self.is_flat:
            return [self._flat(index)]
        if r > 1:
            index = index * e.reshape(self._strides(range(r, 0, -1)), [r, 1, 1])
        *inner, outer = e.split(index, r, 1, axis=0)
        if self.n != 1:
            outer = e.reshape(outer, [t, self.n, e.product(self.out)]) + self._first_rows()
            if not self.follows_lengths:
                outer = e.reshape(outer, [t, self.positions])
        if self.zeros_first:
            is_inside = e.split(e.equal(position, pixel).astype(index.type), r, 1, axis=0)
            factors = self._groups(is_inside[::-1], Tensor.__mul__, [self.positions])
            rows = self._groups([outer + 1, *reversed(inner)], Tensor.__add__, [self.positions])
            indices = [row * factor for row, factor in zip(rows, factors, strict=True)]
        else:
            indices = self._groups([outer, *reversed(inner)], Tensor.__add__, [self.positions])
        return [
            each.astype("int32") if each.constant is not None and each.constant.max() < 2**31 else each  # half the size
            for each in indices
        ]

    def weight(self, weight: Tensor) -> list[Tensor]:
        """Of each group the weights, (together, N·P, 1), or (together, 1, N·P) for few channels; of each axis' taps."""
        axes = self.e.split(weight, self.r, 1, axis=0)[::-1]
        return self._groups(axes, Tensor.__mul__, [1, self.positions] if self.few else [self.positions, 1])

    def values(self, rows: Tensor, index: Tensor) -> Tensor:
        """The rows at these indices: (…, N·P, C), or (…, C, N·P) for few channels."""
        e, swapped = self.e, (1, 0) if self.is_flat else (0, 2, 1)
        if rows.type == "str":  # of a row of strings, ONNX Runtime up to 1.32 gathers only the first
            by_channel = e.gather(e.transpose(rows, (1, 0)), index, axis=1)
            found = e.transpose(by_channel, (1, 0) if self.is_flat else (1, 2, 0))
        else:
            found = e.gather(rows, index)
        return e.transpose(found, swapped) if self.few else found

    def sum(self, rows: Tensor, index: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        """The weighted sum of the rows; of integers the first tap plus the weighted differences from it."""
        e, is_integer = self.e, rows.dtype.kind in "iu"
        converted = rows.astype(weights[0].type)
        values = [self.values(converted, each) for each in index]
        first, origin = index[0], values[0]
        if is_integer:
            if self.together > 1:
                first, origin = e.gather(first, [0]), e.gather(origin, [0])
            values = [value - origin for value in values]
        terms = [value * weight for value, weight in zip(values, weights, strict=True)]
        total = reduce(Tensor.__add__, [e.sum(term) for term in terms] if self.together > 1 else terms)
        if not is_integer:
            return total
        return to_integers(e, origin, total, rows.type, lambda: self.values(rows, first).astype("int64"))

    def _numbers(self, dims: Sequence[Dim]) -> Tensor:
        """Lengths as one tensor of the indices' type; of the type of a shape tract cannot multiply an index by it."""
        return self.e.shape(dims).astype("float64").astype(self.index_type)

    def _strides(self, first: Sequence[int]) -> Tensor:
        """The number of rows of the axes from each of ``first`` on."""
        if self.follows_lengths:
            return self._numbers([self.e.product(self.padded[i:]) for i in first])
        rows = [(d if isinstance(d, int) else self._numbers([d])) + 2 * self.around for d in self.lengths]
        totals = [self.e.product(rows[i:]) for i in first]
        return self.e.concatenate([self._numbers([d]) if isinstance(d, int) else d for d in totals])

    def _first_rows(self) -> Tensor:
        """The first row of each batch, (N, 1)."""
        e = self.e
        if not self.follows_lengths and isinstance(self.n, Tensor):
            each = e.expand(e.reshape(self._strides([0]), [1, 1]), [self.n, 1])
            return e.op("CumSum", each, e.constant(0), exclusive=1)
        numbers = e.op("Range", 0, e.gather(e.shape([self.n]), 0), 1).astype(self.index_type)
        return e.reshape(numbers * self._strides([0]), [-1, 1])

    def _flat(self, index: Tensor) -> Tensor:
        """The rows to read, (N·P,), for an ``index`` (axes, 1, N·P): IREE splits none like that."""
        e, r = self.e, self.r
        index = e.reshape(index, [r, self.positions])
        if r > 1:
            index = index * e.reshape(self._strides(range(r, 0, -1)), [r, 1])
        parts = [e.reshape(each, [-1]) for each in e.split(index, r, 1, axis=0)]
        if self.n != 1:
            first_rows = e.reshape(self._first_rows(), [self.n, *[1] * r])
            parts.append(e.reshape(e.expand(first_rows, [self.n, *self.out]), [-1]))
        return reduce(Tensor.__add__, parts)

    def _groups(self, axes: Sequence[Tensor], combine: Callable[..., Tensor], tail: list[Dim]) -> list[Tensor]:
        """All combinations of the taps (1, taps, N·P) of ``axes``, outermost first: groups (together, *tail)."""
        e, t = self.e, self.t

        def combined(axes: Sequence[Tensor]) -> Tensor:
            total, number = axes[0], t
            for along in axes[1:]:
                total = combine(e.reshape(total, [number, 1, self.positions]), along)
                number *= t
            return e.reshape(total, [number, *tail])

        def groups(axes: Sequence[Tensor], outer: int) -> list[Tensor]:
            number, together = t**outer, t ** (len(axes) - outer)
            if number <= e.runtime.parts or outer <= 1:
                return e.split(combined(axes), number, together, axis=0)
            inner = combined(axes[outer - 1 :])
            rows = (combine(row, inner) for row in groups(axes[: outer - 1], outer - 1))
            return [group for row in rows for group in e.split(row, t, together, axis=0)]

        return groups(axes, self.one_by_one)


def check_opset(e: Expressions, first: int) -> None:
    if e.opset < first:
        raise GridSampleError(e.prefix, "opset", str(e.opset), f"{first} or newer to be lowered to primitives")


def check_grid_sample(name: str, X: Value, grid: Value, mode: str, padding_mode: str) -> tuple[Shape, Shape]:
    """The shapes, as far as they are known from each other, checked as far as they are known."""
    allowed = [t.name for t in spec.TYPES.values() if not t.name.startswith("complex")]
    _check_type(name, "X", X, allowed)
    _check_type(name, "grid", grid, spec.FLOATS)
    validation.check_mode_and_padding(name, mode, padding_mode, X.type)
    known = grid.shape if grid.constant is None else grid.constant.shape
    if X.shape is None and known is None:
        raise GridSampleError(name, "X", "of unknown rank", "a known rank to be lowered to primitives")
    X_shape = X.shape if X.shape is not None else (None,) * len(known or ())
    grid_shape = known if known is not None else (None,) * len(X_shape)
    n = next((dim for dim in (*X_shape[:1], *grid_shape[:1]) if isinstance(dim, int)), None)
    validation.check_grid_sample_shapes(name, X_shape, grid_shape, padding_mode)
    if 0 in X_shape[2:] and padding_mode != "zeros" and 0 not in (*X_shape[:2], *grid_shape[1:-1]):
        raise GridSampleError(name, "X", f"of shape {X_shape}", f"a pixel, which {padding_mode!r} padding needs")
    return (n, *X_shape[1:]), grid_shape


def _check_type(name: str, argument: str, value: Value, allowed: Sequence[str]) -> None:
    if value.type not in allowed:
        raise GridSampleError(name, argument, f"of type {value.type}", f"one of {', '.join(allowed)}")
