"""Fresh virtual environments, and what is built to be installed in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

#: Without what this process, or its user, has set up for other environments.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "VIRTUAL_ENV"))}
#: Most of what is installed is never imported: Python compiles what is.
CLEAN |= {"PIP_COMPILE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}


class FailedError(Exception):
    """A command ended badly; what it said."""


def call(*command: object, folder: Path | None = None) -> str:
    """What a command prints.

    Raises:
        FailedError: it did not end well.
    """
    done = subprocess.run([*map(str, command)], cwd=folder, env=CLEAN, capture_output=True, text=True)
    if done.returncode:
        raise FailedError(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is made from it, in ``folder``."""
    call(sys.executable, "-m", "build", "--outdir", folder, REPOSITORY)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def pythons(version: str) -> Iterator[str]:
    """Where a Python of this ``version`` may be: on the path, one of pyenv's, one that uv knows."""
    yield f"python{version}"
    yield from map(
        str, sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    )
    if shutil.which("uv"):
        yield subprocess.run(["uv", "python", "find", version], capture_output=True, text=True).stdout.strip()


def find_python(version: str) -> str | None:
    """A Python of this ``version``, such as "3.10", that runs."""
    for path in filter(shutil.which, filter(None, pythons(version))):
        asked = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
        )
        if asked.stdout.strip() == version:
            return path
    return None


def environment(folder: Path, python: str = sys.executable) -> Path:
    """The Python of a new environment in ``folder``."""
    call(python, "-m", "venv", folder)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"
