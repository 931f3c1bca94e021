"""The encoding of programs that compute the coordinates of a fused grid.

An encoded program is a :data:`PROGRAM`. :func:`ort_gridsample.detection.programs.encode` fills an
array of them, which is an attribute of the fused node and, without a conversion, what compiled code
reads.
"""

import numpy as np

from .structs import record

#: The maximum number of values that a grid is computed from.
MAX_SOURCES = 6
#: The maximum number of steps of a program.
MAX_STEPS = 16
#: The operations of a step, on a coordinate x and an operand n: ``x op n`` or ``n op x``.
OPERATIONS = ("Add", "Sub", "Mul", "Div")
#: The code of a step has the bits ``operation << 1 | operand_first``. This number is added to the
#: code if another program computes the operand, so that it is not a scalar.
WITH_PROGRAM = 2 * len(OPERATIONS)

#: A program. The programs of the coordinates come first, and are followed by those that compute
#: operands, in the order of the steps that read them.
PROGRAM = record(
    "source",  # the index of the value that contains the coordinate
    "axis",  # the value's axis that lists coordinates, or -1
    "index",  # the coordinate's index on that axis
    "length",  # the length of that axis
    "n_steps",  # the number of steps
    ("steps", (np.int64, MAX_STEPS)),  # the codes of the steps
)
#: The number of integers of an encoded program.
N_NUMBERS = PROGRAM.itemsize // 8
