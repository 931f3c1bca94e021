"""Run a model in onnxruntime alone, or with this package if that does not run it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import onnxruntime

from ..custom_ops.plain_session import PLAIN_SESSION
from ..errors import one_line
from ..reference.arrays import Array
from ..session.installed_runtime import quiet_options
from ..session.registration import register
from ..session.session import InferenceSession

#: The path or the bytes of a model.
Model: TypeAlias = str | bytes
#: Arrays by the names of inputs or outputs.
Arrays: TypeAlias = Mapping[str, Array]

_CPU = ["CPUExecutionProvider"]


def _plain_session(model: Model) -> onnxruntime.InferenceSession:
    return PLAIN_SESSION(model, quiet_options(0), providers=_CPU)


def _session_with_ops(model: Model) -> onnxruntime.InferenceSession:
    return PLAIN_SESSION(model, register(quiet_options(0)), providers=_CPU)


def _patching_session(model: Model) -> onnxruntime.InferenceSession:
    return InferenceSession(model, quiet_options(0), providers=_CPU)


#: Name -> the function that opens a session, in the order in which they are tried.
BACKENDS: Mapping[str, Callable[[Model], onnxruntime.InferenceSession]] = {
    "onnxruntime": _plain_session,
    "onnxruntime with ort_gridsample's ops": _session_with_ops,
    "ort_gridsample's session": _patching_session,
}


@dataclass(frozen=True)
class ModelRun:
    """A run of a model.

    Attributes:
        path: the path of the model.
        backend: the one of :data:`BACKENDS` that ran the model.
        refusal: onnxruntime's error if it alone does not run the model, else empty.
        session: the session that ran the model, for other inputs.
        feeds: the inputs of the run, by name.
        outputs: the outputs of the run, by name.
    """

    path: str
    backend: str
    refusal: str
    session: onnxruntime.InferenceSession
    feeds: Arrays
    outputs: Arrays


def run(
    path: str,
    make_feeds: Callable[[onnxruntime.InferenceSession], Arrays],
) -> ModelRun:
    """Run a model on the first of :data:`BACKENDS` that runs it.

    Args:
        path: the path of the model.
        make_feeds: returns the inputs for a session. It is called for each session that opens.

    Raises:
        Exception: no backend runs the model; the error of the last one.
    """
    refusal = ""
    for backend, open_session in BACKENDS.items():
        try:
            session = open_session(path)
            feeds = make_feeds(session)
            return ModelRun(
                path=path,
                backend=backend,
                refusal=refusal,
                session=session,
                feeds=feeds,
                outputs=run_session(session, feeds),
            )
        except Exception as error:
            last_error = error
            refusal = refusal or one_line(error)
    raise last_error


def run_session(session: onnxruntime.InferenceSession, feeds: Arrays) -> Arrays:
    """Return the outputs of a session on ``feeds``, by name."""
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))
