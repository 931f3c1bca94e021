"""Run one session of an attention model in sixteen threads; print whether each run is right.

The argument names a function of support.paths that opens the session. Every fifth run has wrong
feeds, and is right if its error names them.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from support import paths
from support.attention_models import form, form_feeds

QUERIES = 40
BATCHES = (1, 2, 3)
model = form("stacked/queries-dynamo")
session = getattr(paths, sys.argv[1])(model)
native = paths.open_native(model)
expected = {n: native.run(None, form_feeds("stacked", n, QUERIES))[0] for n in BATCHES}


def is_right(number: int) -> bool:
    n = BATCHES[number % len(BATCHES)]
    feeds = form_feeds("stacked", n, QUERIES)
    if number % 5 == 0:
        feeds["c"] = feeds["c"][:, :30]
        try:
            session.run(None, feeds)
        except Exception as error:
            return "attention_weights" in str(error) or "rejected" in str(error)
        return False
    (Y,) = session.run(None, feeds)
    return bool(np.allclose(Y, expected[n], rtol=0, atol=1e-5))


with ThreadPoolExecutor(16) as pool:
    print(all(pool.map(is_right, range(400))))
