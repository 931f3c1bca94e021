"""Sample with a kernel that is compiled or loaded while there is no memory; print the results.

Argument: ``limited``, or ``unlimited`` to only sample.
"""

import sys
from contextlib import suppress

import numpy as np

import ort_gridsample as ogs
from support.address_limit import address_limit
from support.programs import result_or_error

X = np.ones((1, 20, 8, 8), np.float32)
GRID = np.zeros((1, 4, 4, 2), np.float32)


def shape_or_error_type(X_type: str, mode: str) -> str:
    result = result_or_error(lambda: ogs.grid_sample(X.astype(X_type), GRID, mode).shape)
    return str(result).partition(":")[0]


def use_all_memory() -> list[bytearray]:
    """Allocate what the C library keeps of freed memory."""
    blocks: list[bytearray] = []
    with suppress(MemoryError):
        while True:
            blocks.append(bytearray(4 << 20))
    return blocks


ogs.set_core("jit")
shape_or_error_type("float32", "linear")
if sys.argv[1] == "limited":
    with address_limit(1 << 20):
        blocks = use_all_memory()
        print(shape_or_error_type("int16", "cubic"))
print(shape_or_error_type("int16", "cubic"))
