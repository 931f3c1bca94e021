"""How much memory there is, asked before it is taken: a few numbers in a feed can claim more than any machine has."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

#: Arrays of fewer bytes than this are not worth asking the system for.
WORTH_ASKING = 1 << 28
#: Bytes that an allocator may need beside an array.
SLACK = 1 << 20
#: The bytes of a string copied for an op, and from there for onnxruntime: two C++ objects that hold a short text.
STRING_BYTES = 2 * 32

_MEMINFO = Path("/proc/meminfo")
#: The files of a control group's limit and usage, of version 2 and 1.
_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def available() -> int | None:
    """The bytes that the system has left for this process, by its own account; None where it gives none."""
    found = list[int]()
    with suppress(OSError, ValueError, KeyError, IndexError):  # not Linux
        lines = _MEMINFO.read_text().splitlines()
        kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
        found.append((kilobytes["MemAvailable"] + kilobytes["SwapFree"]) << 10)
    for limit, usage in _GROUPS:
        with suppress(OSError, ValueError):  # no such group, or "max"
            most, used = int(limit.read_text()), int(usage.read_text())
            with suppress(OSError, ValueError, KeyError):  # what caches files not read lately Linux takes back first
                stats = dict(line.split() for line in limit.with_name("memory.stat").read_text().splitlines())
                # total: with nested groups, version 1
                used = max(0, used - int(stats.get("total_inactive_file") or stats["inactive_file"]))
            found.append(max(0, most - used))
    return min(found, default=None)


def copied_bytes(array: np.ndarray[Any, Any]) -> int:
    """The bytes that a copy of ``array`` takes outside Python; of strings, about."""
    return array.size * STRING_BYTES if array.dtype.kind in "OUT" else array.nbytes


def probe(nbytes: int) -> None:
    """Allocate ``nbytes`` and free them; MemoryError where there are not so many."""
    if nbytes > SLACK:
        np.empty(nbytes + SLACK, np.uint8)
