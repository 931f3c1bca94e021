"""A session of the execution provider, run after the provider was unregistered."""

import numpy as np
import onnxruntime

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
from support.paths import open_provider

X = np.ones((1, 2, 5, 6), np.float32)
GRID = np.zeros((1, 3, 4, 2), np.float32)

session = open_provider(grid_sample_model("float32", "float32", 2, [Attributes()]))
onnxruntime.unregister_execution_provider_library("GridSampleExecutionProvider")
for _ in range(2):
    (Y,) = session.run(None, {"X": X, "grid": GRID})
    print(np.array_equal(Y, ogs.grid_sample(X, GRID)))
