"""The data of the provider: its structs, and the definitions of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...kernels.compilation import KernelSpec
from ...reference.taps import COMPILED_MODES
from ..compiled_ops.image import Image, Relocation
from . import answers, execution_provider, factory, node_kernels
from .definitions import NAME, VENDOR, Definition, definitions
from .ep_api import VERSION
from .structs import DEFINITION, EP, FACTORY, KERNEL

#: The functions of OrtEpFactory.
FACTORY_FUNCTIONS: dict[str, KernelSpec] = {
    "GetName": (factory.get_name,),
    "GetVendor": (factory.get_vendor,),
    "GetSupportedDevices": (factory.get_supported_devices,),
    "CreateEp": (factory.create_ep,),
    "ReleaseEp": (answers.return_nothing,),
    "GetVendorId": (answers.return_nothing,),
    "GetVersion": (factory.get_version,),
    "ValidateCompiledModelCompatibilityInfo": (answers.is_not_applicable,),
    "CreateAllocator": (answers.set_fourth_to_null,),
    "ReleaseAllocator": (answers.return_nothing,),
    "CreateDataTransfer": (answers.set_second_to_null,),
    "IsStreamAware": (answers.return_nothing,),
    "CreateSyncStreamForDevice": (answers.set_fourth_to_null,),
    "GetHardwareDeviceIncompatibilityDetails": (answers.return_nothing,),
    "CreateExternalResourceImporterForDevice": (answers.set_third_to_null,),
    "GetNumCustomOpDomains": (factory.get_num_custom_op_domains,),
    "GetCustomOpDomains": (factory.get_custom_op_domains,),
}

#: The functions of OrtEp.
EP_FUNCTIONS: dict[str, KernelSpec] = {
    "GetName": (execution_provider.get_ep_name,),
    "GetCapability": (execution_provider.get_capability,),
    "Compile": (answers.refuse_to_compile,),
    "ReleaseNodeComputeInfos": (answers.return_nothing,),
    "GetPreferredDataLayout": (answers.set_second_to_zero,),
    "ShouldConvertDataLayoutForOp": (answers.leave_layout,),
    "SetDynamicOptions": (answers.return_nothing,),
    "OnRunStart": (answers.return_nothing,),
    "OnRunEnd": (answers.return_nothing,),
    "CreateAllocator": (answers.set_third_to_null,),
    "CreateSyncStreamForDevice": (answers.set_third_to_null,),
    "GetCompiledModelCompatibilityInfo": (answers.get_empty_text,),
    "GetKernelRegistry": (execution_provider.get_kernel_registry,),
    "IsConcurrentRunSupported": (answers.set_second_to_true,),
}

#: The functions of OrtKernelImpl.
KERNEL_FUNCTIONS: dict[str, KernelSpec] = {
    "Compute": (node_kernels.compute,),
    "Release": (node_kernels.release_kernel,),
    "PrePackWeight": (answers.do_not_pack,),
    "SetSharedPrePackedWeight": (answers.return_nothing,),
}


def add_factory(
    image: Image,
    release: str,
    op_address: Callable[[Definition], int | None],
    domains: Sequence[Any],
) -> Relocation:
    """Append the provider's FACTORY, and all that it refers to; return its offset.

    Args:
        image: the image.
        release: the release of this package.
        op_address: from a definition to the value of its field ``op``; None: there is no such op.
        domains: the OrtCustomOpDomains, as values of fields.
    """
    kernel = image.add_records(KERNEL, {"version": VERSION, **KERNEL_FUNCTIONS})
    texts: dict[str, Relocation] = {}
    rows = []
    for definition in definitions():
        op = op_address(definition)
        if op is None:
            continue
        for text in (definition.operator, definition.domain):
            if text not in texts:
                texts[text] = image.add_text(text.encode())
        row = {
            "operator": texts[definition.operator],
            "domain": texts[definition.domain],
            "first": definition.first,
            "last": definition.last,
            "types": definition.element_types,
            "n_types": len(definition.types),
            "op": op,
            "n_states": len(COMPILED_MODES) if definition.op.has_modes else 1,
            "kernel": kernel,
        }
        rows.append(row)
    factory_offset = image.add_records(FACTORY, {"version": VERSION, **FACTORY_FUNCTIONS})
    ep = {"version": VERSION, "factory": factory_offset, **EP_FUNCTIONS}
    fields = {
        "name": image.add_text(NAME.encode()),
        "vendor": image.add_text(VENDOR.encode()),
        "release": image.add_text(release.encode()),
        "ep": image.add_records(EP, ep),
        "create_kernel": (node_kernels.create_kernel,),
        "definitions": image.add_records(DEFINITION, *rows),
        "n_definitions": len(rows),
        "domains": image.add_pointers(domains),
        "n_domains": len(domains),
    }
    image.set_fields(factory_offset, FACTORY, fields)
    return factory_offset
