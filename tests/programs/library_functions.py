"""Call the functions with the library in ORT_GRIDSAMPLE_LIBRARY and without Numba.

The arguments are a file of inputs, and a file for the outputs by each core. Print a line of JSON
with the names of the cores, and whether Numba is imported.
"""

import json
import sys

if "numba" not in sys.modules:  # it cannot be imported from here on
    sys.modules["numba"] = None  # type: ignore[assignment]

import numpy as np

import ort_gridsample as ogs
from support.library_calls import outputs_of

source, target = sys.argv[1:]
inputs = dict(np.load(source))
cores = [ogs.get_core()]
outputs = {f"{name} default": array for name, array in outputs_of(inputs).items()}
for core in ("jit", "numpy"):
    ogs.set_core(core)  # type: ignore[arg-type]
    cores.append(ogs.get_core())
    outputs |= {f"{name} {core}": array for name, array in outputs_of(inputs).items()}
np.savez(target, **outputs)
print(json.dumps([cores, sys.modules["numba"] is not None]))
