"""The documentation pages and their code blocks."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PATTERNS = (
    "*.md",
    ".github/*.md",
    ".github/docs/*.md",
    "ort_gridsample/*.md",
    "examples/*.md",
)
FILES = [file for pattern in PATTERNS for file in sorted(REPOSITORY.glob(pattern))]
#: The path of each page in the repository -> its text.
PAGES = {file.relative_to(REPOSITORY).as_posix(): file.read_text("utf-8") for file in FILES}
TEXT = "\n".join(PAGES.values())


def blocks(language: str) -> list[str]:
    """Return the code blocks of all pages that are marked with ``language``."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)
