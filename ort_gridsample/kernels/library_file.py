"""Library files: the trailer of a library of compiled ops, and which library this process uses."""

import hashlib
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..errors import GridSampleError
from . import target

#: The suffix of a shared library, by system.
SUFFIXES = {"linux": ".so", "win32": ".dll", "darwin": ".dylib"}

#: The version of the libraries.
FORMAT = 1

#: The environment variable with the path of a library.
VARIABLE = "ORT_GRIDSAMPLE_LIBRARY"

#: The path of a library inside the package, without its suffix.
PACKAGED = Path(__file__).parents[1] / "libort_gridsample"

_TRAILER = re.compile(
    rb"\nort_gridsample ops (\d+) of release (\S+) for (\S+)((?: \S+)*)"
    rb" sha256 ([0-9a-f]{64})\n\Z"
)


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
        release: the release of this package.
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


@cache
def configured_library() -> Path | None:
    """Return the path of the library that this process uses; None if there is none.

    It is the one that the environment variable names, or else the one inside the package.
    """
    path = os.environ.get(VARIABLE)
    if path:
        # onnxruntime does not look for a relative path in the current folder.
        return Path(path).absolute()
    candidates = (PACKAGED.with_suffix(suffix) for suffix in SUFFIXES.values())
    return next((path for path in candidates if path.exists()), None)


@cache
def validate(path: Path, any_machine: bool = False) -> str:
    """Check that the library at ``path`` is complete and can be used.

    Args:
        path: the library.
        any_machine: whether the library may be for another machine.

    Returns:
        The release that built it, its machine and processors.

    Raises:
        GridSampleError: the file is no library, is damaged, or cannot be used here.
    """
    where = f"library {str(path)!r}"
    try:
        content = path.read_bytes()
    except OSError as error:
        found = f"not readable: {error.strerror}"
        raise GridSampleError(where, "file", found, "a library") from error
    trailer = read_trailer(content)
    if trailer is None:
        found = "not an ort_gridsample library, or truncated"
        raise GridSampleError(where, "file", found, "the output of 'ort-gridsample library'")
    if trailer.digest != hashlib.sha256(content[: trailer.start]).hexdigest():
        expected = "content that matches its hash: build or copy the library again"
        raise GridSampleError(where, "content", "damaged", expected)
    if trailer.format != FORMAT:
        found = f"{trailer.format}, of release {trailer.release}"
        raise GridSampleError(where, "format", found, f"{FORMAT}: build it again")
    this_machine = f"{target.processor}-{target.system}"
    if trailer.machine != this_machine and not any_machine:
        raise GridSampleError(where, "machine", trailer.machine, this_machine)
    return f"release {trailer.release} for {trailer.machine}{trailer.cpus}"
