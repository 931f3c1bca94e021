"""The exceptions of Python ops, which must not raise: an op returns the number of its exception.

A guard makes the run fail with an error that contains the number: see
:mod:`ort_gridsample.graph.run_errors`.
"""

import itertools
from collections import OrderedDict

#: The maximum number of exceptions that are stored: a plain onnxruntime session never fetches its
#: own.
MAX_STORED = 256
#: The number of an exception that could not be stored.
LOST = (1 << 63) - 1


class FailureStore:
    """The exceptions of Python ops by number, the oldest first."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._exceptions: OrderedDict[int, BaseException] = OrderedDict()

    def __len__(self) -> int:
        return len(self._exceptions)

    def record(self, failure: BaseException) -> int:
        """Store ``failure``, and return its number."""
        number = next(self._numbers)
        self._exceptions[number] = failure.with_traceback(None)
        while len(self._exceptions) > MAX_STORED:
            self._exceptions.popitem(last=False)
        return number

    def pop(self, number: int) -> BaseException | None:
        """Remove and return the exception of a number; None if there is none."""
        return self._exceptions.pop(number, None)


#: The exceptions of this process.
store = FailureStore()
record = store.record
pop = store.pop
