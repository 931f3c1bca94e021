"""The machine that functions are compiled for: this machine, unless another one is chosen first."""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection

#: The system, as in ``sys.platform``.
system = sys.platform
_PROCESSORS = {"AMD64": "x86_64", "arm64": "aarch64"}
#: The processor: ``"x86_64"`` or ``"aarch64"``.
processor = _PROCESSORS.get(platform.machine(), platform.machine())
#: The features of the processor among those that :func:`has` is called with. If they are None, the
#: features are those of this machine.
_features: Collection[str] | None = None


def choose(target_system: str, target_processor: str, features: Collection[str]) -> None:
    """Compile for another machine from now on.

    This must be called before any module is imported that calls :func:`has`.

    Args:
        target_system: as :data:`system`.
        target_processor: as :data:`processor`.
        features: the processor's features, by LLVM's names.
    """
    global system, processor, _features
    system = target_system
    processor = target_processor
    _features = features


def is_chosen() -> bool:
    """Whether functions are compiled for a machine that :func:`choose` was called with."""
    return _features is not None


def gathers_fast() -> bool:
    """Whether gather instructions are faster than single loads.

    They are on processors with AVX512-FP16, such as Sapphire Rapids. Older processors, where they
    are slower, lack this feature.
    """
    return has("avx512fp16")


def has_fast_vectors() -> bool:
    """Whether the processor has fused multiply-add, and vectors that are worth filling one by one.

    All 64-bit ARM processors have both. They fill a vector by loads into its lanes.
    """
    return processor == "aarch64" or has("avx2", "fma")


def register_size() -> int:
    """Return the size in bytes of the vectors that hold coordinates or weights.

    Without AVX-512, x86-64 has a size that AVX2 has, whether or not the processor has AVX2. ARM has
    16 bytes. With twice the size, cubic takes 1.1 to 1.3 times the instructions there, because its
    weights and masks exceed the registers; linear takes as many, nearest 0.95 times.
    """
    if processor == "aarch64":
        return 16
    return 64 if has("avx512f") else 32


def has(*features: str) -> bool:
    """Whether the processor has all these ``features``, by LLVM's names."""
    if _features is not None:
        return set(features) <= {*_features}
    from llvmlite.binding import get_host_cpu_features
    from numba.core import config

    # With NUMBA_CPU_FEATURES, or NUMBA_CPU_NAME=generic, Numba compiles for these features. LLVM
    # ends the process at an instruction that they lack.
    if config.CPU_FEATURES is not None:
        return {f"+{feature}" for feature in features} <= {*config.CPU_FEATURES.split(",")}
    return all(map(get_host_cpu_features().get, features))
