"""Run a session until a signal ends the process; print "ready" before the first run.

Argument: the name of a function in support.paths.
"""

import sys

from support import paths
from support.programs import GRID, X, open_sampling, restore_interrupt_handler

restore_interrupt_handler()
session = open_sampling(getattr(paths, sys.argv[1]), mode="cubic")
print("ready", flush=True)
while True:
    session.run(None, {"X": X, "grid": GRID})
