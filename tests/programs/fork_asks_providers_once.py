"""Fork after a provider was asked about a model; print how often it was asked, and the exit status of the child.

The child opens the same model. It exits with 1 where it asks again or places nodes otherwise, with 2 where it fails.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import onnx

import ort_gridsample as ogs
from ort_gridsample.session import accelerators, probe_answers
from support.models import parsed

PROVIDER = "AzureExecutionProvider"
MODEL = parsed("""g (float[2,3,5,6,7] X, float[2,2,3,4,3] G) => (float[] Y) {
    A = Relu (X) Y = GridSample <mode = "cubic"> (A, G) }""")


def answer(trial: object, model: bytes, *how: object) -> str:
    """Take models of basic operators only."""
    nodes = onnx.load_model_from_string(model).graph.node
    takes_all = all(node.op_type not in ("GridSample", "AffineGrid") for node in nodes)
    return probe_answers.RUNS if takes_all else "it takes something else"


asked = Mock(side_effect=answer)
accelerators.run_probe = asked
probe_answers.AnswerCache._read = lambda cache, key: None
session = ogs.InferenceSession(MODEL, None, [PROVIDER])
before = asked.call_count

child = os.fork()
if child == 0:
    signal.alarm(120)
    with suppress(BaseException):
        again = ogs.InferenceSession(MODEL, None, [PROVIDER])
        os._exit(int(asked.call_count > before or again.replaced != session.replaced))
    os._exit(2)
print(before, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
