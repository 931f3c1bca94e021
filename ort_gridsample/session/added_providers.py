"""The execution providers that were added to the options of a session.

Programs add the devices of plugins (``add_provider_for_devices``), or a policy that selects devices
(``set_provider_selection_policy``). Options do not list their providers, but a session does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import onnx
import onnxruntime
from onnx import TensorProto, helper

from .. import versions
from .config_entries import config_entries
from .options import has_providers, open_quietly
from .plugins import CPU, Devices, Providers, devices_of, is_installed, plugins

#: The release from which on a session lists the options of plugins.
_LISTS_OPTIONS = "1.28"


class AddedProviders(NamedTuple):
    """The providers that were added to options, in order.

    Attributes:
        providers: their names and options.
        devices: the indices of their devices among those of the provider, for plugins.
    """

    providers: Providers
    devices: Devices


def added_providers(options: onnxruntime.SessionOptions | None) -> AddedProviders:
    """Return the providers before the CPU's that were added to options.

    Options do not list them. A session of a tiny model does.
    """
    if options is None or not has_providers(options):
        return AddedProviders([], {})
    try:
        session = open_quietly(options, _relu_model().SerializeToString())
    except Exception:  # onnxruntime raises it again for the model of the session
        return AddedProviders([], {})
    names = list[str](session.get_providers())
    if CPU in names:
        names = names[: names.index(CPU)]
    known_plugins = plugins()
    listed_options: Mapping[str, Mapping[str, str]] = session.get_provider_options()
    all_entries = None
    providers = []
    devices = dict[str, Sequence[int]]()
    for name in names:
        if not is_installed(name):
            continue
        provider_options = dict(listed_options.get(name, {}))
        if name in known_plugins:
            if not versions.is_at_least(onnxruntime.__version__, _LISTS_OPTIONS):
                if all_entries is None:
                    all_entries = config_entries(options)
                provider_options = _options_among(all_entries, name)
            devices[name] = [_device_index(session, name)]
        providers.append((name, provider_options))
    return AddedProviders(providers, devices)


def _device_index(session: Any, name: str) -> int:
    """Return the index of the device that a session uses among those of a provider.

    0 if it is unknown, because the provider runs no node of the session.
    """
    used_keys = [
        _device_key(device)
        for device in session.input_epdevices
        if device is not None and device.ep_name == name
    ]
    indices = (i for i, device in enumerate(devices_of(name)) if _device_key(device) in used_keys)
    return next(indices, 0)


def _device_key(device: Any) -> tuple[Any, ...]:
    hardware = device.device
    metadata = [dict(source) for source in (device.ep_metadata, hardware.metadata)]
    return hardware.type, hardware.vendor_id, hardware.device_id, *map(str, metadata)


def _options_among(entries: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the options of a plugin among configuration entries, where onnxruntime keeps them."""
    prefix = f"ep.{name.lower()}."
    return {
        key.removeprefix(prefix): value for key, value in entries.items() if key.startswith(prefix)
    }


def _relu_model() -> onnx.ModelProto:
    """Return a model of a node that most providers run."""
    X, Y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "XY")
    graph = helper.make_graph([helper.make_node("Relu", ["X"], ["Y"])], "relu", [X], [Y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
