"""Checks of the inputs of one call.

Every error names the argument, what was found and what was expected. The sentences are those of
:mod:`.error_templates`. Detection applies the same checks to models, whose shapes may be known in
part only.
"""

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from .. import settings, spec
from ..reference.arrays import Array
from ..reference.coordinates import PADDING_RULES
from ..reference.plan import type_name
from ..reference.taps import MODE_RULES
from ..spec import Dim
from ..system import memory
from . import attention_shapes
from . import error_templates as templates

#: The number of spatial axes -> the names of the elements of ``size``.
SIZE_AXIS_NAMES = {2: "(N, C, H, W)", 3: "(N, C, D, H, W)"}


def format_choices(choices: Iterable[object]) -> str:
    """Return ``'a', 'b' or 'c'``."""
    return join_choices([repr(choice) for choice in choices])


def join_choices(texts: Sequence[str]) -> str:
    """Return ``a, b or c``."""
    *others, last = texts
    return f"{', '.join(others)} or {last}" if others else last


def format_shape(shape: Sequence[Dim]) -> str:
    """Return a shape as errors show it; an unknown dimension is ``?``."""
    return f"({', '.join('?' if dim is None else str(dim) for dim in shape)})"


def may_match(shape: Sequence[Dim] | None, other: Sequence[Dim]) -> bool:
    """Whether two shapes may be the same at run time.

    They are if one is unknown, or if they have the same length and no two different numbers.
    """
    if shape is None:
        return True
    return len(shape) == len(other) and not any(map(_differ, shape, other))


def _differ(dim: Dim, other: Dim) -> bool:
    """Whether two lengths are different numbers."""
    return isinstance(dim, int) and isinstance(other, int) and dim != other


def to_array(where: str, argument: str, value: object) -> Array:
    """Return ``value`` as an array.

    Raises:
        GridSampleError: it is a nested sequence whose items differ in length.
    """
    try:
        return np.asarray(value)
    except ValueError as error:
        raise templates.NOT_AN_ARRAY.error(where, argument=argument, reason=error) from error


def check_type(
    where: str,
    argument: str,
    dtype: np.dtype[np.generic],
    allowed: Collection[str],
) -> str:
    """Check the type of an argument.

    Args:
        where: the name of the function or node in the error.
        argument: the name of the argument.
        dtype: its type.
        allowed: names of :data:`ort_gridsample.spec.TYPES`.

    Returns:
        The name of ``dtype`` in :data:`ort_gridsample.spec.TYPES`.

    Raises:
        GridSampleError: the type is not allowed.
    """
    name = type_name(dtype)
    if name not in allowed:
        listed = ", ".join(allowed)
        raise templates.TYPE_NOT_ALLOWED.error(where, argument=argument, type=dtype, listed=listed)
    return name


def check_strings(where: str, argument: str, array: Array) -> None:
    """Check that an array of objects contains only strings. Other arrays are not checked.

    Raises:
        GridSampleError: an element is not a string.
    """
    if array.dtype.kind != "O":
        return
    for element_type in set(map(type, array.flat)):
        if not issubclass(element_type, str):
            raise templates.NOT_A_STRING.error(where, argument=argument, type=element_type.__name__)


def check_mode_and_padding(where: str, mode: str, padding_mode: str, X_type: str) -> None:
    """Check the two attributes, and that the mode is defined for an X of type ``X_type``.

    Raises:
        GridSampleError: one of them does not exist, or the mode is not defined for the type.
    """
    if not isinstance(mode, str) or spec.mode_of(mode) not in MODE_RULES:
        modes = format_choices((*MODE_RULES, *spec.MODE_SYNONYMS))
        raise templates.MODE_UNKNOWN.error(where, value=repr(mode), listed=modes)
    if padding_mode not in list(PADDING_RULES):  # it may be a value that has no hash
        raise templates.PADDING_MODE_UNKNOWN.error(
            where, value=repr(padding_mode), listed=format_choices(PADDING_RULES)
        )
    if spec.TYPES[X_type].compute is None and not MODE_RULES[spec.mode_of(mode)].copies_values:
        copying = format_choices([name for name, rule in MODE_RULES.items() if rule.copies_values])
        raise templates.MODE_UNDEFINED.error(where, value=repr(mode), listed=copying, type=X_type)


