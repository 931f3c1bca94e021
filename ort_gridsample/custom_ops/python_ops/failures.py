"""Exceptions of Python ops, which may not raise: an op returns a number, under which its exception is kept here.

The number is the op's ``status`` output. The guard, a node that the patch puts behind every op, gathers Y by it along
the first axis (``GatherND``, before opset 11 and in models of earlier releases ``Gather``): valid positions pass, and
the number is out of the bounds of a failed op's empty Y, so that ONNX Runtime's error text quotes it. In a session's
own model the guard gathers the status alone.
"""

import itertools
import re
from collections import OrderedDict

#: So many failures are kept: a plain onnxruntime session never fetches its own.
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
    """The failure whose number onnxruntime's error ``message`` quotes; None where it quotes none."""
    quoted = _QUOTED.search(message)
    return _waiting.pop(int(quoted[1]), None) if quoted else None
