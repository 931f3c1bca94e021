"""Run a lowered model once, so that no file that fails in a run is written without a warning."""

from __future__ import annotations

import logging
import math

import onnxruntime

from ..errors import GridSampleError
from . import inputs, runners

logger = logging.getLogger("ort_gridsample")
#: The lengths of dimensions without a number that are tried: many models do not run with the first.
_OPEN_LENGTHS = (inputs.OPEN_LENGTHS, inputs.OTHER_OPEN_LENGTHS, (1, 64))
#: The maximum number of elements of all inputs together. A run of more may need too much time.
MAX_ELEMENTS = 1 << 24


class _TooLargeError(Exception):
    """The inputs of a model are too large for a trial."""


def warn_of_failing_run(source: str, lowered: str) -> None:
    """Log a warning if onnxruntime does not run a lowered model, but its source can be run.

    Both models run on random inputs. Nothing is logged if no tried inputs fit the source.

    Args:
        source: the path of the source, which may also run in this package's session.
        lowered: the path of the lowered model, which runs in onnxruntime.
    """
    refusals = dict[tuple[int, int], str]()
    try:
        for lengths in _OPEN_LENGTHS:
            try:
                runners.run_in_onnxruntime(lowered, lambda session: _feeds(session, lengths))  # noqa: B023
                return
            except runners.RefusedModelError as error:
                refusals[lengths] = error.refusal
        for lengths, refusal in refusals.items():
            if _runs(source, lengths):
                logger.warning(
                    "%s runs on random inputs, and %s fails on them in onnxruntime: %s",
                    source,
                    lowered,
                    refusal,
                )
                return
    except (_TooLargeError, GridSampleError, MemoryError) as error:
        logger.debug("%s is not run: %s", lowered, error)


def _runs(source: str, lengths: tuple[int, int]) -> bool:
    try:
        runners.run_in_any(source, lambda session: _feeds(session, lengths))
    except (_TooLargeError, MemoryError):
        raise
    except Exception as error:
        logger.debug("%s does not run on inputs of the lengths %s: %s", source, lengths, error)
        return False
    return True


def _feeds(session: onnxruntime.InferenceSession, lengths: tuple[int, int]) -> runners.Arrays:
    """Return random inputs of a session.

    Raises:
        _TooLargeError: they have more than :data:`MAX_ELEMENTS` elements.
        GridSampleError: NumPy lacks the type of one.
    """
    shapes = [inputs.shape_of(value, lengths) for value in session.get_inputs()]
    if sum(map(math.prod, shapes)) > MAX_ELEMENTS:
        raise _TooLargeError(f"its inputs have more than {MAX_ELEMENTS} elements")
    return inputs.random_feeds(session, lengths)
