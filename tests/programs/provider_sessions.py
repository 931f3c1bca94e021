"""Create and drop sessions of the execution provider, and print how much the memory grew.

Arguments: the number of sessions; and a form of deformable attention, or "transformer" for an
AffineGrid with a GridSample, by default a GridSample.
"""

import sys

import onnxruntime

from support.attention_models import form
from support.cases import Attributes
from support.fused_models import transformer
from support.models import grid_sample_model
from support.paths import provider_options

count, *names = sys.argv[1:]
if not names:
    proto = grid_sample_model("float32", "float32", 2, [Attributes()])
elif names == ["transformer"]:
    proto = transformer()
else:
    proto = form(names[0])
model = proto.SerializeToString()
options = provider_options()
options.intra_op_num_threads = 1


def resident() -> float:
    """Return the resident memory of this process, in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


before = 0.0
for index in range(int(count)):
    onnxruntime.InferenceSession(model, options)
    if index == int(count) // 10:
        before = resident()
print(resident() - before)
