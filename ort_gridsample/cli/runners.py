"""Running a model in onnxruntime alone where that runs it, else with this package's ops."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import onnxruntime

from ..reference.arrays import Array
from ..session.native import quiet_options
from ..session.registration import register
from ..session.session import InferenceSession

Model = str | bytes
Arrays = Mapping[str, Array]

_CPU = ["CPUExecutionProvider"]
_session = partial(onnxruntime.InferenceSession, providers=_CPU)
#: Ways to run a model -> how to make the session, in the order in which they are tried.
WAYS: Mapping[str, Callable[[Model], onnxruntime.InferenceSession]] = {
    "onnxruntime": lambda model: _session(model, quiet_options(0)),
    "onnxruntime with ort_gridsample's ops": lambda model: _session(model, register(quiet_options(0))),
    "ort_gridsample's session": lambda model: InferenceSession(model, quiet_options(0), providers=_CPU),
}


@dataclass(frozen=True)
class Side:
    """A model that was run in a ``way`` of :data:`WAYS`: the session, the inputs and the outputs."""

    way: str
    refusal: str  #: onnxruntime's error where it alone does not run the model, else empty
    session: onnxruntime.InferenceSession
    feeds: Arrays
    answers: Arrays


def run(model: Model, feeds: Callable[[onnxruntime.InferenceSession], Arrays]) -> Side:
    """``model`` on the ``feeds`` for its session, in the first of :data:`WAYS` that runs it; else the last's error."""
    refusal = ""
    for way, make in WAYS.items():
        try:
            session = make(model)
            fed = feeds(session)
            return Side(way, refusal, session, fed, answers(session, fed))
        except Exception as error:
            refusal, last = refusal or " ".join(str(error).split()), error
    raise last


def answers(session: onnxruntime.InferenceSession, feeds: Arrays) -> Arrays:
    """The outputs on ``feeds``, by name."""
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))
