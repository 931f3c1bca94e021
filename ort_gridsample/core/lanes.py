"""Offsets of fields, for the compiled ops that do not use records yet."""

from typing import Any

from .structs import CACHE_LINE, KERNEL, LAUNCH, SCRATCH, WORKER
from .workers import PASSED_BYTES as PASSED_BYTES
from .workers import WORKERS


def _offsets(record: Any, names: str) -> list[int]:
    return [record.fields[name][1] for name in names.split()]


STATE, X, GRID, Y, N, C, R, PIXELS, POSITIONS, ROWS, LENGTHS, OUT, MOST_LANES, PAUSES, BLOCK, PHASE, NBYTES = _offsets(
    LAUNCH, "kernel X grid Y n c r pixels positions rows lengths out_lengths workers pauses tile phase nbytes"
)
(OWN_BYTES,) = _offsets(LAUNCH, "own_bytes")
LANE, PROCEED, TAPS, PADDING, X_SIZE, CPUS, GRID_ALIGNED = _offsets(
    KERNEL, "worker proceed taps padding X_size cpus grid_align_corners"
)
COORDINATE, AXIS, STEPS = (_offsets(LAUNCH, "scratch")[0] + at for at in _offsets(SCRATCH, "coordinates axis columns"))
(KNOWN,) = _offsets(WORKER, "has_columns")
STATE_BYTES, RUN_BYTES, LINE, LANES = KERNEL.itemsize, LAUNCH.itemsize, CACHE_LINE, WORKERS
