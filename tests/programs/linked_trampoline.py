"""Run compiled ops through a trampoline that is linked; print the shapes of two sessions' outputs.

Argument: the folder in which the trampoline is kept.
"""

import sys
from pathlib import Path

from ort_gridsample.custom_ops.compiled_ops import trampoline

trampoline._JUMPS = {}
trampoline.cache_folder = lambda: Path(sys.argv[1])

# These load the trampoline, to find out whether there are compiled ops.
from support.paths import open_compiled, open_compiled_file  # noqa: E402
from support.programs import GRID, X, open_sampling, shape_or_error  # noqa: E402

for open_model in (open_compiled, open_compiled_file):
    print(*shape_or_error(open_sampling(open_model), X, GRID))
