"""The data of the provider: its structs, and the definitions of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...kernels.compilation import FunctionSpec
from ...kernels.tap_plans import COMPILED_MODES
from ..compiled_ops.c_api import ELEMENT_TYPES
from ..compiled_ops.catalog import Fields
from ..compiled_ops.record_image import RecordImage, Relocation
from . import compute_infos, constant_functions, execution_provider, factory, node_kernels
from .definitions import FUSED_OPERATORS, NAME, VENDOR, Definition, Overload, definitions, overloads
from .ep_api import PROVIDER_API_VERSION
from .structs import DEFINITION, EP, FACTORY, MAX_CONSTRAINT_TYPES, NODE_KERNEL, OVERLOAD

#: The functions of OrtEpFactory.
FACTORY_FUNCTIONS: dict[str, FunctionSpec] = {
    "GetName": (factory.get_name,),
    "GetVendor": (factory.get_vendor,),
    "GetSupportedDevices": (factory.get_supported_devices,),
    "CreateEp": (factory.create_ep,),
    "ReleaseEp": (constant_functions.return_nothing,),
    "GetVendorId": (constant_functions.return_nothing,),
    "GetVersion": (factory.get_version,),
    "ValidateCompiledModelCompatibilityInfo": (constant_functions.is_not_applicable,),
    "CreateAllocator": (constant_functions.set_fourth_to_null,),
    "ReleaseAllocator": (constant_functions.return_nothing,),
    "CreateDataTransfer": (constant_functions.set_second_to_null,),
    "IsStreamAware": (constant_functions.return_nothing,),
    "CreateSyncStreamForDevice": (constant_functions.set_fourth_to_null,),
    "GetHardwareDeviceIncompatibilityDetails": (constant_functions.return_nothing,),
    "CreateExternalResourceImporterForDevice": (constant_functions.set_third_to_null,),
    "GetNumCustomOpDomains": (factory.get_num_custom_op_domains,),
    "GetCustomOpDomains": (factory.get_custom_op_domains,),
}

#: The functions of OrtEp.
EP_FUNCTIONS: dict[str, FunctionSpec] = {
    "GetName": (execution_provider.get_ep_name,),
    "GetCapability": (execution_provider.get_capability,),
    "Compile": (constant_functions.refuse_to_compile,),
    "ReleaseNodeComputeInfos": (compute_infos.release_compute_infos,),
    "GetPreferredDataLayout": (constant_functions.set_second_to_zero,),
    "ShouldConvertDataLayoutForOp": (constant_functions.leave_layout,),
    "SetDynamicOptions": (constant_functions.return_nothing,),
    "OnRunStart": (constant_functions.return_nothing,),
    "OnRunEnd": (constant_functions.return_nothing,),
    "CreateAllocator": (constant_functions.set_third_to_null,),
    "CreateSyncStreamForDevice": (constant_functions.set_third_to_null,),
    "GetCompiledModelCompatibilityInfo": (constant_functions.get_empty_text,),
    "GetKernelRegistry": (execution_provider.get_kernel_registry,),
    "IsConcurrentRunSupported": (constant_functions.set_second_to_true,),
}

#: The functions of OrtKernelImpl.
KERNEL_FUNCTIONS: dict[str, FunctionSpec] = {
    "Compute": (node_kernels.compute,),
    "Release": (node_kernels.release_kernel,),
    "PrePackWeight": (constant_functions.do_not_pack,),
    "SetSharedPrePackedWeight": (constant_functions.return_nothing,),
}


def add_factory(
    image: RecordImage,
    release: str,
    op_address: Callable[[Overload], int | None],
    domains: Sequence[Any],
    fusion: Fields | None = None,
) -> Relocation:
    """Append the provider's FACTORY, and all that it refers to; return its offset.

    Args:
        op_address: return the field ``op`` for an overload, or None if there is no such op.
        domains: the OrtCustomOpDomains, as values of fields.
        fusion: the functions of an EP that fuses nodes; None: there is no such EP.
    """
    available, overload_rows = _available_overloads(op_address)
    provided = definitions(available)
    operators = sorted(FUSED_OPERATORS)
    factory_offset = image.add_records(
        FACTORY, {"version": PROVIDER_API_VERSION, **FACTORY_FUNCTIONS}
    )
    ep = {"version": PROVIDER_API_VERSION, "factory": factory_offset, **EP_FUNCTIONS}
    fields = {
        "name": image.add_text(NAME.encode()),
        "vendor": image.add_text(VENDOR.encode()),
        "release": image.add_text(release.encode()),
        "ep": image.add_records(EP, ep),
        "fusing_ep": image.add_records(EP, {**ep, **fusion}) if fusion else 0,
        "create_kernel": (node_kernels.create_kernel,),
        "definitions": _add_definitions(image, provided),
        "n_definitions": len(provided),
        "overloads": image.add_records(OVERLOAD, *overload_rows),
        "n_overloads": len(overload_rows),
        "kernel_template": image.add_records(
            NODE_KERNEL, {"version": PROVIDER_API_VERSION, **KERNEL_FUNCTIONS}
        ),
        "domains": image.add_pointers(domains),
        "n_domains": len(domains),
        "grid_makers": image.add_text("".join(map("{} ".format, operators)).encode()),
    }
    image.set_fields(factory_offset, FACTORY, fields)
    return factory_offset


def _available_overloads(
    op_address: Callable[[Overload], int | None],
) -> tuple[list[Overload], list[Fields]]:
    """Return the overloads that have an op, and the fields of their OVERLOADs."""
    available = []
    rows: list[Fields] = []
    for overload in overloads():
        op = op_address(overload)
        if op is not None:
            available.append(overload)
            fields = {
                "types": [ELEMENT_TYPES[name] for name in overload.types],
                "op": op,
                "n_states": len(COMPILED_MODES) if overload.op.has_modes else 1,
            }
            rows.append(fields)
    return available, rows


def _add_definitions(image: RecordImage, added: Sequence[Definition]) -> Relocation:
    """Append an array of DEFINITION, and return its offset."""
    rows = [
        {
            "operator": image.add_text(definition.operator.encode()),
            "domain": image.add_text(definition.domain.encode()),
            "first": definition.first,
            "last": definition.last,
        }
        for definition in added
    ]
    offset = image.add_records(DEFINITION, *rows)
    for index, definition in enumerate(added):
        start = offset + index * DEFINITION.itemsize
        set_rows(image, start, DEFINITION, "constraints", _constraint_rows(definition))
    return offset


def _constraint_rows(definition: Definition) -> Sequence[Fields]:
    """Return the fields of the CONSTRAINTs of a DEFINITION."""
    rows = []
    for names in definition.types:
        types = [ELEMENT_TYPES[name] for name in names]
        types += [0] * (MAX_CONSTRAINT_TYPES - len(types))
        rows.append({"types": types, "n_types": len(names)})
    return rows


def set_rows(
    image: RecordImage, offset: int, dtype: Any, name: str, rows: Sequence[Fields]
) -> None:
    """Set a field that is an array of records.

    Args:
        offset: the offset of the record that has the field.
        dtype: the type of that record.
        name: the name of the field.
        rows: the fields of the first elements of the array.
    """
    array, first_offset, *_ = dtype.fields[name]
    for index, fields in enumerate(rows):
        start = offset + first_offset + index * array.base.itemsize
        image.set_fields(start, array.base, fields)
