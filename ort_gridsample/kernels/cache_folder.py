"""The folder in which this package keeps files for later processes."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

#: Seconds. The time of a file's last use is written at most once a day.
_DAY = 86400.0

#: The size of a hash in bytes, and that of what :func:`sealed` appends: a line feed and hexadecimal
#: digits.
_DIGEST_SIZE = 16
_SEAL_SIZE = 1 + 2 * _DIGEST_SIZE


def cache_folder() -> Path:
    """Return ``ort_gridsample`` in the user's folder for caches.

    That folder is ``$XDG_CACHE_HOME``. If the variable is not set, it is ``%LOCALAPPDATA%`` on
    Windows, ``~/Library/Caches`` on macOS and ``~/.cache`` elsewhere. It need not exist. A variable
    with a relative path counts as not set.

    Raises:
        RuntimeError: the user has no home folder.
    """
    variables = ["XDG_CACHE_HOME"]
    if sys.platform == "win32":
        variables.append("LOCALAPPDATA")
    for variable in variables:
        base = Path(os.environ.get(variable, ""))
        if base.is_absolute():
            return base / "ort_gridsample"
    caches = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path.home() / caches / "ort_gridsample"


def first_writable(folders: Sequence[Path]) -> int | None:
    """Return the index of the first of ``folders`` that can be written, or None.

    The folder is created if it does not exist.
    """
    return next((index for index, folder in enumerate(folders) if _is_writable(folder)), None)


@cache
def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def digest(data: bytes, name: str) -> str:
    """Return a hash of the ``data`` that are kept under a ``name``, as hexadecimal digits.

    A disk or a copy may damage a file. Without a hash, one wrong bit in machine code ends every
    process that loads it. The name is part of the hash, because a file may be in the place of
    another one.
    """
    # 1.4 GB/s; SHA-256 is faster on processors with instructions for it, and slower on others.
    hashed = hashlib.blake2b(digest_size=_DIGEST_SIZE)
    hashed.update(name.encode() + b"\0")
    hashed.update(data)
    return hashed.hexdigest()


def sealed(data: bytes, name: str) -> bytes:
    """Return the content of a file that is called ``name``: ``data``, then their hash."""
    return data + _seal(data, name)


def unsealed(content: bytes, name: str) -> bytes | None:
    """Return the data that :func:`sealed` was called with; None if the ``content`` is damaged."""
    data = content[:-_SEAL_SIZE]
    return data if content[-_SEAL_SIZE:] == _seal(data, name) else None


def _seal(data: bytes, name: str) -> bytes:
    return f"\n{digest(data, name)}".encode()


def mark_used(file: Path) -> None:
    """Set the modification time of ``file``, which :func:`remove_least_used` reads, to now."""
    now = time.time()
    with suppress(OSError):  # another user's file, or a read-only disk
        if now - file.stat().st_mtime > _DAY:
            os.utime(file, (now, now))


@cache
def remove_least_used(folder: Path, pattern: str, max_bytes: int) -> None:
    """Remove files of ``folder`` that match ``pattern`` until at most ``max_bytes`` are left.

    The least recently used files are removed first. Temporary files older than a day are removed,
    too: the process that wrote them was killed. A process does this once per folder.
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
