"""Put a library of the compiled ops into the wheel, and its platform into the wheel's tag."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: The target of a library -> the wheel's platform tag, with the glibc that the library needs.
PLATFORMS = {
    "x86_64-linux": "manylinux_{}_x86_64",
    "aarch64-linux": "manylinux_{}_aarch64",
    "x86_64-win32": "win_amd64",
    "aarch64-darwin": "macosx_11_0_arm64",
}


class LibraryHook(BuildHookInterface[Any]):
    """As hatchling calls it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Take in the library that ORT_GRIDSAMPLE_LIBRARY names; without it the wheel is pure."""
        named = os.environ.get("ORT_GRIDSAMPLE_LIBRARY")
        if not named or version == "editable":
            return
        path = Path(named).resolve()
        content = path.read_bytes()
        machine = re.search(
            rb"\nort_gridsample ops \d+ of release \S+ for (\S+)[^\n]*\n\Z", content
        )
        if machine is None:
            raise ValueError(f"{named} is no library that 'ort-gridsample library' wrote")
        newest = max(
            [(2, 17), *((2, int(minor)) for minor in re.findall(rb"GLIBC_2\.(\d+)", content))]
        )
        platform = PLATFORMS[machine[1].decode()].format("_".join(map(str, newest)))
        build_data["force_include"][str(path)] = f"ort_gridsample/libort_gridsample{path.suffix}"
        build_data["pure_python"], build_data["tag"] = False, f"py3-none-{platform}"
