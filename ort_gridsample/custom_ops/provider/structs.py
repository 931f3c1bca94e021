"""The records of the execution provider, in addition to those of the compiled ops."""

from __future__ import annotations

import numpy as np

from ...kernels.structs import record
from .ep_api import COMPUTE_INFO_FIELDS, EP_FIELDS, FACTORY_FIELDS, KERNEL_FIELDS

#: The number of inputs of the operators, and of their type constraints T1 and T2.
N_INPUTS = 2
#: The maximum number of types that a type constraint allows.
MAX_CONSTRAINT_TYPES = 16

#: The provider's factory: ONNX Runtime's struct OrtEpFactory, followed by the fields of this
#: package.
FACTORY = record(
    FACTORY_FIELDS,
    "name",  # the address of the provider's name
    "vendor",  # the address of its vendor's name
    "release",  # the address of its version
    "ep",  # the address of the EP that all sessions share
    "fusing_ep",  # the address of the shared EP that fuses nodes; 0 in a library
    "lock",  # 1 while a thread sets one of the following fields
    "api",  # the address of the OrtApi; 0 until the factory is created
    "ep_api",  # the address of the OrtEpApi; 0 until the factory is created
    "registry",  # the address of the OrtKernelRegistry; 0 until it is created
    "create_kernel",  # the address of the function that creates kernels
    "definitions",  # the address of an array of DEFINITION
    "n_definitions",  # its length
    "overloads",  # the address of an array of OVERLOAD
    "n_overloads",  # its length
    "kernel_template",  # the address of the NODE_KERNEL that is the template of all kernels
    "domains",  # the address of an array of OrtCustomOpDomain*
    "n_domains",  # its length
    "grid_makers",  # the operators that may compute a fused grid, each followed by a blank
)

#: The provider: ONNX Runtime's struct OrtEp.
EP = record(
    EP_FIELDS,
    "factory",  # the address of the FACTORY
    # The address of a function that fuses nodes of a graph; 0 if no nodes are fused. Its arguments
    # are the OrtGraph, the OrtEpGraphSupportInfo, the address of an array of OrtNode*, and its
    # length. It sets the elements of nodes that it fused to 0.
    "fuse",
)

#: A type constraint, T1 or T2: the types that it allows.
CONSTRAINT = record(
    ("types", (np.int64, MAX_CONSTRAINT_TYPES)),  # the ONNXTensorElementDataType of each type
    "n_types",  # the number of types
)

#: An operator of the provider.
DEFINITION = record(
    "operator",  # the address of the type of its nodes, as a text
    "domain",  # the address of its domain, as a text
    "first",  # its first version
    "last",  # its last version
    ("constraints", (CONSTRAINT, N_INPUTS)),  # the types of T1 and T2
)

#: The op for a combination of types.
OVERLOAD = record(
    ("types", (np.int64, N_INPUTS)),  # the ONNXTensorElementDataType of each input
    "op",  # the address of the OP
    "n_states",  # the number of the op's states: one per mode, or 1
)

#: The kernel of a node: ONNX Runtime's struct OrtKernelImpl, followed by the fields of this
#: package.
NODE_KERNEL = record(
    KERNEL_FIELDS,
    "state",  # the address of the state that the compiled op created
    "compute",  # the address of the op's function KernelComputeV2
    "destroy",  # the address of the op's function KernelDestroy
)

#: A fused node: ONNX Runtime's struct OrtNodeComputeInfo, followed by the fields of this package.
COMPUTE_INFO = record(
    COMPUTE_INFO_FIELDS,
    "state",  # the address of the state that the op created
    "grid",  # the address of the FUSED_GRID, or 0
    "compute",  # the address of the op's function KernelComputeV2
    "destroy",  # the address of the op's function KernelDestroy
)

#: The inputs of a GridSample that is fused with the nodes that compute its grid. Its COMPUTE_INFO
#: has the op's state.
FUSED_GRID = record(
    # The address of an array: for each input of the op, the index of the node's input; -1 for the
    # scalars of programs.
    "op_inputs",
    "scalars",  # the address of the scalars. Those that are inputs of the node are 0.
    "scalar_size",  # the size of a scalar in bytes; 0 if there are no programs
    # The address of an array: for each scalar, the index of the node's input; -1 for a constant.
    "scalar_inputs",
)

#: An int64 or a pointer.
WORD = record("value")
#: Memory for a short text.
BUFFER = record(("words", (np.int64, 8)))
#: Memory for the inputs of a node, as OrtValueInfo*.
NODE_INPUTS = record(("values", (np.int64, N_INPUTS)))
