"""What trials on accelerators found out, in memory and on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..graph.files import atomic_write
from ..kernels.cache_folder import cache_folder, sealed, unsealed
from .provider_process import NO_PYTHON, TIMED_OUT

#: The answer if the providers run a model correctly. Any other answer is the reason why not.
RUNS = "yes"
#: How an answer with the seconds of a run begins.
_SECONDS = "seconds "
#: After so many seconds a refusal is out of date, because a driver may have been installed.
_MAX_REFUSAL_AGE = 86400.0


class AnswerCache:
    """The answers of trials by key, in memory and on disk.

    Forked processes inherit the answers in memory. A file holds the text of an answer and its hash,
    and has the key as its name. A refusal on disk is valid for a day.
    """

    def __init__(self) -> None:
        self._answers: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        """Return the answer, or None if there is none."""
        answer = self._answers.get(key) or self._read(key)
        if answer:
            self._answers[key] = answer
        return answer

    def put(self, key: str, answer: str) -> None:
        """Keep an answer in memory, and on disk if it is valid for other processes.

        If the provider timed out, the machine may be busy. In a host program, the provider was not
        tried, and the next process may be a Python.
        """
        self._answers[key] = answer
        if answer != NO_PYTHON and not answer.startswith(TIMED_OUT):
            self._write(key, answer)

    def seconds(self, key: str, measure: Callable[[], float]) -> float:
        """Return the seconds that are kept under ``key``, which are measured unless there are any.

        Infinite ones, of runs that failed, are kept in memory only.
        """
        answer = self.get(key)
        if answer is not None and answer.startswith(_SECONDS):
            return float(answer.removeprefix(_SECONDS))
        seconds = measure()
        answer = f"{_SECONDS}{seconds!r}"
        self._answers[key] = answer
        if math.isfinite(seconds):
            self._write(key, answer)
        return seconds

    def _read(self, key: str) -> str | None:
        with suppress(OSError, RuntimeError):  # there is no file, or no home directory
            file = _folder() / key
            encoded = unsealed(file.read_bytes(), key)
            is_new = time.time() - file.stat().st_mtime < _MAX_REFUSAL_AGE
            answer = "" if encoded is None else encoded.decode()
            if is_new or answer == RUNS or answer.startswith(_SECONDS):
                return answer or None
        return None

    def _write(self, key: str, answer: str) -> None:
        with suppress(OSError, RuntimeError):
            _folder().mkdir(parents=True, exist_ok=True)
            with atomic_write(_folder() / key) as file:
                file.write_bytes(sealed(answer.encode(errors="backslashreplace"), key))


def _folder() -> Path:
    return cache_folder() / "providers"


#: The answers of this process.
ANSWERS = AnswerCache()
