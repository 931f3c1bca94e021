"""How much memory is available, checked before it is allocated.

A few numbers in a feed can request an array larger than any machine's memory.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from .cgroups import group_folders

#: Smaller arrays are allocated without a check, which would cost more than it saves.
MIN_CHECKED_BYTES = 1 << 28
#: Bytes that an allocator may need in addition to an array.
ALLOCATOR_SLACK = 1 << 20
#: The bytes of a short string copied for an op and from there for onnxruntime: two C++ objects.
STRING_BYTES = 2 * 32

_MEMINFO = Path("/proc/meminfo")
#: The names of the files with the limit and the usage of a control group, in versions 2 and 1.
_GROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def available() -> int | None:
    """Return the number of bytes that this process can still allocate.

    It is the smallest of what the machine and each control group of the process have left. Return
    None if it is unknown, as on systems other than Linux.
    """
    candidates = [_machine_bytes()]
    for folder in group_folders("memory"):
        for limit_name, usage_name in _GROUP_FILES:
            candidates.append(_group_bytes(folder / limit_name, folder / usage_name))
    return min((nbytes for nbytes in candidates if nbytes is not None), default=None)


def _machine_bytes() -> int | None:
    """Return the available memory and swap of the machine, or None if they are unknown."""
    with suppress(OSError, ValueError, KeyError, IndexError):
        lines = _MEMINFO.read_text().splitlines()
        fields = (line.split(":") for line in lines)
        kilobytes = {name: int(value.split()[0]) for name, value in fields}
        return (kilobytes["MemAvailable"] + kilobytes["SwapFree"]) << 10
    return None


def _group_bytes(limit_file: Path, usage_file: Path) -> int | None:
    """Return the bytes that a control group has left; None if it limits nothing."""
    with suppress(OSError, ValueError):  # ValueError: the limit is "max"
        limit = int(limit_file.read_text())
        usage = int(usage_file.read_text())
        # The usage includes cached files. Linux first reclaims those that were not read lately.
        with suppress(OSError, ValueError, KeyError):
            stat_lines = limit_file.with_name("memory.stat").read_text().splitlines()
            stats = dict(line.split() for line in stat_lines)
            # In version 1 only the fields with "total_" include nested groups.
            reclaimable = int(stats.get("total_inactive_file") or stats["inactive_file"])
            usage = max(0, usage - reclaimable)
        return max(0, limit - usage)
    return None


def copied_bytes(array: np.ndarray[Any, Any]) -> int:
    """Return the bytes of a copy of ``array`` outside Python; for strings an estimate."""
    return array.size * STRING_BYTES if array.dtype.kind in "OUT" else array.nbytes


def check_allocatable(nbytes: int) -> None:
    """Check that ``nbytes`` can be allocated, by allocating and freeing them.

    Raises:
        MemoryError: they cannot be allocated.
    """
    if nbytes > ALLOCATOR_SLACK:
        np.empty(nbytes + ALLOCATOR_SLACK, np.uint8)
