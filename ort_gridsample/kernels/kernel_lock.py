"""File locks, by which only one process compiles a kernel.

The operating system releases them when the process ends. A forked child does not inherit them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def try_lock(path: Path | None) -> Iterator[bool]:
    """Lock a file within the context, and remove it at the end.

    Args:
        path: the file, which is created. If None, or if the disk supports no locks, nothing is
            locked.

    Yields:
        Whether no other process has locked the file.
    """
    if path is None:
        yield True
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        yield True
        return
    try:
        is_free = _lock(descriptor)
        try:
            yield is_free
        finally:
            if is_free:
                with suppress(OSError):  # Windows keeps a file that another process opened
                    path.unlink()
    finally:
        os.close(descriptor)


def is_locked(path: Path | None) -> bool:
    """Whether another process has locked a file."""
    if path is None or not path.exists():
        return False
    with try_lock(path) as is_free:
        return not is_free


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> bool:
        """Lock a file, and return whether no other process has locked it."""
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        except OSError:
            return True
        return True

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        """Lock a file, and return whether no other process has locked it."""
        try:
            # Unlike those of flock, a forked child does not inherit this lock.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # the error depends on the system
            return False
        except OSError:
            return True
        return True
