"""The argument of a core besides its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .. import spec
from . import sums


@dataclass(frozen=True)
class Plan:
    """The operator's attributes, and what follows from them and the type of X."""

    mode: str  #: one of :data:`ort_gridsample.spec.MODES`
    padding_mode: str  #: one of :data:`ort_gridsample.spec.PADDING_MODES`
    align_corners: bool  #: the operator's attribute
    compute: np.dtype[np.generic]  #: the type that values are added up in
    weights: np.dtype[np.generic]  #: the type of the weights: ``compute``, or its real part
    zero: object  #: the value of a tap outside (for strings the empty string)
    sum: sums.Sum | None  #: the function that adds up the taps; None for one tap


@lru_cache(maxsize=256)
def plan_for(dtype: np.dtype[np.generic], mode: str, padding_mode: str, align_corners: bool) -> Plan:
    """The plan for an X of type ``dtype``; ``mode`` may be a synonym."""
    mode = spec.mode_of(mode)
    compute = np.dtype(spec.TYPES[type_name(dtype)].compute or "float32")  # strings have nothing but nearest
    how = {"b": sums.boolean, "i": sums.integer, "u": sums.integer}.get(dtype.kind, sums.floating)
    weights, zero = np.finfo(compute).dtype, "" if type_name(dtype) == "str" else 0
    return Plan(mode, padding_mode, bool(align_corners), compute, weights, zero, None if mode == "nearest" else how)


@lru_cache(maxsize=64)  # numpy makes a dtype's name anew each time
def type_name(dtype: np.dtype[np.generic]) -> str:
    """The name of ``dtype`` in :data:`ort_gridsample.spec.TYPES`; all numpy's string types are "str"."""
    if dtype.fields:  # such as bfloat16 in onnx before 1.19, which goes by the name of uint16
        return str(dtype)
    return "str" if dtype.kind in "UOT" else dtype.name
