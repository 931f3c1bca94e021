"""Fork with compiled sessions alive, and end the interpreter with them.

Print the shape of the output of a new session in the child, and of each session in the parent.
"""

import builtins
import os
import warnings

import numpy as np

from support.paths import open_compiled, open_compiled_file
from support.programs import GRID, X, open_sampling, shape_or_error

# Python 3.12 warns of every fork.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
sessions = [open_sampling(open_compiled), open_sampling(open_compiled_file)]
child = os.fork()
if child == 0:
    session = open_sampling(open_compiled, "uint8", "nearest")
    print(shape_or_error(session, X.astype(np.uint8), GRID), flush=True)
    os._exit(0)
os.waitpid(child, 0)
for session in sessions:
    print(shape_or_error(session, X, GRID))
# The builtins are deleted after all other modules.
builtins.sessions = sessions  # type: ignore[attr-defined]
