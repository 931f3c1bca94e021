"""Run models with a library where this package and its dependencies cannot be imported.

Arguments: the library, and a folder of models (NAME.onnx) with their feeds (NAME.npz). The output
of each model is written to NAME.npy. Print for each whether sixteen threads on one session have the
same output.
"""

# ruff: noqa: E402 (modules are hidden before the imports)

import sys

for name in ("numba", "onnx", "onnxruntime_extensions", "ort_gridsample"):
    sys.modules[name] = None  # type: ignore[assignment]

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime

library, folder = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(library)
for path in sorted(Path(folder).glob("*.onnx")):
    session = onnxruntime.InferenceSession(path, options)
    feeds = dict(np.load(path.with_suffix(".npz")))
    (expected,) = session.run(None, feeds)
    np.save(path.with_suffix(".npy"), expected)

    def is_same(_: int) -> bool:
        (Y,) = session.run(None, feeds)  # noqa: B023
        return np.array_equal(Y, expected)  # noqa: B023

    with ThreadPoolExecutor(16) as pool:
        print(all(pool.map(is_same, range(320))))
