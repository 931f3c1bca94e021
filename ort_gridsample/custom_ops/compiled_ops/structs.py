"""The records of the compiled ops, in addition to those of :mod:`ort_gridsample.kernels.structs`.

All fields are int64, arrays of int64, or records of these. Addresses are int64 as well; 0 is the
null pointer.
"""

from __future__ import annotations

import numpy as np

from ...kernels.program_codes import MAX_SOURCES
from ...kernels.structs import KERNEL, LAUNCH, MAX_LEVEL_AXES, record
from .c_api import FIELDS

#: The maximum number of inputs: X, then the grid, a program's scalars or a size, then the sources.
MAX_INPUTS = 2 + MAX_SOURCES

#: The maximum number of an op's inputs that may differ in type.
MAX_TYPED_INPUTS = 5

# --- Calls ---

#: An input of a call.
INPUT = record(
    "data",  # the address of its elements
    "shape",  # the address of its lengths
    "n_axes",  # the number of axes; -1 for an optional input that the node omits
)

#: A call of an op by ONNX Runtime.
REQUEST = record(
    ("launch", LAUNCH),  # first, so that a REQUEST and its LAUNCH have the same address
    "api",  # the address of the OrtApi
    "context",  # the address of the OrtKernelContext
    "blocks",  # the address of the last BLOCK that was allocated for the request
    "lacks_memory",  # 1 after an allocation failed
    "components",  # the address of a COMPONENT for each program
    ("inputs", (INPUT, MAX_INPUTS)),
    # The grid's shape. Its data are the grid's elements, or those of its source.
    ("grid", INPUT),
)

#: The shape of the status output of an op that replaces a Python op.
STATUS_SHAPE = record(
    "rows",  # the length of the output's first axis
    "columns",  # 1
)

#: The header of a block of memory in a linked list.
BLOCK = record(
    "next",  # the address of the next block
    "padding",  # keeps the memory after the header aligned to 16 bytes
)

#: Characters.
TEXT = record(
    "data",  # their address
    "length",  # their number without the terminating 0
)

# --- Ops ---

#: What the ops of a process, or of a variant of a library, have in common.
OP_CONTEXT = record(
    "api",  # the address of the OrtApi
    # The address of GetTensorElementTypeAndShapeDataReference; 0 in releases without it.
    "get_shape_reference",
    "cpus",  # the number of processors that this process may use
    "create_error",  # the address of :func:`.sentences.create_error`
    # The address of a function that compiles a missing state: see :func:`.creation.create_state`.
    # 0: a state that is missing is an error.
    "compile_state",
)

#: The ops of a library, compiled for one level of processors.
VARIANT = record(
    "level",  # the level of processors that the code needs
    "ops",  # the address of an array of OP
    "n_ops",  # its length
    "op_context",  # the address of the OP_CONTEXT of the ops
    "factory",  # the address of the FACTORY of the execution provider
    "foreign",  # the address of an array of FOREIGN_DOMAIN
    "n_foreign",  # its length
    "functions",  # the address of the FUNCTIONS for the functions of this package
)

#: The ops of another package's domain, which only the execution provider has.
FOREIGN_DOMAIN = record(
    "name",  # the address of the domain's name, with a terminating 0
    "ops",  # the address of an array of OP
    "n_ops",  # its length
)

#: The root of a library's data.
ENTRY = record(
    "lock",  # 1 while a thread registers the ops
    "domain",  # the OrtCustomOpDomain, 0 until it is created
    "api",  # the address of the OrtApi that created the domain
    "n_variants",  # the number of variants
    "variants",  # the address of an array of their addresses
    "no_variant_message",  # the address of an error message with a terminating 0
    "too_old_message",  # the address of an error message with a terminating 0
    "too_old_for_provider_message",  # the address of an error message with a terminating 0
)

#: An op: ONNX Runtime's struct OrtCustomOp, followed by the fields of this package.
OP = record(
    FIELDS,
    "name",  # the address of the op's type, with a terminating 0
    "n_inputs",
    "n_outputs",
    "variadic",  # the index of the variadic input, or -1
    ("types", (np.int64, MAX_TYPED_INPUTS)),  # the ONNXTensorElementDataType of each input
    "op_context",  # the address of its OP_CONTEXT
    "states",  # the address of an array of addresses of initial states; 0 for a missing state
    "sentences",  # the address of an array of TEXT: the op's error messages
    "description",  # the address of a text that describes the types of the inputs
)

#: A node while ONNX Runtime creates its kernel or infers its output's shape.
NODE = record(
    "api",  # the address of the OrtApi
    "op_context",  # the address of the OP_CONTEXT
    "info",  # the address of the OrtKernelInfo, or of the context of shape inference
    "blocks",  # as in a REQUEST
    "lacks_memory",  # as in a REQUEST
    "status",  # an OrtStatus*, 0 until there is an error
)

# --- States ---

