"""Use a library in ORT_GRIDSAMPLE_LIBRARY that is not valid; print a line of JSON.

The line has the errors of ``InferenceSession`` and ``register``, and the shape of the function's
output.
"""

import json
from collections.abc import Callable

import numpy as np

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model


# support.programs cannot be imported here, because support.paths checks the library.
def error_of(function: Callable[..., object], *args: object) -> str:
    try:
        function(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


model = grid_sample_model("float32", "float32", 2, [Attributes()])
X = np.ones((1, 2, 4, 4), np.float32)
GRID = np.zeros((1, 3, 3, 2), np.float32)
errors = [error_of(ogs.InferenceSession, model), error_of(ogs.register)]
print(json.dumps([*errors, ogs.grid_sample(X, GRID).shape]))
