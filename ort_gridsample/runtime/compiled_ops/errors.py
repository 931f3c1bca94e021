"""From onnxruntime's message back to the error that a compiled op's sentence is."""

from __future__ import annotations

import re

from ... import spec
from ...errors import GridSampleError

_SENTENCE = re.compile(
    rf"Status Message: ((?:{'|'.join(spec.OPERATORS)}) node .*?): (X|grid|Y|theta|size|memory) is (.*?), expected (.*)",
    re.DOTALL,
)


def error_in(message: str) -> GridSampleError | None:
    """The error whose sentence onnxruntime's ``message`` quotes, if it is a compiled op's."""
    sentence = _SENTENCE.search(message)
    return None if sentence is None else GridSampleError(*sentence.groups())
