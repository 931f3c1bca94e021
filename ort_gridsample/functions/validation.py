"""Checks of the inputs of one call. Every error names the argument, what was found and what was expected."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .. import settings, spec
from ..errors import GridSampleError
from ..reference import memory
from ..reference.arrays import Array
from ..reference.coordinates import PADDING
from ..reference.plan import type_name
from ..reference.taps import MODES


def listed(names: Iterable[object]) -> str:
    """``'a', 'b' or 'c'``."""
    *most, last = [repr(name) for name in names]
    return f"{', '.join(most)} or {last}" if most else last


def mode_and_padding(where: str, mode: str, padding_mode: str, X_type: str) -> None:
    """Check the two attributes, and that the mode is defined for an X of type ``X_type``."""
    if spec.mode_of(mode) not in MODES:
        raise NO_MODE.error(where, value=repr(mode), listed=listed((*MODES, *spec.MODE_SYNONYMS)))
    if padding_mode not in [*PADDING]:  # it need not be hashable
        raise NO_PADDING.error(where, value=repr(padding_mode), listed=listed(PADDING))
    if spec.TYPES[X_type].compute is None and spec.mode_of(mode) != "nearest":
        raise GridSampleError(where, "mode", repr(mode), f"'nearest', the only mode that is defined for {X_type} X")


def element_type(where: str, argument: str, dtype: np.dtype[np.generic], allowed: Collection[str]) -> str:
    """The name of ``dtype`` in :data:`ort_gridsample.spec.TYPES`, checked to be among ``allowed``."""
    name = type_name(dtype)
    if name not in allowed:
        raise GridSampleError(where, argument, f"of type {dtype}", f"one of {', '.join(allowed)}")
    return name


def num_threads(where: str, found: object) -> None:
    """Check that ``found`` is a number of threads, or None."""
    if found is not None and not settings.is_number(found):
        raise GridSampleError(where, "num_threads", repr(found), f"{settings.A_NUMBER}, or None")


#: A dimension; in a model it may be a name or unknown (None), and then agrees with every other.
Dim = int | str | None


@dataclass(frozen=True)
class Sentence:
    """The text of an error about one argument, with fields in braces for :meth:`str.format`."""

    argument: str
    found: str
    expected: str

    def error(self, where: str, **quoted: object) -> GridSampleError:
        """The error at ``where``, with the fields ``quoted``."""
        return GridSampleError(where, self.argument, self.found.format(**quoted), self.expected.format(**quoted))


NO_MODE, NO_PADDING = (Sentence(attribute, "{value}", "{listed}") for attribute in ("mode", "padding_mode"))
X_HAS_NO_AXES = Sentence("X", "of shape {X}", "shape (N, C, D1, …, Dr) with at least one spatial axis")
GRID_ALONE = Sentence("grid", "of shape {grid}", "shape (N, D1_out, …, Dr_out, r)")
GRID_AXES = Sentence("grid", "of shape {grid}", "shape (N, {outputs}, {r}), as X of shape {X} has {r} spatial ax{is}")
GRID_BATCHES = Sentence("grid", "of shape {grid}", "N = {N} first, as X is of shape {X}")
X_HAS_NO_PIXEL = Sentence(
    "X", "of shape {X}", "no spatial axis of length 0, as padding_mode {padding_mode!r} needs a pixel"
)
THETA = Sentence("theta", "of shape {theta}", "shape (N, 2, 3) or (N, 3, 4)")
SIZE_IS_NO_ROW = Sentence("size", "of type {type} and shape {size}", "a row of integers")
SIZE_AXES = Sentence("size", "{size}", "{axes}, as theta is of shape {theta}")
SIZE_NEGATIVE = Sentence("size", "{size}", "{axes}, nothing negative, as theta is of shape {theta}")
SIZE_BATCHES = Sentence("size", "{size}", "N = {N} first, as theta is of shape {theta}")

VALUE_AXES = Sentence("value", "of shape {value_shape}", "shape (B, S, H, D)")
LEVELS = Sentence("spatial_shapes", "of shape {spatial_shapes}", "shape (L, r), with at least one spatial axis")
LEVELS_NEGATIVE = Sentence("spatial_shapes", "with a negative length", "nothing negative")
LEVELS_PIXELS = Sentence(
    "spatial_shapes", "with {pixels} pixels",
    "those of value, of shape (B, S, H, D) = {value_shape}, in all levels together",
)  # fmt: skip
LOCATIONS = Sentence(
    "sampling_locations", "of shape {sampling_locations}",
    "shape (B, Q, H, L, P, r), as value (B, S, H, D) is of shape {value_shape} and L is {n_levels}",
)  # fmt: skip
ATTENTION_WEIGHTS = Sentence(
    "attention_weights", "of shape {attention_weights}",
    "all axes but the last of sampling_locations, which is of shape {sampling_locations}",
)  # fmt: skip

#: The axes of ``size`` by the number of spatial axes.
SIZE = {2: "(N, C, H, W)", 3: "(N, C, D, H, W)"}


def _differ(a: Dim, b: Dim) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != b


def alike(one: Sequence[Dim] | None, other: Sequence[Dim]) -> bool:
    """Whether two shapes may be the same: as long, if they are known, and nowhere of two different numbers."""
    return one is None or (len(one) == len(other) and not any(map(_differ, one, other)))


def shown(shape: Sequence[Dim]) -> str:
    """A shape as errors show it."""
    return f"({', '.join('?' if d is None else str(d) for d in shape)})"


def grid_sample_shapes(
    where: str, X: Sequence[Dim] | None, grid: Sequence[Dim] | None, padding_mode: object = "zeros"
) -> None:
    """Check the shapes of X and grid against each other, as far as they are known."""
    if X is not None and len(X) < 3:
        raise X_HAS_NO_AXES.error(where, X=shown(X))
    if grid is not None and (len(grid) < 3 or _differ(grid[-1], len(grid) - 2)) and X is None:
        raise GRID_ALONE.error(where, grid=shown(grid))
    if X is None or grid is None:
        return
    r = len(X) - 2
    if len(grid) != r + 2 or _differ(grid[-1], r):
        outputs = ", ".join(f"D{i + 1}_out" for i in range(r))
        quoted = {"X": shown(X), "grid": shown(grid), "is": "is" if r == 1 else "es"}
        raise GRID_AXES.error(where, **quoted, outputs=outputs, r=r)
    if _differ(grid[0], X[0]):
        raise GRID_BATCHES.error(where, X=shown(X), grid=shown(grid), N=X[0])
    Y = (*X[:2], *grid[1:-1])
    if 0 in X[2:] and padding_mode in ("border", "reflection") and all(isinstance(d, int) and d > 0 for d in Y):
        raise X_HAS_NO_PIXEL.error(where, X=shown(X), padding_mode=padding_mode)


def affine_grid_shapes(where: str, theta: Sequence[Dim] | None, size: Sequence[int] | None) -> None:
    """Check theta's shape and size against each other, as far as they are known."""
    if theta is None:
        if size is not None and (len(size) not in (4, 5) or min(size) < 0):
            expected = " or ".join(SIZE.values()) + (", nothing negative" if len(size) in (4, 5) else "")
            raise GridSampleError(where, "size", shown(size), expected)
        return
    r = next((r for r in (2, 3) if alike(theta, (None, r, r + 1))), 0)
    if not r:
        raise THETA.error(where, theta=shown(theta))
    if size is None:
        return
    quoted = {"size": shown(size), "theta": shown(theta), "N": theta[0], "axes": SIZE[r]}
    if len(size) != r + 2:
        raise SIZE_AXES.error(where, **quoted)
    if min(size) < 0:
        raise SIZE_NEGATIVE.error(where, **quoted)
    if _differ(theta[0], size[0]):
        raise SIZE_BATCHES.error(where, **quoted)


