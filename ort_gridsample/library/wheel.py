"""Build the wheel ``onnxruntime-ep-gridsample``: the execution provider for onnxruntime.

The wheel is for onnxruntime 1.24 and newer. It contains a library and two functions, as packages of
execution providers do by convention, and depends on no other package. The command is::

    python -m ort_gridsample.library.wheel OUT_FOLDER
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib.metadata
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..custom_ops.compiled_ops.linking import MACHINES
from ..custom_ops.provider.definitions import NAME
from ..graph.files import Model, atomic_write
from ..kernels.library_trailer import expect_trailer, library_name, wheel_tag
from .builder import CPUS, NATIVE, build_library

#: The name of the distribution, and of its package.
DISTRIBUTION = "onnxruntime_ep_gridsample"
#: The distribution of this package.
_PACKAGE = "ort-gridsample"

#: The date of all files, so that the same library gives the same wheel.
_DATE = (1980, 1, 1, 0, 0, 0)

_MODULE = '''"""An execution provider of ONNX Runtime for GridSample and AffineGrid."""

from pathlib import Path

__version__ = "{release}"


def get_library_path() -> str:
    """Return the path of the library, for onnxruntime.register_execution_provider_library."""
    return str(Path(__file__).with_name("{library}"))


def get_ep_names() -> list[str]:
    """Return the names of the providers in the library."""
    return ["{provider}"]


def get_ep_name() -> str:
    """Return the name of the only provider in the library."""
    return get_ep_names()[0]
'''

_METADATA = """Metadata-Version: 2.4
Name: onnxruntime-ep-gridsample
Version: {release}
Summary: GridSample and AffineGrid for ONNX Runtime: every type, rank and mode.
Author: The ort-gridsample developers
License-Expression: MIT
License-File: LICENSE
Keywords: onnx,onnxruntime,execution provider,GridSample,grid_sample,AffineGrid,deformable attention
Classifier: Development Status :: 4 - Beta
Classifier: Intended Audience :: Developers
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Classifier: Typing :: Typed
{addresses}Requires-Python: >=3.8
Description-Content-Type: text/markdown

An execution provider for onnxruntime 1.24 and newer, built by ort-gridsample. It runs GridSample
and AffineGrid nodes of unmodified models:

```python
import onnxruntime
import onnxruntime_ep_gridsample as ep

(name,) = ep.get_ep_names()
onnxruntime.register_execution_provider_library(name, ep.get_library_path())
options = onnxruntime.SessionOptions()
devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
options.add_provider_for_devices(devices, {{}})
session = onnxruntime.InferenceSession("model.onnx", options)
```
"""

_WHEEL = """Wheel-Version: 1.0
Generator: ort_gridsample
Root-Is-Purelib: false
Tag: {tag}
"""


def build_wheel(
    folder: Path,
    cpu: str | Sequence[str] = (),
    target: str | None = None,
    models: Model | Iterable[Model] | None = None,
) -> Path:
    """Build a library, and write it to ``folder`` as a wheel.

    Args:
        folder: the folder of the wheel, which must exist.
        cpu: as for :func:`.builder.build_library`.
        target: as for :func:`.builder.build_library`.
        models: as for :func:`.builder.build_library`.

    Returns:
        The path of the wheel.

    Raises:
        GridSampleError: see :func:`.builder.build_library`.
        ImportError: see :func:`.builder.build_library`.
        RuntimeError: see :func:`.builder.build_library`.
        OSError: the wheel cannot be written, or the license cannot be read.
    """
    with tempfile.TemporaryDirectory() as temporary:
        library = Path(temporary) / "library"
        build_library(library, cpu, target, models)
        return pack(library.read_bytes(), folder)


def pack(library: bytes, folder: Path) -> Path:
    """Write a wheel with a ``library`` to ``folder``, and return its path.

    Raises:
        ValueError: these are not the bytes of a library.
        OSError: the wheel cannot be written, or the license cannot be read.
    """
    trailer = expect_trailer(library)
    release = trailer.release
    tag = wheel_tag(library)
    file_name = library_name(trailer)
    module = _MODULE.format(release=release, library=file_name, provider=NAME)
    info = f"{DISTRIBUTION}-{release}.dist-info"
    files = {
        f"{DISTRIBUTION}/__init__.py": module.encode(),
        f"{DISTRIBUTION}/py.typed": b"",
        f"{DISTRIBUTION}/{file_name}": library,
        f"{info}/METADATA": _METADATA.format(release=release, addresses=_addresses()).encode(),
        f"{info}/licenses/LICENSE": _license(),
        f"{info}/WHEEL": _WHEEL.format(tag=tag).encode(),
    }
    rows = [f"{name},{_digest(content)},{len(content)}" for name, content in files.items()]
    record = f"{info}/RECORD"
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    path = folder / f"{DISTRIBUTION}-{release}-{tag}.whl"
    _write_archive(path, files, executable=f"{DISTRIBUTION}/{file_name}")
    return path


def _addresses() -> str:
    """Return the lines of the metadata with the addresses of this package, if it has any."""
    try:
        metadata = importlib.metadata.metadata(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:  # such as a source tree on Python's path
        return ""
    return "".join(f"Project-URL: {url}\n" for url in metadata.get_all("Project-URL") or ())


def _license() -> bytes:
    """Return the license, of the installed package or of the source tree.

    Raises:
        FileNotFoundError: neither has it.
    """
    source_tree = Path(__file__).parents[2] / "LICENSE"
    if source_tree.exists():
        return source_tree.read_bytes()
    for file in importlib.metadata.files(_PACKAGE) or ():
        if file.name == "LICENSE":
            return Path(str(file.locate())).read_bytes()
    raise FileNotFoundError(f"the installation of {_PACKAGE} lacks the file LICENSE")


def _write_archive(path: Path, files: Mapping[str, bytes], executable: str) -> None:
    """Write ``files``, name -> content, to a zip archive. One of them is executable."""
    with atomic_write(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.create_system = 3  # Unix, on every system: the same library gives the same wheel
            entry.external_attr = (0o755 if name == executable else 0o644) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)


def _digest(content: bytes) -> str:
    """Return the hash of a file as a RECORD has it."""
    digest = hashlib.sha256(content).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def main(arguments: Sequence[str]) -> None:
    """Build a wheel, as the command that this module's docstring shows."""
    parser = argparse.ArgumentParser("python -m ort_gridsample.library.wheel", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder of the wheel")
    cpus = f"processors: {', '.join(CPUS)}, or {NATIVE}"
    parser.add_argument("--cpu", nargs="+", default=[], help=cpus)
    parser.add_argument("--target", help=f"build for another machine: {', '.join(MACHINES)}")
    parser.add_argument("--model", nargs="+", help="only what these models need")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    print(build_wheel(options.folder, options.cpu, options.target, options.model))


if __name__ == "__main__":
    main(sys.argv[1:])