def check_num_threads(where: str, num_threads: object) -> None:
    """Check that ``num_threads`` is a whole number, at least 1, or None.

    Raises:
        GridSampleError: it is something else.
    """
    if num_threads is not None and not settings.is_positive_integer(num_threads):
        listed = settings.VALID_NUM_THREADS_OR_NONE
        raise templates.NUM_THREADS_INVALID.error(where, value=repr(num_threads), listed=listed)


def check_grid_sample_shapes(
    where: str,
    X: Sequence[Dim] | None,
    grid: Sequence[Dim] | None,
    padding_mode: object = "zeros",
) -> None:
    """Check the shapes of X and grid, as far as they are known.

    Args:
        where: the name of the function or node in errors.
        X: the shape (N, C, D1, …, Dr), or None if it is unknown.
        grid: the shape (N, D1_out, …, Dr_out, r), or None if it is unknown.

    Raises:
        GridSampleError: a shape is not allowed, or the shapes do not fit together.
    """
    if X is not None and len(X) < 3:
        raise templates.X_SHAPE_INVALID.error(where, X=format_shape(X))
    if X is None:
        if grid is not None and (len(grid) < 3 or _differ(grid[-1], len(grid) - 2)):
            raise templates.GRID_SHAPE_INVALID.error(where, grid=format_shape(grid))
        return
    if grid is None:
        return

    r = len(X) - 2
    if len(grid) != r + 2 or _differ(grid[-1], r):
        outputs = ", ".join(f"D{i + 1}_out" for i in range(r))
        raise templates.GRID_SHAPE_MISMATCH.error(
            where,
            X=format_shape(X),
            grid=format_shape(grid),
            outputs=outputs,
            r=r,
            axis_word="axis" if r == 1 else "axes",
        )
    if _differ(grid[0], X[0]):
        raise templates.GRID_BATCH_MISMATCH.error(
            where, X=format_shape(X), grid=format_shape(grid), N=X[0]
        )
    # A node's attribute may have any value, also one without a hash.
    needs_pixel = [name for name, padding in PADDING_RULES.items() if padding.needs_pixel]
    has_no_pixel = 0 in X[2:] and padding_mode in needs_pixel
    if has_no_pixel and not spec.may_be_empty((*X[:2], *grid[1:-1])):
        raise templates.X_HAS_NO_PIXEL.error(where, X=format_shape(X), padding_mode=padding_mode)


def check_affine_grid_shapes(
    where: str,
    theta: Sequence[Dim] | None,
    size: Sequence[int] | None,
) -> None:
    """Check the shape of theta and the values of size, as far as they are known.

    Args:
        where: the name of the function or node in errors.
        theta: the shape (N, r, r + 1), or None if it is unknown.
        size: the elements (N, C, D1, …, Dr), or None if they are unknown.

    Raises:
        GridSampleError: one of them is not allowed, or they do not fit together.
    """
    if theta is None:
        if size is not None:
            _check_size_alone(where, size)
        return
    possible_ranks = [r for r in SIZE_AXIS_NAMES if may_match(theta, (None, r, r + 1))]
    if not possible_ranks:
        raise templates.THETA_SHAPE_INVALID.error(where, theta=format_shape(theta))
    r = possible_ranks[0]
    if size is not None and len(size) - 2 in possible_ranks:
        r = len(size) - 2
    if size is None:
        return
    fields = {
        "size": format_shape(size),
        "theta": format_shape(theta),
        "N": theta[0],
        "axes": SIZE_AXIS_NAMES[r],
    }
    if len(size) != r + 2:
        raise templates.SIZE_LENGTH_MISMATCH.error(where, **fields)
    if min(size) < 0:
        raise templates.SIZE_NEGATIVE.error(where, **fields, **_negative_length(size))
    if _differ(theta[0], size[0]):
        raise templates.SIZE_BATCH_MISMATCH.error(where, **fields)


def _check_size_alone(where: str, size: Sequence[int]) -> None:
    """Check a size whose theta has an unknown shape."""
    fields = {"size": format_shape(size), "axes": " or ".join(SIZE_AXIS_NAMES.values())}
    if len(size) not in (4, 5):
        raise templates.SIZE_ALONE_LENGTH_INVALID.error(where, **fields)
    if min(size) < 0:
        raise templates.SIZE_ALONE_NEGATIVE.error(where, **fields, **_negative_length(size))


