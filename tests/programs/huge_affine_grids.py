"""Run AffineGrid with sizes of larger grids than any machine can hold; print the errors.

Arguments: a list of sizes in JSON, and names of functions in support.paths.
"""

import json
import sys

import numpy as np

from support import paths
from support.models import affine_grid_model
from support.programs import print_for_each_opener, result_or_error


def check(open_model: paths.Open) -> list[object]:
    model = affine_grid_model("float32", 2, False)
    model.graph.input[1].type.tensor_type.ClearField("shape")
    session = open_model(model)

    def grid_shape(size: list[int]) -> tuple[int, ...]:
        feeds = {"theta": np.ones((1, 2, 3), np.float32), "size": np.array(size, np.int64)}
        return session.run(None, feeds)[0].shape

    return [result_or_error(grid_shape, size) for size in SIZES]


SIZES = json.loads(sys.argv[1])
print_for_each_opener(check, sys.argv[2:])
