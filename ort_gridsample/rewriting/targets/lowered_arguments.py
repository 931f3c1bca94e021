"""The arguments of a lowered operator: what is known of them, and checks of the rest in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ... import spec
from ...errors import GridSampleError
from ...functions import error_templates as templates
from ...functions import validation
from ...graph.expressions import DimLike, Expressions, Tensor
from ...graph.run_errors import check_lengths, shape_error
from ...reference.arrays import Array
from ...reference.coordinates import PADDING_RULES

#: A constant grid of more bytes stays in the model as it is: its indices and weights take 5
#: (linear) to 17 (cubic) times as many, and onnxruntime computes them once, when a session is made.
MAX_FOLDED_BYTES = 1 << 20


@dataclass(frozen=True)
class Argument:
    """An argument of an operator that is lowered, as far as it is known.

    Attributes:
        name: its name.
        type: its type, in :data:`ort_gridsample.spec.TYPES`.
        shape: its shape, with integers where lengths are known, or None if the rank is unknown.
        constant: its elements, if they are constant.
    """

    name: str
    type: str
    shape: spec.Shape | None
    constant: Array | None = None

    @property
    def known_shape(self) -> spec.Shape | None:
        """The shape, by the elements if they are constant."""
        return self.shape if self.constant is None else self.constant.shape


def input_of(e: Expressions, value: Argument, n_coordinates: int | None = None) -> Tensor:
    """Return a grid or theta in the type that coordinates are computed in.

    Args:
        value: the grid or theta, which becomes a constant if it is constant and small.
        n_coordinates: the number of coordinates that are computed from ``value``; None: the number
            of its elements.
    """
    compute = e.runtime.coordinate_type or spec.TYPES[value.type].compute or value.type
    if value.constant is not None:
        if n_coordinates is None:
            n_coordinates = value.constant.size
        if n_coordinates * value.constant.itemsize <= MAX_FOLDED_BYTES:
            return e.constant(value.constant.astype(compute), compute)
    return e.input(value.name, value.type).astype(compute)


def dims_of(
    e: Expressions, argument: str, value: Argument, x: Tensor, known: spec.Shape
) -> list[DimLike]:
    """Return the lengths of an argument, with a check of its rank in a run if that is not known.

    Args:
        argument: the name of the argument in an error.
        known: its shape as far as it is known.
    """
    if value.known_shape is not None:
        return e.dims(x, known)
    return e.dims(x, known, str(shape_error(e.origin, argument, f"{len(known)} axes")))


def grid_checks(
    e: Expressions,
    X: Argument,
    image: Tensor,
    *,
    grid_batches: DimLike,
    n_coordinates: DimLike,
    r: int,
) -> list[Tensor]:
    """Write nodes that fail in a run where a grid does not fit X.

    Args:
        image: the tensor of ``X``.
        grid_batches: the length of grid's first axis.
        n_coordinates: the length of grid's last axis.
        r: the number of X's spatial axes.

    Returns:
        The outputs of the nodes, which are 0; empty if all lengths are known.
    """
    batches = e.dims(image, [batches_of(X)])
    outputs = ", ".join(f"D{axis + 1}_out" for axis in range(r))
    axis_word = "axis" if r == 1 else "axes"
    expected = f"shape (N, {outputs}, {r}), as X has {r} spatial {axis_word}"
    return [
        *check_lengths(e, [grid_batches], batches, batch_error(e)),
        *check_lengths(e, [n_coordinates], [r], shape_error(e.origin, "grid", expected)),
    ]


def batch_error(e: Expressions) -> GridSampleError:
    """Return the error of a grid that has another number of batches than X."""
    return shape_error(e.origin, "grid", "the N of X in axis 0")


def batches_of(X: Argument) -> spec.Dim:
    """Return the number of batches that ``X`` itself has, as far as it is known."""
    return X.shape[0] if X.shape else None


def check_opset(e: Expressions, first: int) -> None:
    """Check that the opset of ``e`` is at least ``first``.

    Raises:
        GridSampleError: it is older.
    """
    if e.opset < first:
        expected = f"at least {first}, the first opset that nodes are lowered in"
        raise GridSampleError(e.origin, "opset", str(e.opset), expected)


def check_grid_sample(
    name: str,
    X: Argument,
    grid: Argument,
    mode: str,
    padding_mode: str,
) -> tuple[spec.Shape, spec.Shape]:
    """Check the arguments of a GridSample, as far as they are known.

    Returns:
        The shapes of X and grid, with the lengths that are known from each other.

    Raises:
        GridSampleError: the operator is not defined for the arguments, or no rank is known.
    """
    allowed = [type.name for type in spec.TYPES.values() if not type.name.startswith("complex")]
    check_type(name, "X", X, allowed)
    check_type(name, "grid", grid, spec.FLOATS)
    validation.check_mode_and_padding(name, mode, padding_mode, X.type)
    known_grid_shape = grid.known_shape
    if X.shape is None and known_grid_shape is None:
        expected = "a rank that the model states, or that onnx can infer"
        raise GridSampleError(name, "X", "of unknown rank", expected)
    X_shape = X.shape if X.shape is not None else (None,) * len(known_grid_shape or ())
    grid_shape = known_grid_shape if known_grid_shape is not None else (None,) * len(X_shape)
    validation.check_grid_sample_shapes(name, X_shape, grid_shape, padding_mode)
    is_Y_empty = 0 in (*X_shape[:2], *grid_shape[1:-1])
    needs_pixel = PADDING_RULES[padding_mode].needs_pixel
    if 0 in X_shape[2:] and needs_pixel and not is_Y_empty:
        shape = validation.format_shape(X_shape)
        raise templates.X_HAS_NO_PIXEL.error(name, X=shape, padding_mode=padding_mode)
    batches = [dim for dim in (*X_shape[:1], *grid_shape[:1]) if isinstance(dim, int)]
    n = batches[0] if batches else None
    return (n, *X_shape[1:]), grid_shape


def check_type(name: str, argument: str, value: Argument, allowed: Sequence[str]) -> None:
    """Check that the type of ``value`` is one of ``allowed``.

    Raises:
        GridSampleError: it is another.
    """
    if value.type not in allowed:
        raise templates.TYPE_NOT_ALLOWED.error(
            name, argument=argument, type=value.type, listed=", ".join(allowed)
        )
