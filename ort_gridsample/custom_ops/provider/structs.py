"""The records of the execution provider, in addition to those of the compiled ops."""

from __future__ import annotations

import numpy as np

from ...kernels.structs import record
from .ep_api import EP_FIELDS, FACTORY_FIELDS, KERNEL_FIELDS

#: The number of inputs of the operators, and of the names T1 and T2 of their types.
N_INPUTS = 2
#: The maximal number of types that a name can stand for.
MAX_TYPES = 16

#: The provider's factory: ONNX Runtime's struct OrtEpFactory, and behind it the fields of this
#: package.
FACTORY = record(
    FACTORY_FIELDS,
    # Addresses of texts: the name of the provider, its vendor and its version.
    "name vendor release",
    # The address of the provider's EP, which all sessions share.
    "ep",
    # 1 while a thread sets one of the following fields.
    "lock",
    # The OrtApi and the OrtEpApi; 0 until the factory is created.
    "api ep_api",
    # The OrtKernelRegistry; 0 until it is created.
    "registry",
    # The address of the function that creates kernels.
    "create_kernel",
    # Addresses of arrays of DEFINITION and of OVERLOAD, and their lengths.
    "definitions n_definitions overloads n_overloads",
    # The address of the KERNEL that a node's kernel begins as.
    "kernel",
    # The address of an array of OrtCustomOpDomain*, and its length.
    "domains n_domains",
)

#: The provider: ONNX Runtime's struct OrtEp, and the address of the FACTORY.
EP = record(EP_FIELDS, "factory")

#: The types that a name can stand for.
CONSTRAINT = record(
    # The ONNXTensorElementDataType of each, and their number.
    ("types", (np.int64, MAX_TYPES)),
    "n_types",
)

#: An operator of the provider.
DEFINITION = record(
    # Addresses of texts: the operator and its domain.
    "operator domain",
    # The operator's first and last version.
    "first last",
    # Those of T1 and T2.
    ("constraints", (CONSTRAINT, N_INPUTS)),
)

#: The op for a combination of types.
OVERLOAD = record(
    # The ONNXTensorElementDataType of each input.
    ("types", (np.int64, N_INPUTS)),
    # The address of the OP, and the number of the op's states: one per mode, or 1.
    "op n_states",
)

#: The kernel of a node: ONNX Runtime's struct OrtKernelImpl, and behind it the state of a compiled
#: op and the op's functions.
KERNEL = record(KERNEL_FIELDS, "state compute destroy")

#: Memory for a function of ONNX Runtime that reads or writes a pointer.
POINTER = record("value")
#: Memory for the value of an attribute.
ATTRIBUTE = record(("chars", (np.int64, 8)))
