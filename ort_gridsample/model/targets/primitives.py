"""Lower GridSample and AffineGrid to basic standard operators, which every ONNX runtime has.

A lowered GridSample: X becomes rows, one a pixel, of all its channels; each tap becomes a row number and a weight; Y is
the weighted sum of the gathered rows. Where what lies outside X counts as 0, zeros around X stand for all that: nothing
is read there, not even an infinity to multiply by 0, and it takes no logic to tell inside from outside. Of a large X
that takes longer than the logic: then it is one row of zeros. The coordinates of all axes are computed together, as one
tensor (axes, taps, N·P) over P output positions, innermost axis first as in the grid. Rank, mode and padding are data.

Modes and paddings are the core's own tables, in :mod:`ort_gridsample.core.taps` and ``.coordinates``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx

from ... import checks, spec
from ...core import affine
from ...core.arrays import Array
from ...core.coordinates import PADDING, Axis, Padding, normalize
from ...core.sums import to_integers
from ...core.taps import MODES, Mode, axis_taps
from ...errors import GridSampleError
from .expressions import Dim, Expressions, Tensor
from .runtimes import ANY, Runtime

#: The oldest opset that the nodes are for: from it on, a Pad has inputs, and there is a Round.
FIRST_OPSET = 11

#: A constant grid of more bytes stays in the model as it is: its indices and weights take 5 (linear) to 17 (cubic)
#: times as many, and onnxruntime computes them once, when a session is made.
FOLDED = 1 << 20

#: What X is where a runtime need not have a Pad of it.
PADDED = ("float32", "float64")

#: Up to so many channels, what was gathered is turned around before it is weighed: operators on tensors whose last axis
#: is short are slow, in ONNX Runtime by a factor of 2 for 3 channels.
FEW_CHANNELS = 8

#: So many values X has at least, and so many channels a tap, where it is slower to put zeros around it than to tell
#: inside from outside: a Pad in ONNX Runtime writes all of its output twice.
LARGE, CHANNELS_PER_TAP = 1 << 17, 32

Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Value:
    """What is known of a value in a model.

    Attributes:
        name: its name.
        type: its element type, a name in :data:`ort_gridsample.spec.TYPES`.
        shape: of each axis the length, or anything but an int where it is not known; None where not even the rank is.
        constant: the value itself, where it is constant.
    """

    name: str
    type: str
    shape: Shape | None
    constant: Array | None = None


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
    """Nodes that compute GridSample with basic standard operators only.

    Args:
        name: the node's name; the names of all nodes and of the values between them begin with it and a slash.
        X: (N, C, D1, …, Dr), r ≥ 1. What is known of its shape is folded; ``X.constant`` is not looked at.
        grid: (N, D1_out, …, Dr_out, r). A constant one of at most :data:`FOLDED` bytes becomes constant indices and
            weights.
        Y: the name of the output.
        mode: the attribute, or its synonym.
        padding_mode: the attribute.
        align_corners: the attribute.
        opset: the version of the ONNX domain that the nodes are for, 11 or newer.
        runtime: what the nodes are for.

    Raises:
        GridSampleError: the operator is not defined for these, the rank is not known, or the opset is too old.

    Source: ONNX GridSample-22.
    """
    mode = spec.mode_of(mode)
    check_opset(name, opset, FIRST_OPSET)
    X_shape, grid_shape = check_grid_sample(name, X, grid, mode, padding_mode)
    padding = PADDING[padding_mode]
    e = Expressions(name, opset, runtime)
    image, coordinates = e.input(X.name, X.type), input_of(e, grid, 0 if grid.constant is None else grid.constant.size)
    if X.type == "bfloat16":
        image = image.astype("float32")  # few runtimes can do more with it
    batches, c, *lengths = e.dims(image, X_shape)
    n, *out, _ = e.dims(coordinates, grid_shape)
    if 0 in (n, c, *out, *lengths):  # no output, or no pixel but zeros
        return e.finish(zeros_of(e, [n, c, *out], image.type).astype(X.type), Y)

    how = _copy if mode == "nearest" else _integer if X.type.lstrip("u").startswith("int") else _floating
    if how is _floating:
        image = image.astype(str(spec.TYPES[X.type].compute))
    # Not more axes than it takes: not every runtime has kernels for many.
    rows = e.transpose(e.reshape(image, [batches, c, e.product(lengths)]), (0, 2, 1))
    zeros_first = padding.zero_outside and _is_large(batches, c, lengths, MODES[mode], runtime)
    around = int(padding.zero_outside and not zeros_first)
    if around:
        rows = _surrounded(e, rows, batches, lengths, c)
    compute = str(spec.TYPES[grid.type].compute)
    axes = _Axes(e, n, lengths, out, around, zeros_first, bool(align_corners), compute)
    rows = e.reshape(rows, [e.product([batches, *axes.rows]), c])
    if zeros_first:
        rows = e.concatenate([zeros_of(e, [1, c], rows.type), rows])
    if "lengths" in runtime.without:  # IREE takes the 1 for N
        g = e.transpose(e.reshape(coordinates, [axes.positions, len(out)]), (1, 0))
        g = e.reshape(g, [len(out), 1, axes.positions])
    else:
        g = e.transpose(e.reshape(coordinates, [1, axes.positions, len(out)]), (2, 0, 1))
    few = isinstance(c, int) and c <= FEW_CHANNELS
    taps = _taps(axes, g, MODES[mode], padding, spec.TYPES[X.type].compute, few)
    total = how(e, rows, taps).astype(X.type)
    if few:
        total = e.transpose(e.reshape(total, [c, n, e.product(out)]), (1, 0, 2)) if n != 1 else total
    else:
        total = e.transpose(e.reshape(total, [n, e.product(out), c]), (0, 2, 1))
    return e.finish(e.reshape(total, [n, c, *out]), Y)


def lower_affine_grid(
    name: str, theta: Value, size: Value, grid: str, *, align_corners: bool, opset: int, runtime: Runtime = ANY
) -> list[onnx.NodeProto]:
    """Nodes that compute AffineGrid with basic standard operators only.

    Args:
        name: the node's name; the names of all nodes and of the values between them begin with it and a slash.
        theta: (N, r, r + 1).
        size: (r + 2,), int64. A constant one becomes constant positions of the output's pixels.
        grid: the name of the output.
        align_corners: the attribute.
        opset: the version of the ONNX domain that the nodes are for, 11 or newer.
        runtime: what the nodes are for.

    Raises:
        GridSampleError: the operator is not defined for these, the rank is not known, or the opset is too old.

    Source: ONNX AffineGrid-20. On an axis of one pixel with ``align_corners`` the position is 0, as in PyTorch.
    """
    check_opset(name, opset, FIRST_OPSET)
    r = _check_affine_grid(name, theta, size)
    e = Expressions(name, opset, runtime)
    made = 0 if size.constant is None else r * prod(np.delete(size.constant, 1).tolist())
    transform = input_of(e, theta, made)
    # (N, r, 1, …, 1) each: what multiplies the innermost axis first, the shift last.
    columns = e.split(e.reshape(transform, [-1, r, *[1] * (r - 1), r + 1]), r + 1, 1, axis=r + 1)
    sizes = e.input(size.name, size.type) if size.constant is None else e.constant(size.constant)
    positions = []
    for i in range(r):
        length = e.gather(sizes, 2 + i)
        axis = Axis.of(length.astype(transform.type), align_corners, True, e.maximum)
        pixels = e.op("Range", 0, length, 1).astype(transform.type)
        positions.append(e.reshape(normalize(pixels, axis.last, axis.span), [-1, *[1] * (r - 1 - i)]))
    total = affine.transform(columns, positions).astype(theta.type)
    return e.finish(e.transpose(total, [0, *range(2, r + 2), 1]), grid)


@dataclass(frozen=True)
class _Axes:
    """The spatial axes of X, all in one: a tensor of theirs has them first, innermost first.

    Attributes:
        e: where the nodes go.
        n: the batch.
        lengths: D1, …, Dr.
        out: D1_out, …, Dr_out.
        around: how many zeros there are before and after the pixels of each axis.
        zeros_first: whether there is a row of zeros before all others.
        align_corners: the operator's attribute.
        type: the type of the coordinates.
    """

    e: Expressions
    n: Dim
    lengths: list[Dim]
    out: list[Dim]
    around: int
    zeros_first: bool
    align_corners: bool
    type: str

    def each(self, dims: Sequence[Dim]) -> Tensor:
        """One number an axis, given outermost first, as a tensor (axes, 1, 1)."""
        return self.e.reshape(self.e.shape(dims[::-1]), [len(dims), 1, 1])

    def numbers(self, dims: Sequence[Dim]) -> Tensor:
        """These as one tensor that can be calculated with; as a shape is, tract cannot multiply an index by it."""
        return self.e.shape(dims).astype("float64").astype(self.index_type)

    def products(self, first: Sequence[int]) -> Tensor:
        """How many pixels the axes from each of these on have, with the zeros around them."""
        if "lengths" not in self.e.runtime.without:
            return self.numbers([self.e.product(self.rows[i:]) for i in first])
        rows = [(d if isinstance(d, int) else self.numbers([d])) + 2 * self.around for d in self.lengths]
        totals = [self.e.product(rows[i:]) for i in first]
        return self.e.concatenate([self.numbers([d]) if isinstance(d, int) else d for d in totals])

    def starts(self, type: str) -> Tensor:
        """The first row of each image, (N, 1)."""
        e = self.e
        if "lengths" in e.runtime.without and isinstance(self.n, Tensor):
            each = e.expand(e.reshape(self.products([0]), [1, 1]), [self.n, 1])
            return e.op("CumSum", each, e.constant(0), type=each.type, exclusive=1)
        numbers = e.op("Range", 0, e.gather(e.length(self.n), 0), 1).astype(type)
        return e.reshape(numbers * self.products([0]), [-1, 1])

    @property
    def axis(self) -> Axis:
        """All axes as one, of tensors (axes, 1, 1)."""
        length = self.each(self.lengths).astype(self.type)
        may_be_single = not all(isinstance(length, int) and length > 1 for length in self.lengths)
        return Axis.of(length, self.align_corners, may_be_single, self.e.maximum)

    @property
    def rows(self) -> list[Dim]:
        """D1, …, Dr with the zeros around them."""
        return [length + 2 * self.around for length in self.lengths]

    @property
    def positions(self) -> Dim:
        """N·P."""
        return self.e.product([self.n, *self.out])

    @property
    def index_type(self) -> str:
        """The type that numbers all rows: the smaller one, where that is known to do, as it is faster."""
        total = self.e.product([self.n, *self.rows])
        known = isinstance(total, int) and total < 2**31
        return "int32" if known or "int64" in self.e.runtime.without else "int64"


def zeros_of(e: Expressions, dims: Sequence[Dim], type: str) -> Tensor:
    """A tensor of zeros, or of empty strings."""
    return e.expand(e.constant(np.full([1] * len(dims), "" if type == "str" else 0), type), dims)


def _is_large(n: Dim, c: Dim, lengths: Sequence[Dim], mode: Mode, runtime: Runtime) -> bool:
    """Whether X is known to be so large that to put zeros around it takes longer than to tell inside from outside."""
    dims = [dim for dim in (n, c, *lengths) if isinstance(dim, int)]
    if not isinstance(c, int) or len(dims) < 2 + len(lengths) or runtime != ANY:
        return False
    return prod(dims) >= LARGE and c >= CHANNELS_PER_TAP * mode.taps ** len(lengths)


def _surrounded(e: Expressions, rows: Tensor, n: Dim, lengths: Sequence[Dim], c: Dim) -> Tensor:
    """The rows (N, S, C) as (N, D1, …, Dr, C) or with the last two in one, zeros before and after each spatial axis."""
    if rows.type in PADDED:
        if isinstance(c, int):
            return e.pad(
                e.reshape(rows, [n, *lengths[:-1], e.product([lengths[-1], c])]), [0, *[1] * (len(lengths) - 1), c]
            )
        return e.pad(e.reshape(rows, [n, *lengths, c]), [0, *[1] * len(lengths), 0])
    dims = [n, *lengths, c]
    rows = e.reshape(rows, dims)
    for axis in range(1, len(dims) - 1):
        dims[axis] = 1
        zeros = zeros_of(e, dims, rows.type)
        dims[axis] = lengths[axis - 1] + 2
        rows = e.concatenate([zeros, rows, zeros], axis)
    return rows


@dataclass(frozen=True)
class _Taps:
    """The taps of all axes combined, in groups of ``together`` for one gather each.

    Attributes:
        index: of each group the rows to read, (together, N·P), or (N·P,) if ``flat``.
        weight: of each group the weights, (together, N·P, 1), or (together, 1, N·P) for few channels.
        together: the number of taps in a group.
        few: whether X has few channels.
        flat: whether there is one tap alone, and its index has no axis for it.
    """

    index: list[Tensor]
    weight: list[Tensor]
    together: int
    few: bool
    flat: bool = False

    def values(self, e: Expressions, rows: Tensor, index: Tensor) -> Tensor:
        """The rows at these indices: (…, N·P, C), or (…, C, N·P) for few channels."""
        if rows.type == "str":  # of a row of strings, ONNX Runtime up to 1.32 gathers only the first
            by_channel = e.gather(e.transpose(rows, (1, 0)), index, axis=1)
            found = e.transpose(by_channel, (1, 0) if self.flat else (1, 2, 0))
        else:
            found = e.gather(rows, index)
        return e.transpose(found, (1, 0) if self.flat else (0, 2, 1)) if self.few else found


def _taps(axes: _Axes, g: Tensor, mode: Mode, padding: Padding, compute: str | None, few: bool) -> _Taps:
    """The taps of the normalized coordinates ``g`` (axes, 1, N·P), with weights of type ``compute``."""
    e, r, t, axis = axes.e, len(axes.lengths), mode.taps, axes.axis
    position, weights = axis_taps(e, g.astype(axes.type), axis, mode, padding, compute, axes.around)
    pixel = position
    if axes.around:
        pixel = e.minimum(e.maximum(position, 0), axis.length + 1)
    elif axes.zeros_first:
        pixel = e.minimum(e.maximum(position, 0), axis.last)
    elif t > 1 and not mode.pads_taps:
        pixel = e.minimum(position, axis.last)  # the coordinate is inside, the pixel after it need not be

    index = pixel.astype(axes.index_type)
    if t == 1 and "lengths" in e.runtime.without:
        return _Taps([_flat(axes, index)], [], 1, few, flat=True)
    if r > 1:
        index = index * e.reshape(axes.products(range(r, 0, -1)), [r, 1, 1])
    *inner, outer = e.split(index, r, 1, axis=0)
    if axes.n != 1:
        outer = e.reshape(outer, [t, axes.n, e.product(axes.out)]) + axes.starts(index.type)
        if "lengths" in e.runtime.without:
            outer = e.reshape(outer, [t, axes.positions])
    one_by_one = max(i for i in range(r + 1) if t**i <= e.runtime.gathers)
    combined = _Combined(e, t, Tensor.__add__, axes.positions, [axes.positions])
    if axes.zeros_first:
        inside = e.split(e.equal(position, pixel).astype(index.type), r, 1, axis=0)
        both = _Combined(e, t, Tensor.__mul__, axes.positions, [axes.positions]).groups(inside[::-1], one_by_one)
        rows = combined.groups([outer + 1, *reversed(inner)], one_by_one)
        indices = [row * each for row, each in zip(rows, both, strict=True)]
    else:
        indices = combined.groups([outer, *reversed(inner)], one_by_one)
    indices = [
        each.astype("int32") if each.constant is not None and each.constant.max() < 2**31 else each  # half the size
        for each in indices
    ]
    if weights is None:
        return _Taps(indices, [], t ** (r - one_by_one), few)

    *inner, outer = e.split(weights, r, 1, axis=0)
    combined = _Combined(e, t, Tensor.__mul__, axes.positions, [1, axes.positions] if few else [axes.positions, 1])
    return _Taps(indices, combined.groups([outer, *reversed(inner)], one_by_one), t ** (r - one_by_one), few)


def _flat(axes: _Axes, index: Tensor) -> Tensor:
    """The rows to read, (N·P,), of one tap an axis, ``index`` (axes, 1, N·P).

    IREE splits nothing with an axis of 1 before an unknown one, and gathers by nothing like that.
    """
    e, r = axes.e, len(axes.lengths)
    index = e.reshape(index, [r, axes.positions])
    if r > 1:
        index = index * e.reshape(axes.products(range(r, 0, -1)), [r, 1])
    total, *others = (e.reshape(each, [-1]) for each in e.split(index, r, 1, axis=0))
    if axes.n != 1:
        starts = e.reshape(axes.starts(index.type), [axes.n, *[1] * r])
        others.append(e.reshape(e.expand(starts, [axes.n, *axes.out]), [-1]))
    for each in others:
        total = total + each
    return total


@dataclass(frozen=True)
class _Combined:
    """Combinations of the taps of axes, each of which is a tensor of taps times N·P.

    Attributes:
        e: where the nodes go.
        taps: of an axis.
        combine: what makes one of two.
        positions: N·P.
        tail: the shape that N·P have in the end.
    """

    e: Expressions
    taps: int
    combine: Callable[[Tensor, Tensor], Tensor]
    positions: Dim
    tail: list[Dim]

    def groups(self, axes: Sequence[Tensor], outer: int) -> list[Tensor]:
        """All combinations, the outermost axis first: for each of so many ``outer`` axes one (combinations, *tail)."""
        number, together = self.taps**outer, self.taps ** (len(axes) - outer)
        if number <= self.e.runtime.parts or outer <= 1:
            return self.e.split(self._all(axes), number, together, axis=0)
        inner = self._all(axes[outer - 1 :])
        rows = (self.combine(row, inner) for row in self.groups(axes[: outer - 1], outer - 1))
        return [group for row in rows for group in self.e.split(row, self.taps, together, axis=0)]

    def _all(self, axes: Sequence[Tensor]) -> Tensor:
        """The combinations in one tensor."""
        total, number = axes[0], self.taps
        for along in axes[1:]:
            total = self.combine(self.e.reshape(total, [number, 1, self.positions]), along)
            number *= self.taps
        return self.e.reshape(total, [number, *self.tail])


def _copy(e: Expressions, rows: Tensor, taps: _Taps) -> Tensor:
    """Nearest: the one tap's values."""
    return taps.values(e, rows, taps.index[0])


