"""The trailer of a library of compiled ops: what the file is, at its end.

The hook that builds wheels loads this module by its path, where no dependency of the package is
installed. Therefore it imports only the standard library.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

#: The suffix of a shared library, by system.
SUFFIXES = {"linux": ".so", "win32": ".dll", "darwin": ".dylib"}

#: The version of the libraries.
FORMAT = 1

_TRAILER = re.compile(
    rb"\nort_gridsample ops (\d+) of release (\S+) for (\S+)((?: \S+)*)"
    rb" sha256 ([0-9a-f]{64})\n\Z"
)

#: The machine of a library -> the platform of a wheel that contains it. That of Linux has the
#: release of glibc that the library needs.
_PLATFORMS = {
    "x86_64-linux": "manylinux_2_{}_x86_64",
    "aarch64-linux": "manylinux_2_{}_aarch64",
    "x86_64-win32": "win_amd64",
    "aarch64-darwin": "macosx_11_0_arm64",
}
#: The oldest glibc that the linker is told to link for, 2.17.
_OLDEST_GLIBC_MINOR = 17


class Trailer(NamedTuple):
    """The trailer of a library."""

    #: The version of the library.
    format: int
    #: The release that built the library.
    release: str
    #: Processor and system, such as ``"x86_64-linux"``.
    machine: str
    #: The processors that the library has variants for, each after a blank.
    cpus: str
    #: The hash of all bytes before the trailer.
    digest: str
    #: The number of these bytes.
    start: int


def append_trailer(library: bytes, release: str, machine: str, cpus: Sequence[str]) -> bytes:
    """Return the bytes of ``library`` with a trailer.

    Args:
        library: the bytes that a linker wrote.
        machine: processor and system, such as ``"x86_64-linux"``.
        cpus: the processors that the library has variants for.
    """
    properties = ["ort_gridsample ops", str(FORMAT), "of release", release, "for", machine, *cpus]
    digest = hashlib.sha256(library).hexdigest()
    return library + f"\n{' '.join(properties)} sha256 {digest}\n".encode()


def read_trailer(content: bytes) -> Trailer | None:
    """Return the trailer of a library with this ``content``; None if there is none."""
    match = _TRAILER.search(content)
    if match is None:
        return None
    version, release, machine, cpus, digest = (group.decode() for group in match.groups())
    return Trailer(
        format=int(version),
        release=release,
        machine=machine,
        cpus=cpus,
        digest=digest,
        start=match.start(),
    )


def expect_trailer(content: bytes) -> Trailer:
    """Return the trailer of a library with this ``content``.

    Raises:
        ValueError: these are not the bytes of a library.
    """
    trailer = read_trailer(content)
    if trailer is None:
        raise ValueError("these are not the bytes of a library that 'ort-gridsample library' wrote")
    return trailer


def library_name(trailer: Trailer) -> str:
    """Return the file name of a library in a wheel."""
    return f"libort_gridsample{SUFFIXES[trailer.machine.partition('-')[2]]}"


def wheel_tag(content: bytes) -> str:
    """Return the tag of a wheel that contains the library with this ``content``.

    Raises:
        ValueError: these are not the bytes of a library.
    """
    minors = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", content)]
    glibc_minor = max([_OLDEST_GLIBC_MINOR, *minors])
    platform = _PLATFORMS[expect_trailer(content).machine]
    return f"py3-none-{platform.format(glibc_minor)}"
