"""Open and drop as many sessions as the argument says; print how much the memory grew, in MiB.

Memory is compared after one fifth of the sessions and after all.
"""

import sys

import onnxruntime

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
from support.programs import GRID, X, resident_mib, shape_or_error

count = int(sys.argv[1])
model = grid_sample_model("float32", "float32", 2, [Attributes()])
patched = ogs.patch_model(model, target="compiled").SerializeToString()
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
ogs.register(options)
sizes = []
for number in range(1, count + 1):
    session = onnxruntime.InferenceSession(patched, options)
    if number % 100 == 1:
        shape_or_error(session, X, GRID)
    if number % (count // 5) == 0:
        sizes.append(resident_mib())
print(sizes[-1] - sizes[0])
