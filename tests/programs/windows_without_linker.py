"""Use the package as on Windows without a linker for the trampoline; print the results in JSON."""

from unittest.mock import patch

from support import other_systems

other_systems.imitate_windows()

import importlib.util  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402

import numpy as np  # noqa: E402

from ort_gridsample.custom_ops.compiled_ops import registry, trampoline  # noqa: E402

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "ziglang" else find_spec(name)
shutil.which = lambda name: None
trampoline._JUMPS = {}

import ort_gridsample as ogs  # noqa: E402
from ort_gridsample.reference import sampler  # noqa: E402
from support.cases import Attributes  # noqa: E402
from support.models import grid_sample_model  # noqa: E402
from support.paths import open_session  # noqa: E402
from support.programs import (  # noqa: E402
    GRID,
    X,
    open_sampling,
    restore_interrupt_handler,
    result_or_error,
    shape_or_error,
)


def interrupt_run() -> list[object]:
    """Interrupt a run inside its op; return the exception, and whether the handler is restored."""
    session = open_sampling(open_session)
    handler = signal.getsignal(signal.SIGINT)
    grid_sample = sampler.grid_sample

    def interrupt(*args: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return grid_sample(*args)

    exception = "no exception"
    with patch.object(sampler, "grid_sample", interrupt):
        try:
            session.run(None, {"X": X, "grid": GRID})
        except KeyboardInterrupt:
            exception = "KeyboardInterrupt"
    return [exception, signal.getsignal(signal.SIGINT) is handler]


restore_interrupt_handler()
default_ops = ogs.get_ops()
ogs.set_core("numpy")
session = ogs.InferenceSession(grid_sample_model("uint8", "float32", 2, [Attributes()]))
(placement,) = session.placements
results = {
    "default ops": default_ops,
    "reason": registry.unavailable_reason(),
    "placement": [placement.runs_on, placement.reason],
    "shape": shape_or_error(session, X.astype(np.uint8), GRID),
    "set_ops": result_or_error(ogs.set_ops, "compiled"),
    "interrupted run": interrupt_run(),
}
print(json.dumps(results))
