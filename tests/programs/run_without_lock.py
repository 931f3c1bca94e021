"""Hold the GIL in one thread until a run of a compiled op in another thread has ended.

Once a run has written its first value, this thread calls a C function that keeps the GIL
until the run has written its last value. Both values are read from the memory that is bound as the
run's output. The program prints whether the run was under way when the call began, the
milliseconds that were left when it ended, and the smallest value of the output.
"""

import ctypes
import threading
import time

import numpy as np
from numba import cfunc, types

from ort_gridsample.kernels.pointers import array_at
from support.paths import open_compiled
from support.programs import open_sampling

ATTEMPTS = 50
TIMEOUT_MS = 60_000
#: The offset of a byte that is not 0 in a float32 of 3.
BYTE = 3
usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@cfunc(types.int64(types.int64, types.int64))
def wait_for_byte(address, milliseconds):  # type: ignore[no-untyped-def]
    while array_at(address, (1,), np.uint8)[0] == 0 and milliseconds > 0:
        usleep(1000)
        milliseconds -= 1
    return milliseconds


# A function of PYFUNCTYPE keeps the GIL.
wait_with_lock = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(
    wait_for_byte.address
)
session = open_sampling(open_compiled)
X = np.full((1, 16, 64, 64), 3, np.float32)
grid = np.zeros((1, 1024, 1024, 2), np.float32)
Y = np.zeros((1, 16, 1024, 1024), np.float32)
last_byte = Y.ctypes.data + Y.nbytes - Y.itemsize + BYTE
binding = session.io_binding()
binding.bind_cpu_input("X", X)
binding.bind_cpu_input("grid", grid)
binding.bind_output("Y0", "cpu", 0, np.float32, Y.shape, Y.ctypes.data)
for _ in range(ATTEMPTS):
    Y[...] = 0
    thread = threading.Thread(target=session.run_with_iobinding, args=(binding,))
    thread.start()
    while not Y[0, 0, 0, 0]:
        time.sleep(0)
    is_under_way = not Y[0, -1, -1, -1]
    milliseconds_left = wait_with_lock(last_byte, TIMEOUT_MS)
    thread.join()
    if is_under_way:
        break
print(is_under_way, milliseconds_left, Y.min())
