"""The plan of a call: the parameters of a core besides its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .. import spec
from . import sums
from .taps import MODE_RULES


@dataclass(frozen=True)
class Plan:
    """The operator's attributes, and what follows from them and from the type of X."""

    mode: str  #: one of :data:`.taps.MODE_RULES`
    padding_mode: str  #: one of :data:`.coordinates.PADDING_RULES`
    align_corners: bool  #: the operator's attribute
    compute: np.dtype[np.generic]  #: the type in which values are added up
    weights: np.dtype[np.generic]  #: the type of the weights: ``compute``, or its real part
    zero: object  #: the value of a tap outside X; for strings the empty string
    sum: sums.SumFunction | None  #: the function that adds up the taps; None for a single tap


#: Kind of a numpy dtype -> the function that adds up its taps; others are floats or complex.
_SUM_FUNCTIONS = {"b": sums.sum_bools, "i": sums.sum_integers, "u": sums.sum_integers}


def plan_for(
    dtype: np.dtype[np.generic],
    mode: str,
    padding_mode: str,
    align_corners: bool,
) -> Plan:
    """Return the plan for an X of type ``dtype``. ``mode`` may be a synonym."""
    mode = spec.mode_of(mode)
    X_type = type_name(dtype)
    # Strings have no type to compute in, and need none: only nearest is defined for them.
    compute = np.dtype(spec.TYPES[X_type].compute or "float32")
    copies_values = MODE_RULES[mode].copies_values
    return Plan(
        mode=mode,
        padding_mode=padding_mode,
        align_corners=bool(align_corners),
        compute=compute,
        weights=np.finfo(compute).dtype,
        zero="" if X_type == "str" else 0,
        sum=None if copies_values else _SUM_FUNCTIONS.get(dtype.kind, sums.sum_floats),
    )


@lru_cache(maxsize=64)  # numpy builds the name of a dtype at each access
def type_name(dtype: np.dtype[np.generic]) -> str:
    """Return the name of ``dtype`` in :data:`ort_gridsample.spec.TYPES`.

    The name of all of numpy's string types is "str".
    """
    # onnx before 1.19 represents bfloat16 as a structure whose dtype.name is that of uint16.
    if dtype.fields:
        return str(dtype)
    return "str" if dtype.kind in "UOT" else dtype.name
