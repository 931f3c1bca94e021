"""Rules for operators that split, reshape or measure: Split, Reshape and Shape."""

from __future__ import annotations

from collections.abc import Sequence

from ...inference.types import length_at
from ...spec import Dim, may_be_empty
from .obstacles import ObstacleError
from .signature_fit import fit_to_older_signature
from .step import Rewritten, VersionStep

#: The default of Shape's attribute ``end``: beyond any rank.
_NO_END = 1 << 62
#: A length that no tensor can have, so that a run fails.
_IMPOSSIBLE_LENGTH = 1 << 40


def write_split_lengths(step: VersionStep) -> Rewritten:
    """Write the lengths of a Split as an attribute."""
    if step.input(1):
        step.set_attributes(split=step.constant_integers(1))
    step.truncate_inputs(1)
    return [step.node]


def write_equal_lengths(step: VersionStep) -> Rewritten:
    """Write the lengths of a Split that states their number.

    All lengths are equal but the last, which may be shorter.
    """
    node = step.node
    if step.input(1):
        step.remove_attributes("num_outputs")
        return fit_to_older_signature(step)
    axis = step.attribute("axis", 0)
    count = step.attribute("num_outputs", len(node.output))
    step.remove_attributes("num_outputs")
    length = length_at(step.input_shape(0), axis)
    if isinstance(length, int):
        return _split_known_length(step, length, count)
    return _split_computed_length(step, axis, count)


def _split_known_length(step: VersionStep, length: int, count: int) -> Rewritten:
    """Write the lengths of all outputs, from the length of the axis."""
    node = step.node
    chunk = -(-length // count)
    lengths = [min(chunk, length - chunk * index) for index in range(count)]
    if min(lengths) < 0:
        expected = f"a number of chunks of {chunk} that {length} elements fill"
        raise ObstacleError("num_outputs", str(count), expected)
    e = step.expressions()
    node.input[:] = [node.input[0], e.name_of(e.row(*lengths))]
    e.node(node)
    return e.finish_all()


def _split_computed_length(step: VersionStep, axis: int, count: int) -> Rewritten:
    """Write a Slice for each output: its starts and ends can be computed in every opset."""
    node = step.node
    e = step.expressions()
    value = e.input(node.input[0])
    chunk = (e.lengths(value, axis) + (count - 1)) / count
    parts = {
        output: e.slice(value, chunk * index, chunk * (index + 1), axis)
        for index, output in enumerate(node.output)
        if output
    }
    return e.finish_all(parts)


def drop_allowzero(step: VersionStep) -> Rewritten:
    """Remove ``allowzero``: without it, a 0 in the shape means the input's length of that axis."""
    node = step.node
    allows_zero = bool(step.attribute("allowzero", 0))
    step.remove_attributes("allowzero")
    if not allows_zero or not _allowzero_matters(step):
        return [node]
    # Zeros become a length that fails a run.
    e = step.expressions()
    lengths = e.input(node.input[1], "int64")
    possible_lengths = e.where(e.equal(lengths, 0), _IMPOSSIBLE_LENGTH, lengths)
    node.input[1] = e.name_of(possible_lengths)
    e.node(node)
    return e.finish_all()


def _allowzero_matters(step: VersionStep) -> bool:
    """Whether a run of a Reshape may have another shape of the output without ``allowzero``.

    A single 0 that is not the input's length of its axis changes the number of elements if no other
    length is 0: the run fails, as it must. In addition to another 0, it may change the shape only.

    Raises:
        ObstacleError: a length is a 0 that is not the input's length, or may be one because the
            shape is an input of the graph or function.
    """
    lengths = _target_lengths(step)
    if lengths is None:
        return True
    input_shape = step.input_shape(0)
    copied_lengths: list[Dim] = []  # equal to the input's length of their axis
    n_unknown = 0  # the number of lengths that may be 0 in a run
    for axis, length in enumerate(lengths):
        if length is not None and length == length_at(input_shape, axis):
            copied_lengths.append(length)
        elif length == 0:
            raise step.obstacle("allowzero", 1)
        elif not isinstance(length, int):
            n_unknown += 1
    return n_unknown > 1 or (n_unknown == 1 and may_be_empty(copied_lengths))


def _target_lengths(step: VersionStep) -> Sequence[Dim] | None:
    """Return the lengths of a Reshape's output, None where unknown; None if the rank is unknown.

    Raises:
        ObstacleError: the shape is an input of the graph or function, and may have zeros.
    """
    shape = step.constant_input(1)
    if shape is not None:
        return [int(length) for length in shape.ravel()]
    node = step.node
    scope = step.context.scope
    defining_scope = scope.defining_scope(node.input[1])
    if defining_scope is not None and defining_scope.definitions[node.input[1]] is None:
        raise step.obstacle("allowzero", 1)
    return step.context.inference.value_in_all_calls(scope, node.output[0]).shape


def slice_whole_shape(step: VersionStep) -> Rewritten:
    """Write a Shape of all axes, and a Slice of it."""
    node = step.node
    start = step.attribute("start", 0)
    end = step.attribute("end", _NO_END)
    step.remove_attributes("start", "end")
    if start == 0 and end == _NO_END:
        return [node]
    e = step.expressions()
    output = node.output[0]
    node.output[0] = step.context.names.new(f"{output}_whole")
    return e.finish(e.slice(e.node(node), e.row(start), e.row(end)), output)
