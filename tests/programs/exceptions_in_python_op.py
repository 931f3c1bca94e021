"""Raise exceptions in the function that a Python op calls; print, for each opener, what runs raise.

Arguments: names of functions in support.paths, whose sessions run Python ops.
"""

import sys
from unittest.mock import Mock, patch

from ort_gridsample.functions import sampling
from support import paths
from support.programs import GRID, X, open_sampling, print_for_each_opener, shape_or_error

EXCEPTIONS = (ValueError, MemoryError, KeyboardInterrupt, SystemExit, RecursionError)


def check(open_model: paths.Open) -> list[dict[str, object]]:
    session = open_sampling(open_model)
    results = []
    for exception in EXCEPTIONS:
        failure = Mock(side_effect=exception("broken on purpose"))
        with patch.object(sampling, "grid_sample", failure):
            try:
                raised = shape_or_error(session, X, GRID)
            except BaseException as error:
                raised = f"{type(error).__name__}: {error}"
        results.append({"raised": raised, "next run": shape_or_error(session, X, GRID)})
    return results


print_for_each_opener(check, sys.argv[1:])
