"""Feed and read bfloat16 tensors, which onnxruntime does not exchange with NumPy.

onnxruntime's ``run`` takes no array of bfloat16 and returns none. It takes an ``OrtValue`` made
from the bits, and ``run_with_ort_values`` returns one, from whose memory the bits are read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from ..errors import GridSampleError
from ..reference.arrays import Array

if TYPE_CHECKING:  # the page in examples/web compares arrays without onnxruntime
    import onnxruntime
    from onnxruntime import OrtValue

#: The type of a tensor of bfloat16, as onnxruntime writes it.
ORT_TYPE = "tensor(bfloat16)"
#: The dtypes of arrays in files that hold the bits of bfloat16: that of integers, and the one that
#: ``numpy.save`` writes for an array of ``ml_dtypes.bfloat16``.
_BITS = (np.dtype(np.uint16), np.dtype("V2"))


def dtype() -> np.dtype[Any]:
    """Return ``ml_dtypes.bfloat16``.

    Raises:
        ModuleNotFoundError: ml_dtypes is not installed. Releases of onnx before 1.19 do not need
            it.
    """
    import ml_dtypes  # only models with inputs or outputs of bfloat16 need it

    return np.dtype(ml_dtypes.bfloat16)


def from_file(array: Array) -> Array:
    """Return the array of a file as bfloat16, if it has bits or rounds to them.

    Arrays of float32 are rounded to the nearest bfloat16. Arrays of all types but float32 and those
    of bits are returned unchanged.
    """
    if array.dtype in _BITS:
        return array.view(np.uint16).view(dtype())
    if array.dtype == np.float32:
        with np.errstate(over="ignore"):
            return array.astype(dtype())
    return array


def is_bfloat16(array: object) -> bool:
    """Whether ``array`` is an array of ``ml_dtypes.bfloat16``."""
    return isinstance(array, np.ndarray) and array.dtype.name == "bfloat16"


def for_files(array: Array) -> Array:
    """Return an array of bfloat16 as float32, which every NumPy can read; others unchanged."""
    return array.astype(np.float32) if is_bfloat16(array) else array


def with_ort_values(feeds: Mapping[str, Array]) -> dict[str, Any]:
    """Return ``feeds`` with an OrtValue instead of each array of bfloat16.

    Raises:
        GridSampleError: onnxruntime cannot create such a value.
    """
    return {
        name: _ort_value(name, array) if is_bfloat16(array) else array
        for name, array in feeds.items()
    }


def _ort_value(name: str, array: Array) -> OrtValue:
    """Return the OrtValue of an array of bfloat16."""
    import onnxruntime
    from onnxruntime import OrtValue

    create = getattr(OrtValue, "ortvalue_from_numpy_with_onnx_type", None)
    if create is None:
        found = f"bfloat16, with onnxruntime {onnxruntime.__version__}"
        expected = "another type, or a newer onnxruntime that creates such values"
        raise GridSampleError("command line", f"input {name!r}", found, expected)
    return create(np.ascontiguousarray(array).view(np.uint16), TensorProto.BFLOAT16)


def run(
    session: onnxruntime.InferenceSession,
    names: Sequence[str],
    feeds: Mapping[str, Array],
) -> list[Any]:
    """Run a session that has an output of bfloat16, and return its outputs ``names``.

    Raises:
        GridSampleError: the session also has an input of strings or an output that is not a tensor,
            which onnxruntime does not exchange as OrtValues.
    """
    from onnxruntime import OrtValue

    for kind, values in (("input", session.get_inputs()), ("output", session.get_outputs())):
        for value in values:
            if value.type == "tensor(string)" or not value.type.startswith("tensor("):
                where = f"{kind} {value.name!r}"
                expected = "a tensor of numbers, as there is an output of bfloat16"
                raise GridSampleError("command line", where, f"of type {value.type}", expected)
    ort_values = {}
    for name, value in with_ort_values(feeds).items():
        is_array = isinstance(value, np.ndarray)
        ort_values[name] = OrtValue.ortvalue_from_numpy(value) if is_array else value
    outputs = session.run_with_ort_values(names, ort_values)
    return [_array(output) for output in outputs]


def _array(value: OrtValue) -> Array:
    """Return the array of a tensor of numbers in the memory of the CPU."""
    if value.data_type() != ORT_TYPE:
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    bits = np.empty(shape, np.uint16)
    if bits.size:
        ctypes.memmove(bits.ctypes.data, value.data_ptr(), bits.nbytes)
    return bits.view(dtype())
