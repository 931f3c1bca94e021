"""How hatchling builds the wheel: its library, platform, requirements, addresses and description.

A wheel that is built with ``ORT_GRIDSAMPLE_LIBRARY=PATH`` contains this library of compiled ops.
Its tag is the library's platform, and it does not require Numba. Without this variable the wheel
is pure.

The addresses are those of the repository that a build on GitHub runs in, by its environment
variables. The file PKG-INFO of an sdist has them, too. Other builds have no addresses.
"""

from __future__ import annotations

import os
import re
import runpy
from email import message_from_string
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

#: The name of an address -> its path in the repository.
ADDRESSES = {
    "Repository": "",
    "Documentation": "#readme",
    "Issues": "/issues",
    "Changelog": "/releases",
}
#: A picture or a link to a file of the repository: "!" of a picture, the text, the path.
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https:|#)([^)]*)\)")


class LibraryHook(BuildHookInterface[Any]):
    """As hatchling calls it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Take in the library that ORT_GRIDSAMPLE_LIBRARY names; without it the wheel is pure."""
        path = named_library()
        if path is None or version == "editable":
            return
        content = path.read_bytes()
        module = runpy.run_path(f"{self.root}/ort_gridsample/kernels/library_trailer.py")
        name = module["library_name"](module["expect_trailer"](content))
        build_data["force_include"][str(path)] = f"ort_gridsample/{name}"
        build_data["pure_python"] = False
        build_data["tag"] = module["wheel_tag"](content)


class ProjectHook(MetadataHookInterface):
    """Sets the project's requirements, addresses and description, as hatchling calls it."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``dependencies``, ``urls`` and ``readme`` of the project's ``metadata``.

        The requirements are those of the hook's table in pyproject.toml.
        """
        metadata["dependencies"] = [
            requirement
            for requirement in self.config["dependencies"]
            if named_library() is None or not requirement.startswith("numba")
        ]
        root = Path(self.root)
        packed = root / "PKG-INFO"
        if packed.exists():  # an sdist, whose description has its addresses already
            fields = message_from_string(packed.read_text(encoding="utf-8"))
            urls = dict(field.split(", ", 1) for field in fields.get_all("Project-URL", []))
            text = fields.get_payload()
        else:
            repository = repository_address(os.environ)
            urls = {name: repository + path for name, path in ADDRESSES.items() if repository}
            readme = (root / "README.md").read_text(encoding="utf-8")
            revision = os.environ.get("GITHUB_SHA", "HEAD")
            text = with_absolute_links(readme, repository, revision)
        metadata["urls"] = urls
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def named_library() -> Path | None:
    """Return the path of the library that a wheel is built with; None if the wheel is pure."""
    name = os.environ.get("ORT_GRIDSAMPLE_LIBRARY")
    return Path(name).resolve() if name else None


def repository_address(environment: dict[str, str] | os._Environ[str]) -> str:
    """Return the address of the repository that a build on GitHub runs in; else ""."""
    server = environment.get("GITHUB_SERVER_URL")
    name = environment.get("GITHUB_REPOSITORY")
    return f"{server}/{name}" if server and name else ""


def with_absolute_links(text: str, repository: str, revision: str) -> str:
    """Return Markdown ``text`` for a page that has no repository around it.

    Links to files become links to the ``revision`` of the ``repository``. Without a repository, a
    link becomes its text, and a picture its description.
    """

    def absolute(link: re.Match[str]) -> str:
        is_picture, shown, path = bool(link[1]), link[2], link[3]
        if not repository:
            return f"*{shown}*" if is_picture else shown
        kind = "raw" if is_picture else "blob"
        return f"{link[1]}[{shown}]({repository}/{kind}/{revision}/{path})"

    return _LINK.sub(absolute, text)