def attention_shapes(
    where: str, value: Sequence[int], lengths: Array, points: Sequence[int], locations: Sequence[int],
    weights: Sequence[int],
) -> None:  # fmt: skip
    """Check the shapes of deformable attention, the ``lengths`` (L, r) of its levels, and their ``points``.

    The points of all levels may be in one axis. Weights with the points of all levels in one axis may be of one query
    for all.
    """
    quoted: dict[str, object] = {"value_shape": shown(value), "sampling_locations": shown(locations)}
    if len(value) != 4:
        raise VALUE_AXES.error(where, **quoted)
    if lengths.min(initial=0) < 0:
        raise LEVELS_NEGATIVE.error(where)
    pixels = sum(map(math.prod, lengths.tolist()))
    if pixels != value[1]:
        raise LEVELS_PIXELS.error(where, **quoted, pixels=pixels)
    n, queries, heads, *counts, r = (*locations, *[-1] * max(0, 5 - len(locations)))
    fits = (n, heads, r) == (value[0], value[2], lengths.shape[1]) and math.prod(counts) == sum(points)
    if not fits or (len(counts) == 2 and counts[0] != len(lengths)) or len(counts) > 2:
        raise LOCATIONS.error(where, **quoted, n_levels=len(lengths))
    fits = len(weights) > 3 and (weights[0], weights[2]) == (n, heads)
    fits = fits and (weights[1] == queries or (weights[1] == 1 and len(weights) == 4))
    if len(weights) == 5 and len(counts) == 2:
        fits = fits and (*weights[3:],) == (*counts,)
    if not fits or math.prod(weights[3:]) != sum(points):
        raise ATTENTION_WEIGHTS.error(where, **quoted, attention_weights=shown(weights))


def fits_memory(where: str, argument: str, shape: Sequence[int], dtype: np.dtype[np.generic]) -> None:
    """Check that there is memory for an array of this shape, before any of it is taken."""
    # numpy multiplies the other axes of an empty array too.
    nbytes = math.prod(max(1, int(length)) for length in shape) * dtype.itemsize
    if nbytes < memory.WORTH_ASKING:
        return
    found = f"of shape {tuple(map(int, shape))} and {nbytes} bytes"
    if nbytes > np.iinfo(np.intp).max:
        raise GridSampleError(where, argument, found, "fewer bytes than an address can reach")
    left = memory.available()
    if left is not None and nbytes > left and 0 not in shape:
        raise GridSampleError(where, argument, found, f"at most {left} bytes, the memory that is left")
