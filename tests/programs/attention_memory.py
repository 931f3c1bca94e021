"""Run a compiled deformable attention twice; print the second run's peak and its output, in MiB."""

import numpy as np

from support.attention_models import operands, session_for
from support.memory import clear_peak, peak_mib
from support.programs import resident_mib

levels = np.array([[4, 64, 64], [4, 32, 32]])
value, locations, weights = operands(levels, n=1, q=5120, h=8, d=32)
feeds = {"value": value, "levels": levels, "at": locations, "by": weights}
session = session_for("float32", "float32", False)
session.run(None, feeds)
clear_peak()
before = resident_mib()
(Y,) = session.run(None, feeds)
print(peak_mib() - before, Y.nbytes / 2**20)
