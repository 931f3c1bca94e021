"""Lock a file as a process does that compiles a kernel; print ``locked``, and wait to be killed.

The argument is the path of the file.
"""

import sys
import time
from pathlib import Path

from ort_gridsample.kernels.kernel_lock import try_lock

with try_lock(Path(sys.argv[1])) as is_free:
    print("locked" if is_free else "locked by another process", flush=True)
    time.sleep(300)
