"""The operators that compute a grid from a few numbers.

A GridSample can be fused with such an operator: it then computes the coordinates that it needs, and
there is no grid. :data:`GRID_OPERATORS` has a row for each operator. It holds what the rest of the
package needs besides the operator's row in :data:`ort_gridsample.spec.OPERATORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import spec
from ..errors import GridSampleError
from ..reference.arrays import Array
from . import validation

#: The names of inputs -> the elements of those that are constants.
Constants = Mapping[str, Array]
#: The shapes of the two inputs, None if they are unknown.
InputShapes = tuple[spec.Shape | None, spec.Shape | None]


@dataclass(frozen=True)
class GridOperator:
    """What is specific to an operator that computes a grid.

    Attributes:
        fused_inputs: its inputs in the order in which the fused op reads them behind X. All types
            of the first of them are the same.
        fused_prefix: the prefix of its attributes on a fused op.
        count_axes: return the number of spatial axes that the shapes of the inputs imply, or None.
        check: raise the GridSampleError of a node. The arguments are the node for the message, the
            shapes of the inputs, and constant inputs.
        grid_shape: return the shape of the grid for constant inputs; None if it is unknown.
        test_shapes: return shapes of inputs for a number of axes, given the known ones.
        test_inputs: return inputs in [0, 1), given their shapes, a size (N, C, D1, …, Dr) for
            lengths that are unknown, and constant inputs.
    """

    fused_inputs: tuple[str, str]
    fused_prefix: str
    count_axes: Callable[[InputShapes], int | None]
    check: Callable[[str, InputShapes, Constants], None]
    grid_shape: Callable[[Constants], list[spec.Dim] | None]
    test_shapes: Callable[[InputShapes, int], list[list[spec.Dim]]]
    test_inputs: Callable[[Sequence[Sequence[spec.Dim]], Sequence[int], Constants], list[Array]]


def length_of(shape: Sequence[spec.Dim] | None, axis: int) -> int | None:
    """Return the length of an axis of ``shape``, or None if it is unknown."""
    if shape is None or len(shape) <= axis:
        return None
    length = shape[axis]
    return length if isinstance(length, int) else None


# --- AffineGrid ---


def _count_affine_axes(shapes: InputShapes) -> int | None:
    theta, size = shapes
    rows = length_of(theta, 1)  # theta is (N, r, r + 1)
    if rows is not None:
        return rows
    row_length = length_of(theta, 2)
    if row_length is not None:
        return row_length - 1
    size_length = length_of(size, 0)  # size is N, C and r lengths
    return None if size_length is None else size_length - 2


def _check_affine_grid(where: str, shapes: InputShapes, constants: Constants) -> None:
    """Check the shapes of an AffineGrid's inputs, and the values of a constant size."""
    theta, size = shapes
    validation.check_affine_grid_shapes(where, theta, _constant_row(constants, "size"))
    if not validation.may_match(size, (4,)) and not validation.may_match(size, (5,)):
        found = f"of shape {validation.format_shape(size or ())}"
        raise GridSampleError(where, "size", found, "4 or 5 numbers")


def _affine_grid_shape(constants: Constants) -> list[spec.Dim] | None:
    numbers = _constant_row(constants, "size")
    return None if numbers is None else [numbers[0], *numbers[2:], len(numbers) - 2]


def _constant_row(constants: Constants, name: str) -> list[int] | None:
    """Return the numbers of a constant of one axis; None if there is none."""
    constant = constants.get(name)
    return constant.tolist() if constant is not None and constant.ndim == 1 else None


def _affine_test_shapes(shapes: InputShapes, n_axes: int) -> list[list[spec.Dim]]:
    return [list(shapes[0] or (None, n_axes, n_axes + 1)), [n_axes + 2]]


def _affine_test_inputs(
    shapes: Sequence[Sequence[spec.Dim]], size: Sequence[int], constants: Constants
) -> list[Array]:
    n, *other_lengths = constants["size"].tolist() if "size" in constants else size
    batch = shapes[0][0]
    if isinstance(batch, int):
        n = batch
    r = len(size) - 2
    theta = np.random.default_rng(0).random((n, r, r + 1))
    return [theta, np.array([n, *other_lengths], np.int64)]


#: The name of an operator -> what is specific to it.
GRID_OPERATORS: Mapping[str, GridOperator] = {
    "AffineGrid": GridOperator(
        fused_inputs=("size", "theta"),
        fused_prefix="affine_grid_",
        count_axes=_count_affine_axes,
        check=_check_affine_grid,
        grid_shape=_affine_grid_shape,
        test_shapes=_affine_test_shapes,
        test_inputs=_affine_test_inputs,
    ),
}
