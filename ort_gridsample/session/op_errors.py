"""Recognize errors of this package's ops in the error messages of onnxruntime."""

from __future__ import annotations

import re

from .. import spec
from ..custom_ops.python_ops import failures
from ..errors import GridSampleError

_OPERATORS = tuple(spec.OP_SPECS)
_INPUTS = {name for operator in _OPERATORS for name in spec.newest(operator).types}
_ARGUMENTS = _INPUTS | {"Y", "spatial_shapes", "memory"}

#: The error of a compiled op: where, argument, verb, what was found and what was expected.
_OP_ERROR = re.compile(
    rf"(?s)Status Message: ((?:{'|'.join(_OPERATORS)}) node .*?): "
    rf"({'|'.join(_ARGUMENTS)}) (is|contains) (.*?), expected (.*)"
)
#: The error of a compiled op that cannot be created, such as one that a library lacks.
_CREATION_ERROR = re.compile(
    rf"(?s)Exception during initialization: .*?((?:{'|'.join(_OPERATORS)}) node .*?): "
    r"(\w+) (is|contains) (.*?), expected (.*)"
)
#: The error of a node that checks a shape or a value. Its name has the parts of the error: see
#: :func:`ort_gridsample.rewriting.run_checks.fail_unless_equal`.
_CHECK_ERROR = re.compile(
    r"(?s)Name:'(\w+ node .*?): (\w+) (is|contains) (.*?), expected (.*?)(?:_\d+)?' "
    r"Status Message: "
)


def exception_for(message: str) -> BaseException | None:
    """Return the exception of an op of this package, from onnxruntime's error ``message``.

    Returns:
        The exception that a Python op raised, or the error that a compiled op or a check reported.
        None if the message is about something else.
    """
    raised = failures.exception_for(message)
    if raised is not None:
        return raised
    error = _OP_ERROR.search(message) or _CHECK_ERROR.search(message)
    return None if error is None else _error_of(error)


def creation_error_for(message: str) -> GridSampleError | None:
    """Return the error of a compiled op that cannot be created, from onnxruntime's ``message``.

    Returns:
        The error, or None if the message is about something else.
    """
    error = _CREATION_ERROR.search(message)
    return None if error is None else _error_of(error)


def _error_of(match: re.Match[str]) -> GridSampleError:
    where, argument, verb, found, expected = match.groups()
    return GridSampleError(where, argument, found, expected, verb)
