"""The folder in which this package keeps files for later processes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

#: A file counts as used on the day of its last use: its time is not written more often.
_DAY = 86400.0


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/ort_gridsample``, or the system's equivalent. The folder need not exist.

    Raises:
        RuntimeError: the user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(base) / "ort_gridsample"


def first_writable(folders: Sequence[Path]) -> int | None:
    """Return the index of the first of ``folders`` that exists, or can be made, and be written; None: there is none."""
    return next((index for index, folder in enumerate(folders) if _is_writable(folder)), None)


@cache
def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def mark_used(file: Path) -> None:
    """Set the modification time of ``file`` to now, which :func:`remove_least_used` looks at."""
    now = time.time()
    with suppress(OSError):  # another user's file, or a read-only disk
        if now - file.stat().st_mtime > _DAY:
            os.utime(file, (now, now))


@cache
def remove_least_used(folder: Path, pattern: str, max_bytes: int) -> None:
    """Remove files of ``folder`` that match ``pattern``, the least recently used first, until ``max_bytes`` are left.

    Temporary files of these, which a process left that was killed a day ago or earlier, are removed too. A process does
    this once for a folder.
    """
    now = time.time()
    files = list[tuple[float, int, Path]]()
    with suppress(OSError):
        for file in folder.glob(f"{pattern}*"):
            with suppress(OSError):  # another process removed it
                stat = file.stat()
                if file.match(pattern):
                    files.append((stat.st_mtime, stat.st_size, file))
                elif now - stat.st_mtime > _DAY:
                    file.unlink(missing_ok=True)
    excess = sum(size for _, size, _ in files) - max_bytes
    for _, size, file in sorted(files):
        if excess <= 0:
            return
        excess -= size
        with suppress(OSError):
            file.unlink(missing_ok=True)
