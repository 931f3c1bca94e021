"""Errors in a run: the nodes that raise them, and how they are read from onnxruntime's message.

No standard operator raises an error with a text. A Gather with an index out of bounds fails, and
onnxruntime's message begins with the name of the node that failed. Therefore a node that checks an
input has the error as its name. A compiled op reports an error as the message itself.

A Python op may raise any exception, but an exception must not leave it. It returns the number of
its exception as its ``status`` output. The guard, a node after each op, gathers Y by the status
along the first axis (``GatherND``; before opset 11 ``Gather``). Valid positions pass. The number of
a failed op is out of the bounds of its empty Y, so that onnxruntime's message contains the number.
In the model of a session the guard reads the status only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx

from ..errors import GridSampleError
from .expressions import DimLike, Expressions, Tensor

#: What is found by a check that compares a shape. The lengths are not known before a run.
_FOUND = "of another shape"

#: A node as :func:`ort_gridsample.errors.where_node` writes it.
_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_NODE = rf"\w+ node (?:with output )?{_QUOTED}"
_PARTS = r"(\w+) (is|contains) (.*?), expected (.*?)"
_AFTER_NAME = r"(?:_\d+)?' Status Message: "
#: How onnxruntime writes the name of a failed node, the status of an op, and that of an op that
#: cannot be created. The name may begin with the name of the original node, and end with a number.
#: A node of a function, which several nodes share, has only the operator in its error.
_ERRORS = [
    re.compile(rf"(?s)Name:'(?:.*/)??({_NODE}): {_PARTS}{_AFTER_NAME}"),
    re.compile(rf"(?s)Name:'.*/(\w+): {_PARTS}{_AFTER_NAME}"),
    re.compile(rf"(?s)Status Message: ({_NODE}): {_PARTS}\Z"),
    re.compile(rf"(?s)Exception during initialization: .*?({_NODE}): {_PARTS}\Z"),
]
#: How an error of onnxruntime or onnxruntime-web starts before the sentence of the kernel.
_ERROR_CODE = re.compile(
    r"^(?:\[ONNXRuntimeError\] : \d+ : \w+ : |.*?ERROR_CODE: \d+, ERROR_MESSAGE: )"
)
#: How onnxruntime writes that the guard of a Python op failed.
_GUARD = "ort_gridsample rejected the input of "
_FAILURE = re.compile(rf"{_GUARD}.* (?:idx=|index = )(\d+)", re.DOTALL)


# --- Checks ---


def shape_error(where: str, argument: str, expected: str) -> GridSampleError:
    """Return the error of a check that compares a shape with what is ``expected``."""
    return GridSampleError(where, argument, _FOUND, expected)


def is_shape_check(node: onnx.NodeProto) -> bool:
    """Whether ``node`` is the last one of :func:`require_same` for a shape."""
    return node.op_type == "Add" and f" is {_FOUND}, expected " in node.name


def write_check(
    e: Expressions, numbers: Tensor, error: GridSampleError, *, is_single: bool = False
) -> Tensor:
    """Write a node that fails in a run with an error unless all ``numbers`` are 0.

    The node is a Gather from one element, for which the indices 0 and -1 are in bounds.

    Args:
        numbers: (n,), integers but -1, with n ≥ 1.
        is_single: whether n is 1.

    Returns:
        A 0, int64 of shape (1,). Nodes that need the check must read it, because unread nodes are
        dropped.
    """
    gathered = e.named_op("Gather", e.constant([0]), numbers, name=str(error), axis=0)
    return gathered if is_single else e.gather(gathered, [0])


def check_lengths(
    e: Expressions,
    lengths: Sequence[DimLike],
    expected: Sequence[DimLike],
    error: GridSampleError,
) -> list[Tensor]:
    """Write a check that lengths are the ``expected`` ones. Pairs of known lengths are not checked.

    Returns:
        The output of :func:`write_check`; empty if all lengths are known.
    """
    pairs = [
        (length, other)
        for length, other in zip(lengths, expected, strict=True)
        if not (isinstance(length, int) and isinstance(other, int))
    ]
    if not pairs:
        return []
    actual_shape = e.shape([length for length, _ in pairs])
    expected_shape = e.shape([other for _, other in pairs])
    numbers = (actual_shape - expected_shape) * 2  # even, as -1 must not occur
    return [write_check(e, numbers, error, is_single=len(pairs) == 1)]


def require_same(x: Tensor, actual: Tensor, expected: Tensor, error: GridSampleError) -> Tensor:
    """Write a check that two rows of integers are equal.

    Args:
        x: a row of integers, which passes through the check.
        actual: the row to check.
        expected: what it must be. The check also fails if the rows differ in length, unless one of
            them has one element.

    Returns:
        A value that equals ``x``, and is computed after the check.
    """
    e = x.owner
    # Equal itself fails if the lengths differ. Differences of any integers would wrap around.
    is_equal = e.named_op("Equal", actual, expected, name=str(error))
    zero = write_check(e, 1 - is_equal.astype("int64"), error).astype(x.type)
    return e.named_op("Add", x, zero, name=str(error))


def guard_name(where: str) -> str:
    """Return the name of the guard of the Python op of the node ``where``."""
    return f"{_GUARD}{where} (ort_gridsample.InferenceSession says why)"


# --- Messages ---


def read_error(message: str) -> GridSampleError | None:
    """Return the error that a check or a compiled op reports in onnxruntime's ``message``.

    Returns:
        The error, or None if the message is about something else.
    """
    for pattern in _ERRORS:
        match = pattern.search(message)
        if match is not None:
            where, argument, verb, found, expected = match.groups()
            return GridSampleError(where, argument, found, expected, verb)
    return None


def read_failure(message: str) -> int | None:
    """Return the number of a Python op's exception in onnxruntime's ``message``, or None."""
    match = _FAILURE.search(message)
    return int(match[1]) if match is not None else None


def without_error_code(message: str) -> str:
    """Return the sentence of a kernel in the ``message`` of onnxruntime or onnxruntime-web."""
    return _ERROR_CODE.sub("", message)
