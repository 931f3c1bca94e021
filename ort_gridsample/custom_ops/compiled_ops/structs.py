"""The records of the compiled ops, in addition to those of :mod:`ort_gridsample.kernels.structs`.

All fields are int64, arrays of int64, or records of these. Addresses are int64 as well; 0 is the
null pointer.
"""

from __future__ import annotations

import numpy as np

from ...detection.programs import MAX_SOURCES, MAX_STEPS
from ...kernels.structs import KERNEL, LAUNCH, record
from .c_api import FIELDS

#: The maximal number of inputs: X, then the grid, a program's scalars or a size, then the sources.
MAX_INPUTS = 2 + MAX_SOURCES

#: The maximal number of an op's inputs that may differ in type.
MAX_TYPES = 5

# --- Calls ---

#: An input of a call.
INPUT = record(
    # Addresses of its elements and of its lengths.
    "data shape",
    # The number of axes; -1 for an optional input that the node omits.
    "axes",
)

#: A call of an op by ONNX Runtime.
REQUEST = record(
    # First, so that a REQUEST and its LAUNCH have the same address.
    ("launch", LAUNCH),
    # Addresses of the OrtApi and of the OrtKernelContext.
    "api context",
    # The last BLOCK that was allocated for the request; 1 after an allocation failed.
    "blocks lacks_memory",
    # The address of a COMPONENT for each program.
    "components",
    ("inputs", (INPUT, MAX_INPUTS)),
    # The shape of the grid. The data are its elements, or those from which it is computed.
    ("grid", INPUT),
)

#: The shape of the status output of an op that replaces a Python op.
STATUS_SHAPE = record("rows columns")

#: The header of a block of memory in a linked list. ``padding`` keeps the memory behind it aligned
#: to 16 bytes.
BLOCK = record("next padding")

#: Characters: their address, and their number without the terminating 0.
TEXT = record("data length")

# --- Ops ---

#: What the ops of a process, or of a variant of a library, have in common.
LIBRARY = record(
    # The address of the OrtApi.
    "api",
    # The address of GetTensorElementTypeAndShapeDataReference; 0 in releases without it.
    "get_shape_reference",
    # The number of processors that this process may use.
    "cpus",
    # 1: the states of an op are compiled on demand; 0: a state that is missing is an error.
    "compiles_on_demand",
)

#: The ops of a library, compiled for one level of processors.
VARIANT = record(
    # The level of processors that the code needs.
    "level",
    # The address of an array of OP, and its length.
    "ops n_ops",
    # The address of their LIBRARY.
    "library",
    # The address of the FACTORY of the execution provider.
    "factory",
    # The address of an array of FOREIGN_DOMAIN, and its length.
    "foreign n_foreign",
)

#: The ops of another package's domain, which only the execution provider has.
FOREIGN_DOMAIN = record(
    # The address of the domain's name, with a terminating 0.
    "name",
    # The address of an array of OP, and its length.
    "ops n_ops",
)

#: The root of a library's data.
ENTRY = record(
    # 1 while a thread registers the ops.
    "lock",
    # The OrtCustomOpDomain, 0 until it is created, and the OrtApi that created it.
    "domain api",
    # The number of variants, and the address of an array of their addresses.
    "n_variants variants",
    # Addresses of error messages, each with a terminating 0.
    "no_variant_message too_old_message too_old_for_provider_message",
)

#: An op: ONNX Runtime's struct OrtCustomOp, and behind it the fields of this package.
OP = record(
    FIELDS,
    # The address of the op's type, with a terminating 0.
    "name",
    # The numbers of inputs and outputs; the index of the variadic input, or -1.
    "n_inputs n_outputs variadic",
    # The ONNXTensorElementDataType of each input.
    ("types", (np.int64, MAX_TYPES)),
    # The address of its LIBRARY.
    "library",
    # The address of an array of addresses of initial states; 0 for a state that is missing.
    "states",
    # The address of an array of TEXT: the op's error messages.
    "sentences",
    # The address of a text that describes the types of the inputs.
    "description",
)

#: A node while ONNX Runtime creates its kernel or infers its output's shape.
NODE = record(
    # Addresses of the OrtApi and of the OrtKernelInfo, or of the context of shape inference.
    "api info",
    # Its memory, as in a REQUEST.
    "blocks lacks_memory",
    # The result of CreateKernelV2: see :class:`.catalog.Kernels`.
    "status",
)

# --- States ---

#: The data of a node's error messages.
ERRORS = record(
    # The address of an array of TEXT.
    "sentences",
    # The name of the node, with which each message begins.
    ("where", TEXT),
    # A value that a message quotes.
    ("value", TEXT),
)

#: The first fields of every state.
_STATE = (
    ("kernel", KERNEL),
    # The address of the OrtApi, and of a function, as in a LIBRARY.
    "api get_shape_reference",
    # The address of the node's ERRORS.
    "errors",
)

#: The programs that compute a grid.
PROGRAMS = record(
    # The numbers of scalars, of coordinates and of programs; the address of an array of PROGRAM.
    "n_scalars r n_programs programs",
    # The number of values that the programs read, and their names.
    "n_sources",
    ("names", (TEXT, MAX_SOURCES)),
)

#: A row of :func:`ort_gridsample.detection.programs.to_rows`.
PROGRAM = record("source axis index length n_steps", ("steps", (np.int64, MAX_STEPS)))

#: The state of a GridSample, with any source of its grid.
GRID_SAMPLE = record(
    *_STATE,
    # The address of the function that measures the grid; 0 if the grid is the second input.
    "measure",
    "n_inputs",
    # The attribute align_corners of a fused AffineGrid, and the address of its ERRORS.
    "affine_align_corners affine_errors",
    ("programs", PROGRAMS),
)

#: The state of an op without fields of its own. Of ``kernel``, it uses the functions and the size
#: of an element.
PLAIN = record(*_STATE)

#: The state of another package's deformable attention.
FOREIGN_ATTENTION = record(
    *_STATE,
    # Whether the lengths of the levels are of type int32; otherwise they are of type int64.
    "is_int32",
)

#: A call of AffineGrid while its workers fill the grid. An item is a block of rows, within a chunk
#: of columns of a batch.
FILL = record(
    # Addresses of theta (n, r, r + 1), of the grid (n, rows, columns, r), and of the lengths (r,)
    # of its axes.
    "theta grid lengths",
    "align_corners n r rows columns",
    # The number of chunks of the columns; the rows of a block, and the number of blocks.
    "column_chunks rows_per_block row_blocks",
    # The number of items, and the next one.
    "items next",
    # The number of workers; addresses of buffers for each: the positions along the columns, and the
    # coordinates of a row that are written past the caches.
    "workers positions buffers",
)

#: Where a coordinate that a program reads is stored. A run is a range of positions whose elements
#: have a constant step in memory. It covers the innermost axes of the coordinate's shape.
COMPONENT = record(
    # The address of the value's elements, and the index of the component's first element.
    "data first",
    # The step between two positions in a run, in elements, and the number of positions in a run.
    "step run",
    # The number of outer axes, which enumerate the runs; the address of all axes' strides in
    # elements (0: broadcast).
    "axes strides",
)

#: The shape of a coordinate, as an error message prints it.
COORDINATES = record(
    # The axis of the value that lists coordinates, or -1; and its length.
    "axis length",
    # The number of coordinates.
    "r",
)
