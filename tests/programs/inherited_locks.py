"""Fork while another thread holds the locks of the registration; print how the child's run went.

The child opens and runs a session of compiled ops, whose kernels the parent has not compiled.
Prints the shape of its output, and then its exit status.
"""

import os
import signal
import threading

import numpy as np

from ort_gridsample.custom_ops.compiled_ops.registry import compiled_ops
from ort_gridsample.custom_ops.python_ops import extensions
from ort_gridsample.session import options
from support.paths import open_compiled
from support.programs import GRID, X, open_sampling, shape_or_error

open_sampling(open_compiled)
are_held = threading.Event()
is_done = threading.Event()


def hold_locks() -> None:
    for lock in (compiled_ops()._lock, options._lock, extensions._lock):
        lock.acquire()
    are_held.set()
    is_done.wait(60)


threading.Thread(target=hold_locks, daemon=True).start()
are_held.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(60)
    session = open_sampling(open_compiled, "uint8", "nearest")
    print(shape_or_error(session, X.astype(np.uint8), GRID), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
is_done.set()
