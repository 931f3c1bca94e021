"""Room in memory, asked for before it is taken: a few numbers in a feed can claim more than any machine has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

#: Arrays of fewer bytes than this are not worth asking the system for.
WORTH_ASKING = 1 << 28

#: What an allocator may need beside an array.
SLACK = 1 << 20

#: What a string takes where it is copied for an op and from there for onnxruntime: two objects of C++, in which a short
#: text has room.
STRING_BYTES = 2 * 32

_MEMINFO = Path("/proc/meminfo")
#: Pairs of files that say a control group's limit and what it uses, of version 2 and 1.
_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def available() -> int | None:
    """The bytes that the system still has for this process, by its own account; None where it gives none."""
    return min(_accounts(), default=None)


def copied_bytes(array: np.ndarray[Any, Any]) -> int:
    """The bytes that a copy of ``array`` takes outside Python; of strings, about."""
    return array.size * STRING_BYTES if array.dtype.kind in "OUT" else array.nbytes


def probe(nbytes: int) -> None:
    """Take ``nbytes`` and give them back.

    Raises:
        MemoryError: there is no such room.
    """
    if nbytes > SLACK:
        np.empty(nbytes + SLACK, np.uint8)


def _accounts() -> Iterator[int]:
    try:
        lines = _MEMINFO.read_text().splitlines()
        kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
        yield (kilobytes["MemAvailable"] + kilobytes["SwapFree"]) << 10
    except (OSError, ValueError, KeyError, IndexError):
        pass  # not Linux
    for limit, usage in _GROUPS:
        try:
            most, used = int(limit.read_text()), int(usage.read_text())
            yield max(0, most - max(0, used - _reclaimable(limit.with_name("memory.stat"))))
        except (OSError, ValueError):
            continue  # no such group, or "max"


def _reclaimable(stat: Path) -> int:
    """What a control group's usage counts of files that nobody has asked for of late: Linux takes that back first."""
    try:
        said = dict(line.split() for line in stat.read_text().splitlines())
        return int(said.get("total_inactive_file") or said["inactive_file"])  # version 1 says the groups within apart
    except (OSError, ValueError, KeyError):
        return 0
