"""Open a session of a ModelProto of 2.5 GiB.

Prints what its GridSample runs on, the error of its output, and the peak memory in GiB.
"""

import os
import resource
from pathlib import Path

import numpy as np
import onnx

import ort_gridsample as ogs
from support.models import parsed

ROWS = 1 << 17
LENGTH = 1 << 10
COUNT = 5


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def resident_gib() -> float:
    return (
        int(Path("/proc/self/statm").read_text().split()[1])
        * os.sysconf("SC_PAGE_SIZE")
        / (1 << 30)
    )


def main() -> None:
    gathers = " ".join(f"r{i} = Gather (w{i}, index)" for i in range(COUNT))
    rows = ", ".join(f"r{i}" for i in range(COUNT))
    model = parsed(
        f"g (float[1,1,2,2,2] X, float[1,1,1,3,3] G, int64[1] index) => (float[] Y, float[] R) "
        f'{{ {gathers} R = Sum ({rows}) Y = GridSample <mode = "cubic"> (X, G) }}',
        20,
    )
    for i in range(COUNT):
        tensor = model.graph.initializer.add(
            name=f"w{i}", data_type=onnx.TensorProto.FLOAT, dims=[ROWS, LENGTH]
        )
        tensor.raw_data = np.full(ROWS * LENGTH, i + 1, np.float32).tobytes()
    feeds = {
        "X": np.ones((1, 1, 2, 2, 2), np.float32),
        "G": np.zeros((1, 1, 1, 3, 3), np.float32),
        "index": np.array([ROWS - 1]),
    }
    before = resident_gib()
    # What making the model took must not hide what the session takes.
    Path("/proc/self/clear_refs").write_text("5")
    session = ogs.InferenceSession(model)
    rows_sum = session.run(["R"], feeds)[0]
    difference = float(np.abs(rows_sum - sum(range(COUNT + 1))).max())
    print(session.placements[0].runs_on, difference, round(peak_gib() - before, 3))


main()
