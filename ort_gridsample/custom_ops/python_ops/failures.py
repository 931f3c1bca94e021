"""The exceptions of Python ops, which must not raise: an op returns the number of its exception.

The number is the op's ``status`` output. The guard, a node that is inserted after every op,
gathers Y by the status along the first axis (``GatherND``; before opset 11 ``Gather``). Valid
positions pass. The number of a failed op is out of the bounds of its empty Y, so ONNX Runtime's
error message contains the number. In the model of a session the guard reads the status only.
"""

import itertools
import re
from collections import OrderedDict

#: The maximum number of exceptions that are stored: a plain onnxruntime session never fetches its
#: own.
MAX_STORED = 256
#: The number of an exception that could not be stored.
LOST = (1 << 63) - 1

_NUMBER = re.compile(r"ort_gridsample rejected .* (?:idx=|index = )(\d+)", re.DOTALL)


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

    def exception_for(self, message: str) -> BaseException | None:
        """Remove and return the exception whose number ONNX Runtime's error ``message`` contains.

        None if there is no number, or no exception.
        """
        match = _NUMBER.search(message)
        return self._exceptions.pop(int(match[1]), None) if match else None


#: The exceptions of this process.
store = FailureStore()
record = store.record
exception_for = store.exception_for
