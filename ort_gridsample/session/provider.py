"""Register the execution provider, which runs unmodified models in onnxruntime 1.24 and newer."""

from __future__ import annotations

from ..custom_ops.provider import registration
from .registration import defer_signals_in_plain_sessions


def register_provider() -> str:
    """Register the execution provider with onnxruntime, and return its name.

    From onnxruntime 1.28 on, onnxruntime's own sessions then run unmodified models:
    ``onnxruntime.InferenceSession("model.onnx", providers=[name, "CPUExecutionProvider"])``. 1.24
    needs the provider's device in the options instead.

    >>> provider = register_provider()
    >>> provider
    'GridSampleExecutionProvider'
    >>> providers = [provider, "CPUExecutionProvider"]
    >>> onnxruntime.InferenceSession("model.onnx", providers=providers)    # doctest: +SKIP

    The compiled ops have all types but strings and complex numbers. Deformable attention around
    GridSamples becomes one node, unless a configured library has the provider. Behind another
    provider it runs only what that provider does not run. onnxruntime 1.24 does not find the
    provider by its name. There, and for models with nodes of this package or of other packages
    (patched models, mmcv's grid_sampler, TensorRT's plugins) add its device to the options:

    >>> import onnxruntime
    >>> devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == provider]
    >>> options = onnxruntime.SessionOptions()
    >>> options.add_provider_for_devices(devices, {})
    >>> onnxruntime.InferenceSession("model.onnx", options)    # doctest: +SKIP

    The provider needs Numba, or a library that ``ort-gridsample library`` built and that this
    package is configured to use. It is registered once in a process; other calls only return its
    name. Do not unregister it.

    Returns:
        The name of the provider.

    Raises:
        GridSampleError: onnxruntime is older than 1.24, or the configured library cannot be used.
        ImportError: Numba is not installed, or this system does not load what the registration
            needs.
    """
    name = registration.register()
    defer_signals_in_plain_sessions()
    return name
