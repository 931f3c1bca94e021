"""A way to sample: the compiled functions that it takes, and the state from which they know it."""

from __future__ import annotations

from . import kernels, lanes
from .compilation import Part, addresses
from .halves import HALVES, stored
from .threads import available_cpus

#: The modes, with their taps on an axis, and the paddings that the kernels state; any other is the NumPy core's.
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
PADDING = {"zeros": kernels.ZEROS, "border": kernels.BORDER, "reflection": kernels.REFLECTION}


def state_of(
    X_type: str, grid_type: str, mode: str, padding_mode: str, align_corners: bool, *,
    entry: Part, coordinates: Part | None = None, columns: int = 0, grid_aligned: bool = False,
) -> list[int]:  # fmt: skip
    """The address of ``entry``, and the state of :mod:`.lanes` from its third word on; compiled now, if need be.

    ``entry`` is the function that those who sample call. Where there is no grid, ``coordinates`` finds them, with
    ``columns`` and ``grid_aligned`` of the state.
    """
    found = addresses(parts(X_type, grid_type, mode, entry, coordinates))
    sizes = (stored(name).itemsize for name in (X_type, *_types(X_type, grid_type, mode)))
    return [
        *found, TAPS[mode], PADDING[padding_mode], int(align_corners), *sizes,
        available_cpus(), columns, int(grid_aligned), int(not X_type.startswith(("int", "uint"))),
    ]  # fmt: skip


def parts(X_type: str, grid_type: str, mode: str, entry: Part, coordinates: Part | None = None) -> list[Part | None]:
    """The functions that it takes: ``entry``, then the others in the order of the state."""
    coordinate, weight = _types(X_type, grid_type, mode)
    size = stored(X_type).itemsize
    in_rows = mode != "nearest" and (X_type in HALVES or X_type == weight)  # floats
    return [
        entry,
        (lanes.lane,),
        coordinates or (lanes.coordinates_for, grid_type),
        (lanes.axis_for, coordinate, weight),
        (lanes.combine_for, weight),
        # There is no integer of 16 bytes.
        (lanes.copy_for, f"uint{8 * size}" if size <= 8 else X_type) if mode == "nearest" else (lanes.sum_for, X_type),
        (lanes.reorder_for, X_type) if in_rows else None,
        (lanes.sum_rows_for, X_type) if in_rows else None,
    ]


def _types(X_type: str, grid_type: str, mode: str) -> tuple[str, str]:
    """Those of the coordinates and of the weights, which nearest has none of."""
    coordinate = "float64" if grid_type == "float64" else "float32"
    return coordinate, coordinate if mode == "nearest" else lanes.weights_of(X_type).name
