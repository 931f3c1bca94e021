"""Fork while other threads register ops; print how the runs of the children went.

Some of the children inherit locks of the registration that a thread of the parent holds. Each child
opens and runs a session, with a kernel that the parent has not compiled. Prints the shape of the
last child's output, and the exit statuses of all.
"""

import os
import signal
import sys
import threading

import numpy as np
import onnxruntime

import ort_gridsample as ogs
from support.paths import open_compiled
from support.programs import GRID, X, open_sampling, shape_or_error

CHILDREN = 20
open_sampling(open_compiled)
is_done = threading.Event()


def register_ops() -> None:
    while not is_done.is_set():
        ogs.register(onnxruntime.SessionOptions())


def run_in_child(is_last: bool) -> None:
    signal.alarm(100)  # a first kernel takes ten seconds, and longer on a busy machine
    session = open_sampling(open_compiled, "uint8", "nearest")
    shape = shape_or_error(session, X.astype(np.uint8), GRID)
    if is_last:
        print(shape, flush=True)
    os._exit(shape != X.shape)


sys.setswitchinterval(1e-6)  # threads are interrupted anywhere
threads = [threading.Thread(target=register_ops) for _ in range(3)]
for thread in threads:
    thread.start()
statuses = set()
for number in range(CHILDREN):
    child = os.fork()
    if child == 0:
        run_in_child(number == CHILDREN - 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    statuses.add(status)
    if status:
        break
is_done.set()
for thread in threads:
    thread.join()
print(*statuses)
