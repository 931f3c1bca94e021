"""How far the outputs of two models agree."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..errors import GridSampleError
from ..reference.arrays import Array
from .bfloat16 import is_bfloat16
from .output import name_of, table


@dataclass(frozen=True)
class OutputComparison:
    """How far two models agree on one output.

    Attributes:
        name: the name of the output.
        type: its type in A.
        shape: its shape in A.
        difference: the largest difference of two elements. Infinite if the types or shapes differ.
        magnitude: the largest magnitude of an element in A.
        agrees: whether the difference is within the tolerance.
    """

    name: str
    type: str
    shape: Sequence[int]
    difference: float
    magnitude: float
    agrees: bool


def all_agree(comparisons: Sequence[OutputComparison]) -> bool:
    """Whether all outputs agree."""
    return all(comparison.agrees for comparison in comparisons)


def compare_outputs(
    outputs_a: Mapping[str, Array],
    outputs_b: Mapping[str, Array],
    tolerance: float,
) -> list[OutputComparison]:
    """Compare the outputs of two models by name.

    Args:
        outputs_b: the outputs of B, of the same names.
        tolerance: how far floats may differ, relative to the largest magnitude in the output of A.

    Raises:
        GridSampleError: an output is not a tensor.
    """
    comparisons = list[OutputComparison]()
    for name, a in outputs_a.items():
        b = outputs_b[name]
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
            kind = f"a {type(a).__name__}"
            raise GridSampleError("verify", f"output {name!r}", kind, "a tensor, to be compared")
        result = difference(a, b)
        has_fractions = a.dtype.kind in "fc" or is_bfloat16(a)
        max_allowed = tolerance * result.magnitude if has_fractions else 0
        comparisons.append(
            OutputComparison(
                name=name,
                type=name_of(a.dtype),
                shape=a.shape,
                difference=result.largest,
                magnitude=result.magnitude,
                agrees=result.largest <= max_allowed,
            )
        )
    return comparisons


class Difference(NamedTuple):
    """The difference of two arrays A and B.

    Attributes:
        largest: the largest difference of two elements. Infinite if the types or shapes differ, or
            if only one of two elements is NaN.
        magnitude: the largest finite magnitude of an element in A.
    """

    largest: float
    magnitude: float


def difference(a: Array, b: Array) -> Difference:
    """Return the difference of two arrays."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return Difference(math.inf, 0.0)
    if is_bfloat16(a):  # NumPy does not know its kind
        return difference(a.astype(np.float32), b.astype(np.float32))
    if a.dtype.kind not in "fciu":
        return Difference(0.0 if np.array_equal(a, b) else math.inf, 0.0)
    is_same = a == b  # in their own type: not every integer is a float64
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    wide_a = a.astype(wide)
    wide_b = b.astype(wide)
    is_same |= np.isnan(wide_a) & np.isnan(wide_b)
    with np.errstate(invalid="ignore"):
        # Integers that differ may be equal as float64; their difference must not be 0.
        distances = np.maximum(np.abs(wide_a - wide_b), np.finfo(float).tiny)
    differences = np.nan_to_num(np.where(is_same, 0, distances), nan=np.inf, posinf=np.inf)
    finite = np.abs(wide_a[np.isfinite(wide_a)])
    return Difference(float(differences.max(initial=0)), float(finite.max(initial=0)))


def relative_difference(outputs_a: Sequence[Array], outputs_b: Sequence[Array]) -> float:
    """Return the largest difference of an output of B to A's, over the largest value of A's.

    The result is infinite if an output of A is all zeros and that of B is not.
    """
    differences = [0.0]
    for a, b in zip(outputs_a, outputs_b, strict=True):
        result = difference(a, b)
        if result.magnitude:
            differences.append(result.largest / result.magnitude)
        elif result.largest:
            differences.append(math.inf)
    return max(differences)


def outputs_text(comparisons: Sequence[OutputComparison]) -> str:
    """Return a table of the outputs."""
    heads = ("output", "type", "shape", "largest difference", "of largest value", "")
    rows: list[tuple[object, ...]] = [heads]
    for comparison in comparisons:
        rows.append(
            (
                comparison.name,
                comparison.type,
                tuple(comparison.shape),
                f"{comparison.difference:.2g}",
                f"{comparison.magnitude:.2g}",
                "agrees" if comparison.agrees else "differs",
            )
        )
    return table(rows)
