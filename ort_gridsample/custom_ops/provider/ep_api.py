"""The parts of ONNX Runtime's C API for execution providers that this package uses.

All offsets are for 64-bit processes. Sources: ``onnxruntime_ep_c_api.h`` and
``onnxruntime_c_api.h``. The structs only grow at their ends, so a field keeps its offset in all
later releases. A test compares the offsets with the declarations there.
"""

from __future__ import annotations

#: The version of the structs and of the function tables: that of onnxruntime 1.24, the first
#: release whose providers can have kernels. Later releases read no field that 1.24 lacks.
VERSION = 24
#: The oldest onnxruntime that the provider runs in.
OLDEST = "1.24"

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

#: The offsets of functions in OrtEpApi, in bytes.
EP_FUNCTIONS = {
    "CreateEpDevice": 0,
    "EpGraphSupportInfo_AddSingleNode": 24,
    "CreateKernelRegistry": 144,
    "ReleaseKernelRegistry": 152,
    "KernelRegistry_AddKernel": 160,
    "CreateKernelDefBuilder": 168,
    "ReleaseKernelDefBuilder": 176,
    "KernelDefBuilder_SetOperatorType": 184,
    "KernelDefBuilder_SetDomain": 192,
    "KernelDefBuilder_SetSinceVersion": 200,
    "KernelDefBuilder_SetExecutionProvider": 208,
    "KernelDefBuilder_AddTypeConstraint": 232,
    "KernelDefBuilder_Build": 256,
    "ReleaseKernelDef": 264,
    "GetTensorDataType": 320,
    "EpGraphSupportInfo_LookUpKernel": 328,
}

#: The offsets of functions in OrtApi, in bytes, in addition to those of
#: :mod:`ort_gridsample.custom_ops.compiled_ops.c_api`.
FUNCTIONS = {
    "CastTypeInfoToTensorInfo": 440,
    "ReleaseTypeInfo": 784,
    "KernelInfo_GetInputTypeInfo": 1872,
    "ReadOpAttr": 2176,
    "GetValueInfoTypeInfo": 2320,
    "HardwareDevice_Type": 2456,
    "GetEpApi": 2536,
    "Graph_GetNumNodes": 2752,
    "Graph_GetNodes": 2760,
    "Node_GetNumInputs": 2824,
    "Node_GetInputs": 2832,
    "Node_GetAttributeByName": 2888,
}

#: ``OrtHardwareDeviceType`` of a CPU.
CPU = 0
#: ``OrtOpAttrType`` of a string.
STRING_ATTRIBUTE = 5
#: The error code of an OrtStatus: ORT_NOT_IMPLEMENTED.
NOT_IMPLEMENTED = 9
#: ``OrtCompiledModelCompatibility_EP_NOT_APPLICABLE``.
NOT_APPLICABLE = 0
