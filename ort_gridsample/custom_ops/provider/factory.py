"""The provider's factory: the functions of OrtEpFactory, and those that a library exports."""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ...kernels.pointers import (
    acquire_lock,
    address_of,
    array_at,
    c_string,
    call,
    local_record,
    memcpy,
    record_at,
    release_lock,
    sizeof,
)
from ...kernels.structs import Address
from ..compiled_ops.api_functions import api_function, write_word
from ..compiled_ops.c_api import INVALID_ARGUMENT
from ..compiled_ops.creation import release_status
from ..compiled_ops.requests import Status
from ..compiled_ops.sentences import create_status
from .ep_api import CPU, PROVIDER_API_VERSION
from .structs import BUFFER, FACTORY, WORD

_get_ep_api = api_function("GetEpApi")
_get_device_type = api_function("HardwareDevice_Type")
_get_config_entry = api_function("GetSessionConfigEntry")
_create_ep_device = api_function("CreateEpDevice", 1)

_ONE = ord("1")
#: The bits of a C enum in the register of a result.
_ENUM = 0xFFFFFFFF


@register_jitable
def open_api(base: int, too_old_message: int) -> tuple[Status, Address]:
    """Return an OrtStatus* and the address of the OrtApi, one of which is 0.

    Args:
        base: the OrtApiBase.
        too_old_message: the message of the status if this onnxruntime has no such providers.
    """
    get_api = array_at(base, (1,), np.int64)[0]
    api = call(get_api, (PROVIDER_API_VERSION,))
    if api == 0:
        return create_status(call(get_api, (1,)), (INVALID_ARGUMENT, too_old_message)), 0
    return 0, api


@register_jitable
def provide_factory(
    factory_address: Address, api: Address, factories: int, n_factories: int
) -> Status:
    """Write the provider's factory to the results of CreateEpFactories.

    There is one factory, which is never freed: sessions may outlive the registration.

    Args:
        factory_address: the FACTORY.
        api: the OrtApi.
        factories: the address of an array of OrtEpFactory*.
        n_factories: the address of the number of factories.
    """
    factory = record_at(factory_address, FACTORY)
    acquire_lock(factory)
    status = 0
    if factory.api == 0:
        factory.api = api
        factory.ep_api = _get_ep_api(api, ())
    elif factory.api != api:
        message = c_string("another onnxruntime of this process has this execution provider")
        status = create_status(api, (INVALID_ARGUMENT, message))
    release_lock(factory)
    if status == 0:
        write_word(factories, factory_address)
        write_word(n_factories, 1)
    return status


def create_factories(
    api: Address, factories: int, n_factories: int, factory_address: Address
) -> Status:
    """CreateEpFactories of this process: see :func:`provide_factory`."""
    return provide_factory(factory_address, api, factories, n_factories)


def get_name(factory_address: Address) -> int:
    """GetName of OrtEpFactory."""
    return record_at(factory_address, FACTORY).name


def get_vendor(factory_address: Address) -> int:
    """GetVendor."""
    return record_at(factory_address, FACTORY).vendor


def get_version(factory_address: Address) -> int:
    """GetVersion: the release of this package."""
    return record_at(factory_address, FACTORY).release


def get_supported_devices(
    factory_address: Address,
    devices: int,
    n_devices: int,
    ep_devices: int,
    max_ep_devices: int,
    n_ep_devices: int,
) -> int:
    """GetSupportedDevices: the first CPU among ``devices``."""
    factory = record_at(factory_address, FACTORY)
    write_word(n_ep_devices, 0)
    all_devices: Any = array_at(devices, (n_devices,), np.int64)
    for index in range(n_devices if max_ep_devices > 0 else 0):
        device = all_devices[index]
        if _get_device_type(factory.api, (device,)) & _ENUM == CPU:
            arguments = (factory_address, device, 0, 0)
            status, ep_device = _create_ep_device(factory.ep_api, arguments)
            if status == 0:
                write_word(ep_devices, ep_device)
                write_word(n_ep_devices, 1)
            return status
    return 0


def create_ep(
    factory_address: Address,
    devices: int,
    metadata: int,
    n_devices: int,
    options: int,
    logger: int,
    out: Address,
) -> int:
    """CreateEp: an EP that all sessions share, as it has no state."""
    factory = record_at(factory_address, FACTORY)
    fuses = factory.fusing_ep != 0 and not _has_context(factory.api, options)
    write_word(out, factory.fusing_ep if fuses else factory.ep)
    return 0


@register_jitable
def _has_context(api: Address, options: int) -> bool:
    """Whether the session saves a model with its compiled nodes (``ep.context_enable``).

    Such a model cannot contain fused nodes of this provider.
    """
    key = c_string("ep.context_enable")
    value = local_record(BUFFER)
    value.words[0] = 0
    size = local_record(WORD)
    size.value = sizeof(BUFFER)
    status = _get_config_entry(api, (options, key, address_of(value), address_of(size)))
    if status != 0:  # there is no such entry
        release_status(api, (status,))
        return False
    return array_at(address_of(value), (1,), np.uint8)[0] == _ONE


def get_num_custom_op_domains(factory_address: Address, out: Address) -> int:
    """GetNumCustomOpDomains."""
    write_word(out, record_at(factory_address, FACTORY).n_domains)
    return 0


def get_custom_op_domains(factory_address: Address, domains: int, n_domains: int) -> int:
    """GetCustomOpDomains."""
    factory = record_at(factory_address, FACTORY)
    memcpy(domains, factory.domains, 8 * min(n_domains, factory.n_domains))
    return 0
