"""The machine that functions are compiled for: this machine, unless another one is chosen first."""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection

#: The system, as in ``sys.platform``.
system = sys.platform
_MACHINES = {"AMD64": "x86_64", "arm64": "aarch64"}
#: The machine: ``"x86_64"`` or ``"aarch64"``.
machine = _MACHINES.get(platform.machine(), platform.machine())
#: The processor's features among those that :func:`has` is called with. If it is None, they are
#: those of this machine.
_features: Collection[str] | None = None


def choose(target_system: str, target_machine: str, features: Collection[str]) -> None:
    """Compile for another machine from now on.

    This must be called before any module is imported that calls :func:`has`.

    Args:
        target_system: as :data:`system`.
        target_machine: as :data:`machine`.
        features: the processor's features, by LLVM's names.
    """
    global system, machine, _features
    system = target_system
    machine = target_machine
    _features = features


def has(*features: str) -> bool:
    """Whether the processor has all these ``features``, by LLVM's names."""
    if _features is not None:
        return set(features) <= {*_features}
    from llvmlite.binding import get_host_cpu_features

    return all(map(get_host_cpu_features().get, features))
