"""The number of threads of a call: an argument, a setting, or the number of processors."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

from .. import settings
from ..errors import GridSampleError
from .cpus import available_cpus, recently_available_cpus


def get_num_threads() -> int:
    """Return the number that :func:`set_num_threads` set, or its default.

    >>> get_num_threads() >= 1
    True

    It is the number that :func:`set_num_threads` set, else the value of the environment variable
    ``ORT_GRIDSAMPLE_NUM_THREADS``, else the number of processors that the process may use: those of
    its affinity, within the limits of its control groups. Helper threads of the compiled core wait
    for the next call for less than a millisecond, and then sleep.

    Returns:
        The maximum number of threads of one call, at least 1.

    Raises:
        GridSampleError: the environment variable is not a whole number, or is less than 1.
    """
    return settings.NUM_THREADS.get() or available_cpus()


def set_num_threads(num_threads: SupportsIndex | None) -> None:
    """Set the number of threads of calls that have no argument or session option for it.

    None restores the environment variable ``ORT_GRIDSAMPLE_NUM_THREADS``, or all processors.

    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    >>> set_num_threads(None)

    Args:
        num_threads: at least 1, or None.

    Raises:
        TypeError: ``num_threads`` is not a whole number.
        GridSampleError: ``num_threads`` is less than 1.
    """
    if num_threads is None:
        settings.NUM_THREADS.set(None)
        return
    if not settings.is_positive_integer(num_threads):
        expected = settings.VALID_NUM_THREADS_OR_NONE
        error = GridSampleError("set_num_threads", "num_threads", repr(num_threads), expected)
        if settings.is_whole_number(num_threads):
            raise error
        raise TypeError(str(error))
    settings.NUM_THREADS.set(index(num_threads))


def resolve_num_threads(num_threads: SupportsIndex | None) -> int:
    """Return the number of threads of a call.

    Args:
        num_threads: the argument of the call; None selects the default.
    """
    if num_threads is not None:
        return index(num_threads)
    return settings.NUM_THREADS.get() or recently_available_cpus()
