"""How an op says that it failed: it may not raise, so it returns a number, and the exception waits here under it.

The number travels as the op's ``status`` output to the guard that the patch puts behind every op, a ``GatherND`` of Y
by it along the first axis: all places there pass, a number is out of the bounds of the nothing that a failed op
returns, and ONNX Runtime's own error text then quotes it. In a session's own model, which nobody changes, it gathers
the number alone. Before opset 11, and in models of earlier releases, the guard is a ``Gather``.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict

#: Failures that nobody asked for (a plain onnxruntime session) make way for newer ones.
KEPT = 256

#: The number of a failure that could not be kept.
LOST = (1 << 63) - 1

_numbers = itertools.count(1)
_waiting: OrderedDict[int, BaseException] = OrderedDict()
_QUOTED = re.compile(r"ort_gridsample rejected .* (?:idx=|index = )(\d+)", re.DOTALL)


def record(failure: BaseException) -> int:
    """Keep ``failure``, and return its number."""
    number = next(_numbers)
    _waiting[number] = failure.with_traceback(None)
    while len(_waiting) > KEPT:
        _waiting.popitem(last=False)
    return number


def exception_for(message: str) -> BaseException | None:
    """The failure that onnxruntime's error ``message`` quotes, if it is one of ours."""
    quoted = _QUOTED.search(message)
    return _waiting.pop(int(quoted[1]), None) if quoted else None
