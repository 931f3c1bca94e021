"""Libraries of the compiled ops, as files: which one sessions use, and whether it is a whole one of this release."""

import hashlib
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ...errors import GridSampleError
from ...kernels import target
from .linking import SUFFIXES

#: The version of the libraries: 2 has the ops in the domain ``ort_gridsample.compiled``, 1 had them elsewhere.
FORMAT = 2
#: The environment variable that names a library, and where one lies in the package.
VARIABLE = "ORT_GRIDSAMPLE_LIBRARY"
OWN = Path(__file__).parents[2] / "libort_gridsample"
#: What a library ends with: the interface of its ops, the release that made it, its machine, the levels of its
#: processors, and the hash of all before.
_END = re.compile(rb"\nort_gridsample ops (\d+) of release (\S+) for (\S+)((?: \S+)*) sha256 ([0-9a-f]{64})\n\Z")


def ended(library: bytes, release: str, machine: str, cpus: Sequence[str]) -> bytes:
    """The bytes of a ``library`` with what it ends with."""
    said = " ".join(["ort_gridsample ops", str(FORMAT), "of release", release, "for", machine, *cpus])
    return library + f"\n{said} sha256 {hashlib.sha256(library).hexdigest()}\n".encode()


@cache
def found() -> Path | None:
    """The library that sessions use: the one that the environment names, or that lies in the package; None: none."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    return next((path for suffix in SUFFIXES.values() if (path := OWN.with_suffix(suffix)).exists()), None)


@cache
def checked(path: Path, anywhere: bool = False) -> str:
    """What the library at ``path``, for this machine or one ``anywhere``, says of itself, checked to be of use."""
    where = f"library {str(path)!r}"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise GridSampleError(where, "file", f"not to be read: {error.strerror}", "a library") from error
    end = _END.search(content)
    if end is None:
        raise GridSampleError(where, "end", "not a library's", "what 'ort-gridsample library' writes, whole")
    interface, release, machine, cpus, digest = (each.decode() for each in end.groups())
    if digest != hashlib.sha256(content[: end.start()]).hexdigest():
        raise GridSampleError(where, "content", "damaged", "what its hash says: build or copy it again")
    if int(interface) != FORMAT:
        raise GridSampleError(where, "interface", f"{interface}, of release {release}", f"{FORMAT}: build it again")
    if machine != (this := f"{target.machine}-{target.system}") and not anywhere:
        raise GridSampleError(where, "machine", machine, this)
    return f"release {release} for {machine}{cpus}"
