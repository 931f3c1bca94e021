"""Comparing answers: a wrong one has no time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ort_gridsample.core.arrays import Array

from .suite import Case

#: Nearest: the part of the elements that may be a neighbour's, where a coordinate lies on a tie.
TIES = 2e-3


def disagreement(found: Sequence[Array], expected: Sequence[Array], case: Case) -> str:
    """What is wrong with the outputs ``found``, in words; empty where they agree."""
    for a, b in zip(found, expected, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{a.dtype} {a.shape} instead of {b.dtype} {b.shape}"
        difference = distance(a, b)
        allowed = case.tolerance if b.dtype.kind in "iu" else case.tolerance * float(np.abs(b).max(initial=1e-30))
        if case.attributes.get("mode") == "nearest":
            part = np.count_nonzero(difference > allowed) / max(1, difference.size)
            if part > TIES:
                return f"{part:.1%} of the values are others"
        elif not difference.max(initial=0) <= allowed:  # NaN is wrong too
            return f"a value is {difference.max():.2g} off, {allowed:.2g} are allowed"
    return ""


def distance(a: Array, b: Array) -> Array:
    """Element by element, in float64 where float32 would not do."""
    wide = np.float64 if a.dtype == np.float64 else np.float32
    with np.errstate(invalid="ignore"):
        return np.abs(np.subtract(a, b, dtype=wide))
