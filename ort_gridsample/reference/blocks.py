"""How the NumPy core divides its work: the sizes of blocks, and the taps for each thread."""

from __future__ import annotations

from typing import Literal

#: The limits of a block: large enough to make numpy's cost per call small, and small enough to stay
#: in the cache.
BLOCK_POSITIONS = 1 << 14
BLOCK_TAPS = 1 << 17
CHUNK_BYTES = 1 << 20
#: The minimum number of positions of a block, however many threads share the work.
MIN_BLOCK_POSITIONS = 64
#: The taps that are worth another thread: threads wait for the GIL between numpy's calls.
TAPS_PER_THREAD = 1 << 21
#: numpy's mode for indices outside X. There are none, and this mode is faster than ``"raise"``.
INDEX_MODE: Literal["raise", "clip"] = "clip"


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-dividend // divisor)


def slices(stop: int, step: int) -> list[slice]:
    """Cut ``range(stop)`` into slices of ``step`` elements."""
    return [slice(start, start + step) for start in range(0, stop, step)]
