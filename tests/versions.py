"""``python -m tests.versions``: the tests of the sdist with the oldest releases of everything, the newest, and between.

For developers: each set gets a virtual environment of its own, anew, and the whole suite runs in the sdist's folder.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .environments import CLEAN, FailedError, build, call, environment, find_python

PACKAGES = ("onnxruntime", "onnxruntime-extensions", "onnx", "numpy", "numba")


class Set(NamedTuple):
    """Releases that are installed together; of what ``pins`` leaves open the newest that there is."""

    name: str
    python: str
    pins: str = ""


SETS = (
    Set(
        "oldest", "3.10", "onnxruntime==1.17.0 onnxruntime-extensions==0.11.0 onnx==1.17.0 numpy==1.26.0 numba==0.61.0"
    ),
    Set("older", "3.11", "onnxruntime==1.20.1 onnxruntime-extensions==0.13.0 onnx==1.18.0 numpy==2.0.0 numba==0.62.0"),
    # The extensions that are Windows' last.
    Set("newer", "3.12", "onnxruntime==1.24.1 onnxruntime-extensions==0.15.0 onnx==1.20.0 numpy==2.3.0 numba==0.65.0"),
    Set("newest", "3.13"),
    # Without onnxruntime-extensions, as long as there is none: all but the ops.
    Set("next", "3.14"),
)

RELEASES = f"""
from importlib import metadata
def release(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
print(*map(release, {PACKAGES}))
"""


def row(each: Set, releases: Sequence[object], outcome: str) -> str:
    """A line of the table."""
    columns = zip((each.name, each.python, *releases), (8, 7, 12, 23, 7, 7, 7), strict=True)
    return " ".join(f"{text!s:{width}}" for text, width in columns) + f" {outcome}"


def attempt(each: Set, sdist: Path, folder: Path, arguments: Sequence[str]) -> tuple[Sequence[str], str, bool]:
    """The releases that were installed, how the tests ended, in words, and whether that is well."""
    python = find_python(each.python)
    if python is None:
        return ["-"] * len(PACKAGES), f"no Python {each.python} on this machine", True
    python = str(environment(folder / "environment", python))
    call(python, "-m", "pip", "install", "--quiet", f"{sdist}[test]", *each.pins.split())
    releases = call(python, "-c", RELEASES).split()
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)
    (tree,) = folder.glob("ort_gridsample-*")
    began = time.monotonic()
    command = [python, "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=tree, env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout[-20000:], flush=True)
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", done.stdout[-500:])
    outcome = f"{', '.join(counts) or f'ended with {done.returncode}'} in {time.monotonic() - began:.0f} s"
    return releases, outcome, done.returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sets that are asked for; 0 where every test passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=(__doc__ or "").partition("\n\n")[2])
    names = [each.name for each in SETS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="SET", help=" ".join(names))
    parser.add_argument("--list", action="store_true", help="say what the sets are, and run none")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    asked = parser.parse_args(arguments)
    chosen = [each for each in SETS if each.name in asked.only]
    if asked.list:
        for each in chosen:
            print(f"{each.name:8} Python {each.python} {each.pins or 'the newest of everything'}")
        return 0
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        sdist, _ = build(Path(folder) / "dist")
        print(row(Set("set", "Python"), PACKAGES, "tests"), flush=True)
        for each in chosen:
            place = Path(folder) / each.name
            place.mkdir()
            try:
                releases, outcome, well = attempt(each, sdist, place, asked.pytest)
            except FailedError as error:
                print(error)
                releases, outcome, well = ["-"] * len(PACKAGES), "could not be installed", False
            passed &= well
            print(row(each, releases, outcome), flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
