"""Library files: which one this process uses, and whether it can be used."""

import hashlib
import os
from functools import cache
from pathlib import Path

from ..errors import GridSampleError
from . import target
from .library_trailer import FORMAT, SUFFIXES, read_trailer

#: The environment variable with the path of a library.
VARIABLE = "ORT_GRIDSAMPLE_LIBRARY"

#: The path of a library inside the package, without its suffix.
PACKAGED = Path(__file__).parents[1] / "libort_gridsample"


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
