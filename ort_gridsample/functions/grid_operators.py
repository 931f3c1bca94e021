"""The operators that compute a grid from a few numbers.

A GridSample can be fused with such an operator: it then computes the coordinates that it needs, and
there is no grid. A :class:`GridOperator` has what the rest of the package needs besides the
operator's row in :data:`ort_gridsample.spec.OP_SPECS`, which names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from .. import spec
from ..reference.arrays import Array

#: The names of inputs -> the elements of those that are constants.
Constants = Mapping[str, Array]
#: The shapes of the two inputs, None if they are unknown.
InputShapes = tuple[spec.Shape | None, spec.Shape | None]


@dataclass(frozen=True)
class GridOperator:
    """What is specific to an operator that computes a grid.

    Attributes:
        fused_inputs: its inputs in the order in which the fused op reads them behind X. The
            first has only one type.
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


class _GridOperators(Mapping[str, GridOperator]):
    """The :class:`GridOperator` of each operator that has one, by its name."""

    def __getitem__(self, name: str) -> GridOperator:
        if name not in _PLACES:
            raise KeyError(name)
        module, attribute = _PLACES[name].split(".")
        row: GridOperator = getattr(import_module(f".{module}", __package__), attribute)
        return row

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


_PLACES = {name: row.grid_operator for name, row in spec.OP_SPECS.items() if row.grid_operator}
GRID_OPERATORS: Mapping[str, GridOperator] = _GridOperators()
