"""``python -m tests``: everything that must hold before a commit is shown to others, with the extra ``dev`` installed.

Without words all of it, in this order: lint, types, coverage, which is the tests and how much of the package they run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

#: The commands of each part, for Python's ``-m``.
PARTS = {
    "lint": ("ruff check .", "ruff format --check ."),
    "types": ("mypy",),
    "tests": ("pytest -n auto",),
    "coverage": ("coverage erase", "coverage run -m pytest -n auto", "coverage combine --quiet", "coverage report"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, up to the first that fails; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--list", action="store_true", help="say what would be run, and run nothing")
    asked = parser.parse_args(arguments)
    unknown = [part for part in asked.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}, only {', '.join(PARTS)}")
    for part in asked.parts or [part for part in PARTS if part != "tests"]:
        for command in PARTS[part]:
            print(f"== python -m {command}", flush=True)
            status = 0 if asked.list else subprocess.call([sys.executable, "-m", *command.split()], cwd=REPOSITORY)
            if status:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
