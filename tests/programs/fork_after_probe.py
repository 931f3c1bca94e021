"""Fork after a provider was probed; print the number of probes, and the exit status of the child.

The child opens the same model. It exits with 1 if it probes again or places nodes in another way,
and with 2 if it fails.
"""

import os
import signal
from contextlib import suppress
from unittest.mock import Mock

import onnx

import ort_gridsample as ogs
from ort_gridsample.inference.trial import Trial
from ort_gridsample.session.accelerator_answers import AnswerCache
from support.models import parsed

PROVIDER = "AzureExecutionProvider"
MODEL = parsed("""g (float[2,3,5,6,7] X, float[2,2,3,4,3] G) => (float[] Y) {
    A = Relu (X) Y = GridSample <mode = "cubic"> (A, G) }""")


def answer(trial: Trial, *arguments: object) -> str:
    """Return the refusal of a provider that runs basic operators only."""
    nodes = onnx.load_model_from_string(trial.model).graph.node
    is_basic = all(node.op_type not in ("GridSample", "AffineGrid") for node in nodes)
    return "" if is_basic else "it takes something else"


probe = Mock(side_effect=answer)
Trial.refusal = lambda trial, *arguments: probe(trial, *arguments)
AnswerCache._read = lambda cache, key: None
session = ogs.InferenceSession(MODEL, None, [PROVIDER])
probes = probe.call_count

child = os.fork()
if child == 0:
    signal.alarm(120)
    with suppress(BaseException):
        again = ogs.InferenceSession(MODEL, None, [PROVIDER])
        os._exit(int(probe.call_count > probes or again.placements != session.placements))
    os._exit(2)
print(probes, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
