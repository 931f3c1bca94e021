"""From onnxruntime's message back to the error that a compiled op's sentence is."""

from __future__ import annotations

import re

from ... import spec
from ...errors import GridSampleError

_OPERATORS = (*spec.OPERATORS, *spec.COMPOSITES)
_ARGUMENTS = {name for each in _OPERATORS for name in spec.newest(each).types} | {"Y", "spatial_shapes", "memory"}
_SENTENCE = re.compile(
    rf"Status Message: ((?:{'|'.join(_OPERATORS)}) node .*?): ({'|'.join(_ARGUMENTS)}) is (.*?), expected (.*)",
    re.DOTALL,
)


def error_in(message: str) -> GridSampleError | None:
    """The error whose sentence onnxruntime's ``message`` quotes, if it is a compiled op's."""
    sentence = _SENTENCE.search(message)
    return None if sentence is None else GridSampleError(*sentence.groups())
