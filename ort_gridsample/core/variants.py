"""The kernel variants: which compiled functions a way to sample takes, and the descriptor by which they know it."""

from .. import spec
from . import kernels, workers
from .compilation import Part
from .halves import HALVES, stored
from .taps import COMPILED_MODES, MODES

#: The modes, with their taps on an axis, and the paddings that the kernels state; any other is the NumPy core's.
TAPS = {mode: MODES[mode].taps for mode in COMPILED_MODES}
PADDING = {"zeros": kernels.ZEROS, "border": kernels.BORDER, "reflection": kernels.REFLECTION}


def numbers(X_type: str, grid_type: str, mode: str) -> dict[str, int]:
    """The fields of a :data:`.structs.KERNEL` that are numbers, but for an op's own, the attributes and processors."""
    coordinate, weight = _types(X_type, grid_type, mode)
    return {
        "taps": TAPS[mode],
        "X_size": stored(X_type).itemsize,
        "coordinate_size": stored(coordinate).itemsize,
        "weight_size": stored(weight).itemsize,
        "may_mask": int(not X_type.startswith(("int", "uint"))),
    }


def parts(X_type: str, grid_type: str, mode: str, coordinates: Part | None = None) -> dict[str, Part | None]:
    """The functions of a descriptor, by its fields. Where there is no grid, ``coordinates`` computes them."""
    coordinate, weight = _types(X_type, grid_type, mode)
    size = stored(X_type).itemsize
    packs = mode != "nearest" and (X_type in HALVES or X_type == weight)  # floats
    return {
        "worker": (workers.worker,),
        "proceed": (workers.proceed,),
        "coordinates": coordinates or (workers.coordinates_for, grid_type),
        "axis_taps": (workers.axis_taps_for, coordinate, weight),
        "combine": (workers.combine_for, weight),
        # There is no integer of 16 bytes.
        "read": (workers.copy_for, f"uint{8 * size}" if size <= 8 else X_type)
        if mode == "nearest"
        else (workers.sum_for, X_type),
        "pack": (workers.pack_for, X_type) if packs else None,
        "read_packed": (workers.sum_packed_for, X_type) if packs else None,
    }


def _types(X_type: str, grid_type: str, mode: str) -> tuple[str, str]:
    """Those of the coordinates and of the weights, which nearest has none of."""
    coordinate = str(spec.TYPES[grid_type].compute)
    return coordinate, coordinate if mode == "nearest" else workers.weights_of(X_type).name