def _floating(e: Expressions, rows: Tensor, taps: _Taps) -> Tensor:
    """The weighted sum of the rows; bool counts as 0 and 1."""
    return _weighted_sum(e, [taps.values(e, rows, index) for index in taps.index], taps)


def _integer(e: Expressions, rows: Tensor, taps: _Taps) -> Tensor:
    """The first tap plus the weighted differences from it, truncated toward zero and saturated.

    Weights add up to 1, so where all taps are equal this is exact.
    """
    converted = rows.astype(taps.weight[0].type)
    values = [taps.values(e, converted, index) for index in taps.index]
    origin = values[0] if taps.together == 1 else e.gather(values[0], [0])
    difference = _weighted_sum(e, [value - origin for value in values], taps)

    def exact() -> Tensor:
        first = taps.index[0] if taps.together == 1 else e.gather(taps.index[0], [0])
        return taps.values(e, rows, first).astype("int64")

    return to_integers(e, origin, difference, rows.type, exact)


def _weighted_sum(e: Expressions, values: Sequence[Tensor], taps: _Taps) -> Tensor:
    terms = [value * weight for value, weight in zip(values, taps.weight, strict=True)]
    if taps.together > 1:
        terms = [e.sum(term) for term in terms]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def input_of(e: Expressions, value: Value, made: int) -> Tensor:
    """A floating-point value in the type that coordinates are computed in, of which so many are made of it."""
    compute = spec.TYPES[value.type].compute or value.type
    if value.constant is not None and made * value.constant.itemsize <= FOLDED:
        return e.constant(value.constant.astype(compute), compute)
    return e.input(value.name, value.type).astype(compute)


