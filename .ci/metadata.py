"""The README as a registry shows it, without the repository around it: links and pictures lead to the repository.

As long as pyproject.toml names none (``urls.Repository``), a link is its text, and a picture its description.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: Code, which stays as it is, or a link or picture that is not complete in itself: its "!", text, page and place there.
_RELATIVE = re.compile(
    r"```.*?```|`[^`]*`|(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:)(?P<page>[^)#]+)(?P<place>#[^)]*)?\)",
    re.DOTALL,
)


def absolute(text: str, repository: str | None) -> str:
    """The Markdown ``text`` with links into ``repository``; with none of its own where there is no repository."""

    def link(match: re.Match[str]) -> str:
        picture, words, page, place = match.groups(default="")
        if not page:  # code
            return match[0]
        if repository is None:
            return f"*{words}*" if picture else words
        kind = "raw" if picture else "blob"
        return f"{picture}[{words}]({repository.rstrip('/')}/{kind}/HEAD/{page}{place})"

    return _RELATIVE.sub(link, text)


class Metadata(MetadataHookInterface):
    """What the build asks for."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README to what pyproject.toml says of the project."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository)}
