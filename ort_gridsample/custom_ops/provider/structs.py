"""The records of the execution provider, in addition to those of the compiled ops."""

from __future__ import annotations

import numpy as np

from ...kernels.structs import record
from ..compiled_ops.structs import GRID_SAMPLE, PLAIN
from .ep_api import COMPUTE_INFO_FIELDS, EP_FIELDS, FACTORY_FIELDS, KERNEL_FIELDS

#: The number of inputs of the operators, and of the names T1 and T2 of their types.
N_INPUTS = 2
#: The maximum number of types that a name can stand for.
MAX_TYPES = 16

#: The provider's factory: ONNX Runtime's struct OrtEpFactory, followed by the fields of this
#: package.
FACTORY = record(
    FACTORY_FIELDS,
    # Addresses of texts: the name of the provider, its vendor and its version.
    "name vendor release",
    # The addresses of the provider's EPs, which all sessions share. That of the EP that fuses nodes
    # is 0 in a library.
    "ep fusing_ep",
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
    # The address of the NODE_KERNEL that a node's kernel begins as.
    "kernel",
    # The address of an array of OrtCustomOpDomain*, and its length.
    "domains n_domains",
)

#: The provider: ONNX Runtime's struct OrtEp.
EP = record(
    EP_FIELDS,
    # The address of the FACTORY.
    "factory",
    # The address of a function that fuses nodes of a graph; 0 if no nodes are fused. Its arguments
    # are the OrtGraph, the OrtEpGraphSupportInfo, the address of an array of OrtNode*, and its
    # length. It sets the elements of nodes that it fused to 0.
    "fuse",
)

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

#: The kernel of a node: ONNX Runtime's struct OrtKernelImpl, followed by the state of a compiled
#: op and the op's functions.
NODE_KERNEL = record(KERNEL_FIELDS, "state compute destroy")

#: A fused node: ONNX Runtime's struct OrtNodeComputeInfo, followed by the address of the state.
COMPUTE_INFO = record(COMPUTE_INFO_FIELDS, "state")

#: A level of a fused deformable attention.
LEVEL = record(
    # The number of its points.
    "points",
    # The index of the input whose elements from the third on are the lengths of the level; -1 if
    # the lengths are constants.
    "shape_input",
    # The address of the lengths if they are constants.
    "lengths",
    # The index of the input that is the grid (B·H, Q, points, r); not used if there are locations.
    "grid_input",
)

#: The state of a fused deformable attention. Conditions are 0 or 1.
FUSED_ATTENTION = record(
    ("plain", PLAIN),
    # The indices of the node's inputs that are the operands. The locations are -1 if the levels
    # have grids.
    "value locations weights",
    # The lengths of axes: heads, and channels of a head.
    "heads channels",
    # The number of axes of the value: 4 if it is (B, S, H, D), 3 if it is (B, S, H·D).
    "value_axes",
    # Whether the weights are (B, Q, H, …) and not (B·H, 1, Q, P).
    "has_weights_by_head",
    # The ONNXTensorElementDataType of the grids; 0 if there are locations.
    "grid_type",
    # The address of an array of LEVEL, its length, and the number of spatial axes.
    "levels n_levels r",
)

#: The state of a GridSample that is fused with the nodes that compute its grid.
FUSED_GRID = record(
    ("sample", GRID_SAMPLE),  # first, so that compiled code of the op can read a FUSED_GRID
    # The address of an array: for each input of the op, the index of the node's input; -1 for the
    # scalars of programs.
    "op_inputs",
    # The address of the scalars. Those that are inputs of the node are 0.
    "scalars",
    # The size of a scalar in bytes; 0 if there are no programs.
    "scalar_size",
    # The address of an array: for each scalar, the index of the node's input; -1 for a constant.
    "scalar_inputs",
)

#: Memory for a function of ONNX Runtime that reads or writes a pointer.
POINTER = record("value")
#: Memory for a short text.
BUFFER = record(("words", (np.int64, 8)))
#: Memory for the inputs of a node, as OrtValueInfo*.
NODE_INPUTS = record(("values", (np.int64, N_INPUTS)))
