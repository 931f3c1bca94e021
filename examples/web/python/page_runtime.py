"""onnxruntime-web as the runner of a probe.

onnxruntime-web is asynchronous, and the package's functions are not. So a call of a function that
meets a question without an answer goes on as if the runtime refused, and keeps the question. The
page asks onnxruntime-web, and calls the function again, until there is no open question.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ort_gridsample.inference.runtime_probe import OutputType

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Question:
    """What onnxruntime-web must run.

    Attributes:
        key: the hash of all of it.
        model: the serialized model.
        feeds: the inputs of each run; None if only the types of the outputs are needed.
        optimized: whether the graph is optimized.
    """

    key: str
    model: bytes
    feeds: Sequence[Arrays] | None
    optimized: bool


@dataclass
class Answer:
    """What onnxruntime-web returned.

    Attributes:
        error: its error, or "".
        runs: the outputs of each run.
        types: the types of the outputs.
    """

    error: str = ""
    runs: list[list[np.ndarray]] = field(default_factory=list)
    types: list[OutputType] = field(default_factory=list)


class UnansweredError(Exception):
    """onnxruntime-web was not asked yet."""


class WebRuntime:
    """A :class:`ort_gridsample.inference.runtime_probe.CpuRunner` of known answers.

    Attributes:
        answers: the answers by the keys of their questions.
        questions: the questions without an answer, by their keys.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.questions: dict[str, Question] = {}

    def run(
        self, model: bytes, feeds: Sequence[Arrays], *, optimized: bool
    ) -> list[list[np.ndarray]]:
        """Return the outputs of each run; see the protocol.

        Raises:
            RuntimeError: onnxruntime-web refuses the model.
            UnansweredError: it was not asked yet.
        """
        return self._answer(model, feeds, optimized).runs

    def output_types(self, model: bytes) -> list[OutputType]:
        """Return the types of the outputs; see the protocol.

        Raises:
            RuntimeError: onnxruntime-web refuses the model.
            UnansweredError: it was not asked yet.
        """
        return self._answer(model, None, True).types

    def _answer(self, model: bytes, feeds: Sequence[Arrays] | None, optimized: bool) -> Answer:
        key = _key(model, feeds, optimized)
        answer = self.answers.get(key)
        if answer is None:
            self.questions[key] = Question(key, model, feeds, optimized)
            raise UnansweredError
        if answer.error:
            raise RuntimeError(answer.error)
        return answer


def _key(model: bytes, feeds: Sequence[Arrays] | None, optimized: bool) -> str:
    digest = hashlib.sha256(model)
    digest.update(f"{optimized} {feeds is None}".encode())
    for run_feeds in feeds or ():
        for name, array in run_feeds.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