def check_opset(name: str, opset: int, first: int) -> None:
    if opset < first:
        raise GridSampleError(name, "opset", str(opset), f"{first} or newer to be lowered to primitives")


def check_grid_sample(name: str, X: Value, grid: Value, mode: str, padding_mode: str) -> tuple[Shape, Shape]:
    """The shapes, as far as they are known from each other, checked as far as they are known."""
    allowed = [t.name for t in spec.TYPES.values() if not t.name.startswith("complex")]
    _check_type(name, "X", X, allowed)
    _check_type(name, "grid", grid, spec.FLOATS)
    checks.mode_and_padding(name, mode, padding_mode, X.type)
    known = grid.shape if grid.constant is None else grid.constant.shape
    if X.shape is None and known is None:
        raise GridSampleError(name, "X", "of unknown rank", "a known rank to be lowered to primitives")
    X_shape = X.shape if X.shape is not None else (None,) * len(known or ())
    grid_shape = known if known is not None else (None,) * len(X_shape)
    n = next((dim for dim in (*X_shape[:1], *grid_shape[:1]) if isinstance(dim, int)), None)
    checks.grid_sample_shapes(name, X_shape, grid_shape, padding_mode)
    if 0 in X_shape[2:] and padding_mode != "zeros" and 0 not in (*X_shape[:2], *grid_shape[1:-1]):
        raise GridSampleError(name, "X", f"of shape {X_shape}", f"a pixel, which {padding_mode!r} padding needs")
    return (n, *X_shape[1:]), grid_shape


