"""The machine that functions are compiled for: this one, unless another is chosen before a module here asks."""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection

#: Its system, as ``sys.platform`` names it, and its machine, ``"x86_64"`` or ``"aarch64"``; and what its processor has
#: of what modules ask for (None: what this one has).
system, machine = sys.platform, {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
_features: Collection[str] | None = None


def choose(its_system: str, its_machine: str, features: Collection[str]) -> None:
    """Compile for another machine from now on: to be called before any module is imported that asks."""
    global system, machine, _features
    system, machine, _features = its_system, its_machine, features


def has(*features: str) -> bool:
    """Whether its processor has all these ``features``, by LLVM's names."""
    if _features is not None:
        return set(features) <= {*_features}
    from llvmlite.binding import get_host_cpu_features

    return all(map(get_host_cpu_features().get, features))
