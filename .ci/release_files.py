"""Write the files of a release to a folder: what .ci/release runs in an environment with all tools.

A platform without a wheel here gets the sdist from pip, and builds a pure wheel from it. A pure
wheel in the release would save this step, but its dependencies would differ from those of the
other wheels: uv and Poetry read the dependencies from one wheel, for all platforms.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from llvmlite.binding import llvm_version_info
from packageurl import PackageURL

import ort_gridsample
from ort_gridsample.custom_ops.compiled_ops.linking import MACHINES
from ort_gridsample.kernels.library_trailer import SUFFIXES
from ort_gridsample.library import wheel
from ort_gridsample.library.builder import build_libraries

ROOT = Path(__file__).parents[1]
RELEASE = ort_gridsample.__version__
SBOM = "ort-gridsample.cdx.json"
CHECKSUMS = "SHA256SUMS"


def library_name(target: str) -> str:
    """Return the file name of the library for a machine."""
    return f"libort_gridsample-{RELEASE}-{target}{SUFFIXES[MACHINES[target].system]}"


def write_release(
    folder: Path,
    targets: Sequence[str] = tuple(MACHINES),
    models: Sequence[str] | None = None,
    cpus: Sequence[str] = (),
) -> None:
    """Build everything, and write it to a new ``folder``. If anything fails, there is no folder.

    Args:
        folder: the folder, which may exist if it is empty.
        targets: the names of the machines.
        models: the files of models. The libraries have only what they need. None: everything.
        cpus: the processors that the libraries have variants for. By default they have all.

    Raises:
        FileExistsError: the folder is not empty.
        subprocess.CalledProcessError: a file cannot be built or checked.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        files = Path(temporary) / "files"
        files.mkdir()
        libraries = {target: files / library_name(target) for target in targets}
        build_libraries(libraries, cpus, models)
        write_files(files, libraries)
        check_distributions(files)
        files.replace(folder)


def write_files(folder: Path, libraries: Mapping[str, Path]) -> None:
    """Write all other files of a release to the ``folder`` of its ``libraries``."""
    for library in libraries.values():
        build_distribution(folder, "wheel", library)
        wheel.pack(library.read_bytes(), folder)
    build_distribution(folder, "sdist")
    shutil.copy(ROOT / "LICENSE", folder)
    (folder / SBOM).write_text(sbom(libraries), encoding="utf-8")
    (folder / CHECKSUMS).write_text(checksums(folder), encoding="utf-8")


def build_distribution(folder: Path, kind: str, library: Path | None = None) -> None:
    """Write the sdist, or the wheel with a ``library`` inside, to a ``folder``.

    Raises:
        subprocess.CalledProcessError: hatchling failed.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "ORT_GRIDSAMPLE_LIBRARY"
    }
    if library is not None:
        environment["ORT_GRIDSAMPLE_LIBRARY"] = str(library.resolve())
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind]
    command += ["--directory", str(folder.resolve())]
    subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)


def check_distributions(folder: Path) -> None:
    """Check the metadata of all wheels and sdists.

    Raises:
        subprocess.CalledProcessError: twine found an error or has a warning.
    """
    paths = sorted(str(path) for path in folder.iterdir() if path.suffix in (".whl", ".gz"))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *paths], check=True)


def checksums(folder: Path) -> str:
    """Return the lines of ``sha256sum`` for the files of a folder."""
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    return "".join(lines)


def digest(path: Path) -> str:
    """Return the SHA-256 hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- The bill of materials ---


def sbom(libraries: Mapping[str, Path]) -> str:
    """Return the CycloneDX bill of materials: the libraries, and what compiled and linked them.

    Code of Numba, LLVM and Zig can be part of a library. llvmlite only connects the first two.

    Raises:
        ValueError: the bill does not have the format of CycloneDX.
    """
    release = pypi_component("ort-gridsample", RELEASE, "MIT")
    numba = pypi_component("numba", metadata.version("numba"), "BSD-2-Clause")
    llvmlite = pypi_component(
        "llvmlite",
        metadata.version("llvmlite"),
        "BSD-2-Clause AND Apache-2.0 WITH LLVM-exception",
        scope=ComponentScope.EXCLUDED,
    )
    llvm_version = ".".join(map(str, llvm_version_info))
    llvm = component(
        "LLVM",
        llvm_version,
        "Apache-2.0 WITH LLVM-exception",
        PackageURL("github", "llvm", "llvm-project", f"llvmorg-{llvm_version}"),
    )
    zig = pypi_component("ziglang", metadata.version("ziglang"), "MIT")
    files = [
        Component(
            name=path.name,
            type=ComponentType.FILE,
            bom_ref=path.name,
            version=RELEASE,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest(path))],
        )
        for path in libraries.values()
    ]
    bom = Bom(components=[numba, llvmlite, llvm, zig, *files])
    bom.metadata.component = release
    bom.metadata.timestamp = build_time()
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, " ".join(map(digest, libraries.values())))
    bom.register_dependency(release, files)
    for file in files:
        bom.register_dependency(file, [numba, llvm, zig])
    bom.register_dependency(numba, [llvmlite])
    bom.register_dependency(llvmlite, [llvm])
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise ValueError(f"the bill of materials has an error: {error}")
    return text + "\n"


def pypi_component(
    name: str, version: str, license_expression: str, scope: ComponentScope | None = None
) -> Component:
    """Return a component that is a distribution of the Python package index."""
    return component(
        name, version, license_expression, PackageURL("pypi", None, name, version), scope
    )


def component(
    name: str,
    version: str,
    license_expression: str,
    purl: PackageURL,
    scope: ComponentScope | None = None,
) -> Component:
    """Return a component that is a library of software."""
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        scope=scope,
        licenses=[LicenseExpression(license_expression)],
    )


def build_time() -> datetime:
    """Return the time of the commit, if .ci/release runs this; otherwise, that of this run."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    if seconds is None:
        return datetime.now(UTC)
    return datetime.fromtimestamp(int(seconds), UTC)


def main(arguments: Sequence[str]) -> None:
    """Run the command, and print the size of each file."""
    parser = argparse.ArgumentParser(".ci/release", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder to write, which must be new or empty")
    parser.add_argument(
        "--target", nargs="+", default=list(MACHINES), help="the machines (default: all)"
    )
    parser.add_argument("--model", nargs="+", help="only what these models need")
    parser.add_argument("--cpu", nargs="+", default=[], help="only these processors (default: all)")
    options = parser.parse_args(arguments)
    write_release(options.folder, options.target, options.model, options.cpu)
    for path in sorted(options.folder.iterdir()):
        print(f"{path.stat().st_size:10,d}  {path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
