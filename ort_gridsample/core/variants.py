"""The kernel variants: which compiled functions a way to sample takes, and the descriptor by which they know it."""

from __future__ import annotations

from collections.abc import Sequence

from .. import spec
from . import kernels, workers
from .compilation import Part, addresses
from .halves import HALVES, stored
from .taps import COMPILED_MODES, MODES
from .threads import available_cpus

#: The modes, with their taps on an axis, and the paddings that the kernels state; any other is the NumPy core's.
TAPS = {mode: MODES[mode].taps for mode in COMPILED_MODES}
PADDING = {"zeros": kernels.ZEROS, "border": kernels.BORDER, "reflection": kernels.REFLECTION}


def descriptor(
    X_type: str, grid_type: str, mode: str, padding_mode: str, align_corners: bool, *,
    entry: Sequence[Part] = (), coordinates: Part | None = None, columns: int = 0,
) -> tuple[list[int], dict[str, int]]:  # fmt: skip
    """The addresses of the functions ``entry``, and the fields of a :data:`.structs.KERNEL` but for an op's own.

    All is compiled now, if need be. Where there is no grid, ``coordinates`` computes them, with ``columns`` of the
    descriptor.
    """
    named = parts(X_type, grid_type, mode, coordinates)
    found = addresses([*entry, *named.values()])
    coordinate, weight = _types(X_type, grid_type, mode)
    fields = {
        **dict(zip(named, found[len(entry) :], strict=True)),
        "taps": TAPS[mode],
        "padding": PADDING[padding_mode],
        "align_corners": int(align_corners),
        "X_size": stored(X_type).itemsize,
        "coordinate_size": stored(coordinate).itemsize,
        "weight_size": stored(weight).itemsize,
        "cpus": available_cpus(),
        "may_mask": int(not X_type.startswith(("int", "uint"))),
        "columns": columns,
    }
    return found[: len(entry)], fields


def parts(X_type: str, grid_type: str, mode: str, coordinates: Part | None = None) -> dict[str, Part | None]:
    """The functions of a descriptor, by its fields."""
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