#: The data of a node's error messages.
ERRORS = record(
    "create_error",  # as in an OP_CONTEXT
    "sentences",  # the address of an array of TEXT
    "prefix",  # the address of characters with a terminating 0, with which each message begins
    ("name", TEXT),  # the name of the node, which follows in quotes; without data, no name follows
)

#: The maximum number of arguments of a sentence.
MAX_ARGUMENTS = 6

#: An argument of a sentence: see :mod:`.sentences`.
ARGUMENT = record(
    "kind",  # how it is written
    "data",  # an integer, or the address of lengths or of characters
    "length",  # the number of lengths or of characters
)

#: The arguments of a sentence.
ARGUMENTS = record(("rows", (ARGUMENT, MAX_ARGUMENTS)))

#: A message of 2 KiB that is written without allocating memory.
MESSAGE = record(("words", (np.int64, 256)))

#: The first fields of every state.
_STATE = (
    ("kernel", KERNEL),
    "api",  # as in an OP_CONTEXT
    "get_shape_reference",  # as in an OP_CONTEXT
    "errors",  # the address of the node's ERRORS
)

#: The programs that compute a grid.
PROGRAMS = record(
    "n_scalars",  # the number of scalars
    "r",  # the number of coordinates
    "n_programs",  # the number of programs
    "programs",  # the address of an array of :data:`~ort_gridsample.kernels.program_codes.PROGRAM`
    "n_sources",  # the number of values that the programs read
    ("names", (TEXT, MAX_SOURCES)),  # their names
)

#: The state of a GridSample, with any source of its grid.
GRID_SAMPLE_STATE = record(
    *_STATE,
    # The address of the function that checks the inputs and sets the grid; 0 if it is an input.
    "prepare_grid",
    "n_inputs",
    "affine_align_corners",  # the attribute align_corners of a fused AffineGrid
    "affine_errors",  # the address of the ERRORS of a fused AffineGrid
    ("programs", PROGRAMS),
)

#: The state of an op without fields of its own. Of ``kernel``, it uses the functions and the size
#: of an element.
BASIC_STATE = record(*_STATE)

#: The operands of a deformable attention: the indices of the node's inputs, or -1, and the layouts
#: of these inputs. Conditions are 0 or 1.
OPERANDS = record(
    "value",
    "levels",  # -1: there is an array of LEVEL
    "starts",  # the first pixel of each level
    "locations",  # -1: each LEVEL has a grid
    "weights",
    "lengths_type",  # the element type of levels (L, 2) without numbers of points; 0: (L, 1 + r)
    "n_value_axes",  # 4: value is (B, S, H, D). 3: it is (B, S, H·D)
    "weights_layout",  # attention.STATED, BY_QUERY: (B, Q, H, …), or BY_IMAGE: (B·H, 1, Q, P)
    "grid_type",  # the element type of the grids
    "output_layout",  # the index of the layout of Y in spec.OUTPUT_LAYOUTS
    # H, D and r. They are 0 unless there is an array of LEVEL.
    "heads",
    "channels",
    "r",
)

#: A level of a deformable attention whose levels are not an input.
LEVEL = record(
    "points",  # the number of its points
    # The index of the input whose elements from the third on are the lengths of the level; -1 if
    # the lengths are constants.
    "shape_input",
    # The index of the input that is the grid (B·H, Q, points, r); not used if there are locations.
    "grid_input",
    ("lengths", (np.int64, MAX_LEVEL_AXES)),  # the lengths if they are constants
)

#: The state of a deformable attention.
ATTENTION_STATE = record(
    *_STATE,
    ("operands", OPERANDS),
    "levels",  # the address of an array of LEVEL
    "n_levels",  # its length
)

#: A call of AffineGrid while its workers fill the grid. An item is a block of rows, within a chunk
#: of columns of a batch.
FILL = record(
    "theta",  # the address of theta (n, r, r + 1)
    "grid",  # the address of the grid (n, rows, columns, r)
    "lengths",  # the address of the lengths (r,) of the grid's axes
    "align_corners",  # the attribute
    "n",  # the batch size
    "r",  # the number of spatial axes
    "rows",  # the number of rows of a batch
    "columns",  # the number of positions of a row
    "column_chunks",  # the number of chunks of the columns
    "rows_per_block",  # the number of rows of a block
    "row_blocks",  # the number of blocks of a batch
    "items",  # the number of items
    "next_item",  # the next item
    "workers",  # the number of workers
    "positions",  # the address of a buffer for each worker: the positions along the columns
    # The address of a buffer for each worker: a row's coordinates that are written past the caches.
    "buffers",
)

#: Where a coordinate that a program reads is stored. A run is a range of positions whose elements
#: have a constant step in memory. It covers the innermost axes of the coordinate's shape.
COMPONENT = record(
    "data",  # the address of the value's elements
    "first",  # the index of the component's first element
    "step",  # the step between two positions in a run, in elements
    "run",  # the number of positions in a run
    "n_outer_axes",  # the number of outer axes, which enumerate the runs
    "strides",  # the address of all axes' strides in elements (0: broadcast)
)
