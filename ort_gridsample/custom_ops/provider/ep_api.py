"""The structs and numbers of ONNX Runtime's C API for execution providers.

The functions of this API are in :data:`ort_gridsample.custom_ops.compiled_ops.c_api.FUNCTIONS`. All
fields have 64 bits. Sources: ``onnxruntime_ep_c_api.h`` and ``onnxruntime_c_api.h``. The structs
only grow at their ends, so a field keeps its offset in all later releases. A test compares the
fields with the declarations there.
"""

from __future__ import annotations

#: The version of the structs and of the function tables: that of onnxruntime 1.24, the first
#: release whose providers can have kernels. Later releases read no field that 1.24 lacks.
PROVIDER_API_VERSION = 24
#: The oldest onnxruntime that the provider runs in.
OLDEST = "1.24"

#: The oldest onnxruntime in which the provider fuses nodes in the bodies of nodes. Older releases
#: give fused nodes of two bodies the same name, and then refuse the second one.
OLDEST_WITH_FUSED_BODIES = "1.25"

#: The fields of ``OrtEpFactory`` in 1.24: the version of the struct, then functions.
FACTORY_FIELDS = """
version GetName GetVendor GetSupportedDevices CreateEp ReleaseEp GetVendorId GetVersion
ValidateCompiledModelCompatibilityInfo CreateAllocator ReleaseAllocator CreateDataTransfer
IsStreamAware CreateSyncStreamForDevice GetHardwareDeviceIncompatibilityDetails
CreateExternalResourceImporterForDevice GetNumCustomOpDomains GetCustomOpDomains
"""

#: The fields of ``OrtEp`` in 1.24.
EP_FIELDS = """
version GetName GetCapability Compile ReleaseNodeComputeInfos GetPreferredDataLayout
ShouldConvertDataLayoutForOp SetDynamicOptions OnRunStart OnRunEnd CreateAllocator
CreateSyncStreamForDevice GetCompiledModelCompatibilityInfo GetKernelRegistry
IsConcurrentRunSupported
"""

#: The fields of ``OrtKernelImpl``. The upper half of the first one is ``flags``.
KERNEL_FIELDS = "version Compute Release PrePackWeight SetSharedPrePackedWeight"

#: The fields of ``OrtNodeComputeInfo``: the functions of a fused node.
COMPUTE_INFO_FIELDS = "version CreateState Compute ReleaseState"

#: ``OrtHardwareDeviceType`` of a CPU.
CPU = 0
#: ``OrtOpAttrType`` of attributes that are numbers or a string.
INT_ATTRIBUTE = 1
INTS_ATTRIBUTE = 2
FLOAT_ATTRIBUTE = 3
FLOATS_ATTRIBUTE = 4
STRING_ATTRIBUTE = 5
#: The error code of an OrtStatus: ORT_NOT_IMPLEMENTED.
NOT_IMPLEMENTED = 9
#: ``OrtCompiledModelCompatibility_EP_NOT_APPLICABLE``.
NOT_APPLICABLE = 0