def _check_affine_grid(name: str, theta: Value, size: Value) -> int:
    """The number of spatial axes, from whichever shape knows it."""
    _check_type(name, "theta", theta, spec.FLOATS)
    _check_type(name, "size", size, ("int64",))
    theta_shape = theta.shape if theta.constant is None else theta.constant.shape
    size_shape = size.shape if size.constant is None else size.constant.shape
    known = []
    if theta_shape is not None and len(theta_shape) == 3:
        known += [theta_shape[1], theta_shape[2] - 1 if isinstance(theta_shape[2], int) else None]
    if size_shape is not None and len(size_shape) == 1:
        known.append(size_shape[0] - 2 if isinstance(size_shape[0], int) else None)
    ranks = {r for r in known if isinstance(r, int)}
    if len(ranks) != 1 or not ranks <= {2, 3}:
        found = f"of shape {theta_shape} for a size of shape {size_shape}"
        raise GridSampleError(name, "theta", found, "(N, 2, 3) for a size (4,), or (N, 3, 4) for a size (5,)")
    return ranks.pop()


def _check_type(name: str, argument: str, value: Value, allowed: Sequence[str]) -> None:
    if value.type not in allowed:
        raise GridSampleError(name, argument, f"of type {value.type}", f"one of {', '.join(allowed)}")
