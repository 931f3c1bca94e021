"""The parts of ONNX Runtime's C API for execution providers that this package uses.

All offsets are for 64-bit processes. Sources: ``onnxruntime_ep_c_api.h`` and
``onnxruntime_c_api.h``. The structs only grow at their ends, so a field keeps its offset in all
later releases. A test compares the offsets with the declarations there.
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

#: The offsets of functions in OrtEpApi, in bytes.
EP_API_OFFSETS = {
    "CreateEpDevice": 0,
    "EpGraphSupportInfo_AddNodesToFuse": 16,
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
PROVIDER_FUNCTION_OFFSETS = {
    "CastTypeInfoToTensorInfo": 440,
    "ReleaseTypeInfo": 784,
    "KernelInfo_GetInputTypeInfo": 1872,
    "GetSessionConfigEntry": 1904,
    "ReadOpAttr": 2176,
    "GetValueInfoName": 2312,
    "GetValueInfoTypeInfo": 2320,
    "HardwareDevice_Type": 2456,
    "GetEpApi": 2536,
    "ValueInfo_GetValueProducer": 2584,
    "ValueInfo_GetInitializerValue": 2608,
    "ValueInfo_IsConstantInitializer": 2648,
    "Graph_GetOnnxIRVersion": 2680,
    "Graph_GetNumOperatorSets": 2688,
    "Graph_GetOperatorSets": 2696,
    "Graph_GetNumOutputs": 2720,
    "Graph_GetOutputs": 2728,
    "Graph_GetNumNodes": 2752,
    "Graph_GetNodes": 2760,
    "Graph_GetParentNode": 2768,
    "Node_GetName": 2792,
    "Node_GetOperatorType": 2800,
    "Node_GetDomain": 2808,
    "Node_GetNumInputs": 2824,
    "Node_GetInputs": 2832,
    "Node_GetNumOutputs": 2840,
    "Node_GetOutputs": 2848,
    "Node_GetNumImplicitInputs": 2856,
    "Node_GetImplicitInputs": 2864,
    "Node_GetNumAttributes": 2872,
    "Node_GetAttributes": 2880,
    "Node_GetAttributeByName": 2888,
    "OpAttr_GetType": 2904,
    "OpAttr_GetName": 2912,
    "Node_GetEpName": 2944,
    "TensorTypeAndShape_HasShape": 3120,
}

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
