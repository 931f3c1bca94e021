"""Limit the memory that a process may address."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def address_limit(free_bytes: int) -> Iterator[None]:
    """Let this process address ``free_bytes`` more than it does now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + free_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
