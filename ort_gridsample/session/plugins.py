"""Execution providers that are plugins: libraries that a program registers with onnxruntime.

onnxruntime lists their devices (``get_ep_devices``). A session uses a plugin if its devices were
added to the options of the session. Newer releases also find a plugin by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import onnxruntime

from .. import versions
from ..custom_ops.provider.definitions import NAME as OWN_NAME

CPU = "CPUExecutionProvider"
#: The release from which on a session finds all plugins by their names. 1.28 finds only those whose
#: names are not names of providers that other builds of onnxruntime contain.
_FINDS_PLUGINS = "1.32"
#: The end of the name under which a library is registered that lists devices this machine lacks.
_VIRTUAL = ".virtual"

#: Execution providers with their options.
Providers: TypeAlias = Sequence[tuple[str, Mapping[str, str]]]
#: Name of a plugin -> the indices of the devices to use among those of the plugin. Of others, all
#: devices are used.
Devices: TypeAlias = Mapping[str, Sequence[int]]


class Plugin(NamedTuple):
    """The library of an execution provider.

    Attributes:
        registration_name: a name under which another process registers the library.
        library: its path.
    """

    registration_name: str
    library: str


def devices_of(name: str) -> list[Any]:
    """Return the devices of a provider, as ``OrtEpDevice``; none before onnxruntime 1.22."""
    return [device for device in _all_devices() if device.ep_name == name]


def _all_devices() -> list[Any]:
    with suppress(Exception):  # onnxruntime before 1.22, or a provider that fails
        return list(onnxruntime.get_ep_devices())
    return []


def plugins() -> dict[str, Plugin]:
    """Return the plugins of this process by the names of their providers.

    This package's own provider is not among them: a session has its ops without the provider.
    """
    found = dict[str, Plugin]()
    for device in _all_devices():
        library = _metadata(device).get("library_path", "")
        if library and device.ep_name not in (CPU, OWN_NAME):
            found.setdefault(device.ep_name, Plugin(_registration_name(device), library))
    return found


def _registration_name(device: Any) -> str:
    """Return a name under which another process registers the library of a device.

    onnxruntime does not tell the name in this process. Some libraries take the name of their
    provider from it. Others have a name of their own, and any name will do.
    """
    is_virtual = getattr(device.device, "metadata", {}).get("is_virtual") == "1"
    has_suffix = device.ep_name.endswith(_VIRTUAL)
    return f"{device.ep_name}{_VIRTUAL}" if is_virtual and not has_suffix else str(device.ep_name)


def _metadata(device: Any) -> Mapping[str, str]:
    return getattr(device, "ep_metadata", {})


def device_keys() -> list[str]:
    """Return what identifies the devices of this process, their drivers and their plugins."""
    keys = []
    for device in _all_devices():
        hardware = device.device
        metadata = dict(_metadata(device))
        library = metadata.get("library_path", "")
        key = (
            device.ep_name,
            hardware.vendor,
            hardware.device_id,
            sorted(metadata.items()),
            _file_key(library) if library else (),
        )
        keys.append(repr(key))
    return sorted(keys)


def _file_key(path: str) -> tuple[int, ...]:
    """Return what changes if a file is replaced; nothing if there is no such file."""
    with suppress(OSError):
        status = Path(path).stat()
        return status.st_size, status.st_mtime_ns
    return ()


def is_installed(name: str) -> bool:
    """Whether a session may have a provider, other than this package's own."""
    if name == OWN_NAME:
        return False
    return name in provider_names()


def provider_names() -> list[str]:
    """Return the names of the providers that a session may have."""
    return [*dict.fromkeys([*onnxruntime.get_available_providers(), *plugins()])]


def are_found_by_name(providers: Providers) -> bool:
    """Whether a session finds these providers if it gets their names."""
    if not providers or versions.is_at_least(onnxruntime.__version__, _FINDS_PLUGINS):
        return True
    return plugins().keys().isdisjoint(name for name, _ in providers)


def add_providers(options: onnxruntime.SessionOptions, providers: Providers) -> None:
    """Add providers to options, with all devices of those that are plugins."""
    known_plugins = plugins()
    for name, provider_options in providers:
        if name in known_plugins:
            options.add_provider_for_devices(devices_of(name), dict(provider_options))
        else:
            options.add_provider(name, dict(provider_options))