def _negative_length(size: Sequence[int]) -> dict[str, object]:
    """Return the fields of an error about the first negative length of ``size``."""
    names = SIZE_AXIS_NAMES[len(size) - 2].strip("()").split(", ")
    axis, length = next((axis, n) for axis, n in zip(names, size, strict=True) if n < 0)
    return {"axis": axis, "length": length}


def check_attention_shapes(
    where: str,
    *,
    value: Sequence[int],
    levels: Array,
    levels_argument: str,
    locations: Sequence[int],
    weights: Sequence[int],
) -> None:
    """Check the shapes of deformable attention.

    Args:
        where: the name of the function or node in errors.
        value: the shape (B, S, H, D).
        levels: (L, 1 + r), int64, the number of points of each level, and its lengths. The products
            of the lengths must add up to S.
        levels_argument: the name of the argument with the lengths in errors.
        locations: the shape (B, Q, H, L, P, r), or (B, Q, H, P, r) with the points of all levels in
            one axis.
        weights: the shape (B, Q, H, L, P), (B, Q, H, P), or (B, 1, H, P) for one query that
            applies to all.

    Raises:
        GridSampleError: a shape is not allowed, or the shapes do not fit together.
    """
    check_attention_value(where, value=value, levels=levels, levels_argument=levels_argument)
    shapes = {"value_shape": format_shape(value), "sampling_locations": format_shape(locations)}
    n_points = attention_shapes.count_points(value, locations, 1)
    if not attention_shapes.has_points_of_levels(levels, n_points, locations):
        raise templates.LOCATIONS_SHAPE_MISMATCH.error(where, **shapes, n_levels=len(levels))
    n_weights = attention_shapes.count_points(value, weights, 0)
    if n_weights != n_points or not attention_shapes.do_weights_fit(weights, locations):
        raise templates.WEIGHTS_SHAPE_MISMATCH.error(
            where,
            **shapes,
            attention_weights=format_shape(weights),
            weights_shape=format_shape(locations[:-1]),
        )


def check_attention_value(
    where: str,
    *,
    value: Sequence[Dim],
    levels: Array,
    levels_argument: str,
) -> None:
    """Check the shape of value and the levels of deformable attention.

    The arguments are those of :func:`check_attention_shapes`; lengths of value may be unknown.

    Raises:
        GridSampleError: value is not of shape (B, S, H, D), or the levels do not fit it.
    """
    value_shape = format_shape(value)
    if len(value) != 4:
        raise templates.VALUE_SHAPE_INVALID.error(where, value_shape=value_shape)
    if levels.min(initial=0) < 0:
        raise templates.LEVELS_NEGATIVE.error(where)
    pixels = sum(map(math.prod, levels[:, 1:].tolist()))
    if _differ(value[1], pixels):
        raise templates.LEVELS_PIXELS_MISMATCH.error(
            where,
            argument=levels_argument,
            value_shape=value_shape,
            pixels=pixels,
            n_pixels=value[1],
        )


def memory_error(where: str, error: MemoryError) -> MemoryError:
    """Return ``error`` with the name of the function or node that lacks memory."""
    return MemoryError(f"{where}: {str(error) or 'not enough memory'}")


def check_memory(
    where: str,
    argument: str,
    shape: Sequence[int],
    dtype: np.dtype[np.generic],
) -> None:
    """Check that there is memory for an array, before any of it is allocated.

    Raises:
        GridSampleError: the array has more bytes than the address space or the available memory.
    """
    if 0 < math.prod(shape) * dtype.itemsize < memory.MIN_CHECKED_BYTES:
        return
    # numpy refuses an empty array if the product of its other axes is too large.
    nbytes = math.prod(max(1, int(length)) for length in shape) * dtype.itemsize
    if nbytes < memory.MIN_CHECKED_BYTES:
        return
    fields = {"argument": argument, "shape": tuple(map(int, shape)), "nbytes": nbytes}
    if nbytes > np.iinfo(np.intp).max:
        raise templates.ARRAY_TOO_LARGE.error(where, **fields)
    available = memory.available()
    if available is not None and nbytes > available and 0 not in shape:
        raise templates.ARRAY_EXCEEDS_MEMORY.error(where, **fields, available=available)
