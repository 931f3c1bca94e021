"""The codes of programs that compute the coordinates of a fused grid.

:mod:`ort_gridsample.detection.programs` writes them, and compiled code reads them.
"""

#: The maximum number of values that a grid is computed from.
MAX_SOURCES = 6
#: The maximum number of steps of a program.
MAX_STEPS = 16
#: The operations of a step, on a coordinate x and an operand n: ``x op n`` or ``n op x``.
OPERATIONS = ("Add", "Sub", "Mul", "Div")
#: The code of a step has the bits ``operation << 1 | operand_first``. This number is added to the
#: code if another program computes the operand, so that it is not a scalar.
WITH_PROGRAM = 2 * len(OPERATIONS)
#: The number of integers before the steps of an encoded program.
N_HEADER_NUMBERS = 5  # source, axis, index, length, n_steps
