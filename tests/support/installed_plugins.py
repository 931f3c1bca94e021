"""Execution providers of other people that are plugins, if their packages are installed."""

import importlib.util

import onnxruntime

#: Packages by the convention of onnxruntime: with ``get_library_path`` and ``get_ep_names``.
PACKAGES = ("onnxruntime_ep_openvino", "onnxruntime_ep_webgpu")


def register_installed_plugins() -> list[str]:
    """Register them; return the names of those that have a device on this machine."""
    names = []
    for package in PACKAGES:
        if importlib.util.find_spec(package) is not None:
            module = importlib.import_module(package)
            (name,) = module.get_ep_names()
            onnxruntime.register_execution_provider_library(name, module.get_library_path())
            if any(device.ep_name == name for device in onnxruntime.get_ep_devices()):
                names.append(name)
    return names
