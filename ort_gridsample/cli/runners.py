"""Run a model in onnxruntime alone, with this package's ops, or in this package's session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import onnxruntime

from ..custom_ops.plain_session import PLAIN_SESSION
from ..dialects.table import COMPILED_DOMAIN, DOMAIN
from ..errors import one_line
from ..graph.files import read_model, translate_errors
from ..graph.scope import scopes_of, used_domains
from ..reference.arrays import Array
from ..session.installed_runtime import quiet_options
from ..session.registration import register
from ..session.session import InferenceSession
from . import bfloat16

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


ONNXRUNTIME = "onnxruntime"
WITH_OPS = "onnxruntime with ort_gridsample's ops"
SESSION = "ort_gridsample's session"
#: Name -> the function that opens a session.
BACKENDS: Mapping[str, Callable[[Model], onnxruntime.InferenceSession]] = {
    ONNXRUNTIME: _plain_session,
    WITH_OPS: _session_with_ops,
    SESSION: _patching_session,
}


class RefusedModelError(Exception):
    """onnxruntime does not run a model, with this package's ops if the model has some.

    Attributes:
        refusal: onnxruntime's error in one line.
        backend: the one of :data:`BACKENDS` that refused the model.
    """

    def __init__(self, refusal: str, backend: str) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        self.backend = backend


@dataclass(frozen=True)
class ModelRun:
    """A run of a model.

    Attributes:
        path: the path of the model.
        backend: the one of :data:`BACKENDS` that ran the model.
        refusal: onnxruntime's error if it does not run the model, else empty. If the model has ops
            of this package, onnxruntime has them too.
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


#: Returns the inputs for a session.
MakeFeeds: TypeAlias = Callable[[onnxruntime.InferenceSession], Arrays]


def run_in_onnxruntime(path: str, make_feeds: MakeFeeds) -> ModelRun:
    """Run a model in onnxruntime, with this package's ops if the model has some.

    Raises:
        RefusedModelError: onnxruntime does not run the model.
        OSError: the file cannot be read.
        GridSampleError: the file is not a model, or an error of ``make_feeds``.
        ImportError: the model needs ops of this package, which are not available.
    """
    backends = _backends_of(path)
    for backend in backends[:-1]:
        try:
            return _run_on(backend, path, make_feeds)
        except RefusedModelError:
            continue
    return _run_on(backends[-1], path, make_feeds)


def run_in_session(path: str, make_feeds: MakeFeeds, refusal: str) -> ModelRun:
    """Run a model in this package's session.

    Args:
        make_feeds: returns the inputs for the session.
        refusal: why onnxruntime does not run the model, or empty.

    Raises:
        RefusedModelError: the session does not run the model. Its cause is the session's error.
    """
    return replace(_run_on(SESSION, path, make_feeds), refusal=refusal)


def run_in_any(path: str, make_feeds: MakeFeeds) -> ModelRun:
    """Run a model in onnxruntime, or in this package's session if onnxruntime does not run it.

    Raises:
        Exception: neither runs the model; the error of the session.
    """
    try:
        return run_in_onnxruntime(path, make_feeds)
    except RefusedModelError as error:
        refusal = error.refusal
    try:
        return run_in_session(path, make_feeds, refusal)
    except RefusedModelError as error:
        raise (error.__cause__ or error) from None


def _backends_of(path: str) -> list[str]:
    """Return the backends, other than this package's session, that may run the model of a file.

    Only onnxruntime can read a file of ORT's format, so it is unknown which ops it has.

    Raises:
        OSError: the file cannot be read.
        GridSampleError: the file is not a model.
    """
    if _is_in_ort_format(path):
        return [ONNXRUNTIME, WITH_OPS]
    model = read_model(path)
    with translate_errors(model):
        domains = used_domains(model, scopes_of(model))
    has_ops = not domains.isdisjoint((DOMAIN, COMPILED_DOMAIN))
    return [WITH_OPS if has_ops else ONNXRUNTIME]


def _is_in_ort_format(path: str) -> bool:
    """Whether a file has the identifier of ORT's format, behind the offset of its root table."""
    with Path(path).open("rb") as file:
        return file.read(8)[4:] == b"ORTM"


def _run_on(backend: str, path: str, make_feeds: MakeFeeds) -> ModelRun:
    """Run a model on a backend.

    Raises:
        RefusedModelError: the backend does not run the model.
        Exception: an error of ``make_feeds``, or one that says nothing about the model.
    """
    with _refusals(backend):
        session = BACKENDS[backend](path)
    feeds = make_feeds(session)
    with _refusals(backend):
        outputs = run_session(session, feeds)
    return ModelRun(path, backend, "", session, feeds, outputs)


def run_again(model_run: ModelRun, feeds: Arrays) -> Arrays:
    """Return the outputs of the session of ``model_run`` on other inputs.

    Raises:
        RefusedModelError: the model does not run on them.
    """
    with _refusals(model_run.backend):
        return run_session(model_run.session, feeds)


@contextmanager
def _refusals(backend: str) -> Iterator[None]:
    """Raise RefusedModelError for each error that is about the model."""
    try:
        yield
    except (MemoryError, OSError, ImportError):
        raise
    except Exception as error:
        raise RefusedModelError(one_line(error), backend) from error


def run_session(session: onnxruntime.InferenceSession, feeds: Arrays) -> Arrays:
    """Return the outputs of a session on ``feeds``, by name.

    Raises:
        GridSampleError: the session has an output of bfloat16, and others that cannot be read
            together with it.
    """
    return dict(zip(output_names(session), call(session, feeds)(), strict=True))


def output_names(session: onnxruntime.InferenceSession) -> list[str]:
    """Return the names of a session's outputs."""
    return [value.name for value in session.get_outputs()]


def call(
    session: onnxruntime.InferenceSession,
    feeds: Arrays,
) -> Callable[[], Sequence[Array]]:
    """Return a function that runs a session on ``feeds``, and returns its outputs."""
    names = output_names(session)
    if any(value.type == bfloat16.ORT_TYPE for value in session.get_outputs()):
        return partial(bfloat16.run, session, names, feeds)
    return partial(session.run, names, bfloat16.with_ort_values(feeds))
