"""The names and the detection of helper nodes, which a patch puts around a node.

A Python op accepts no float16 and no bfloat16, must not raise, and its output has no known type
inside a function. Casts, a guard and a CastLike compensate for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import onnx
from onnx import TensorProto, helper

from ..dialects.table import COMPILED_DOMAIN, DOMAIN
from ..errors import GridSampleError, where_node
from ..graph.new_names import Names
from ..graph.scope import OUTSIDE, Scope, display_name

#: The key in the ``metadata_props`` of a helper node. Its value is the node that it helps.
_HELPS = "ort_gridsample.helps"
#: The element types that no Python op accepts.
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def is_guard_of(node: onnx.NodeProto, op: onnx.NodeProto) -> bool:
    """Whether ``node`` is the guard of ``op``.

    A guard gathers the op's output at the positions in the op's status. All consumers read the
    output through the guard, and so no optimization can remove it.
    """
    return node.op_type in ("Gather", "GatherND") and list(node.input) == list(op.output)


def has_status(op: onnx.NodeProto) -> bool:
    """Whether a Python op has the output that its guard reads.

    A node that was written by hand may not have it.
    """
    return len(op.output) > 1


def mark_as_helper(node: onnx.NodeProto, where: str) -> onnx.NodeProto:
    """Mark ``node`` as a helper of the node ``where``, and return it."""
    node.metadata_props.add(key=_HELPS, value=where)
    return node


def helper_cast(
    op_type: str,
    inputs: Sequence[str],
    output: str,
    where: str,
    names: Names,
    **to: Any,
) -> onnx.NodeProto:
    """Return a Cast or CastLike that is a helper of the node ``where``."""
    name = names.new(f"ort_gridsample casts for {where}")
    return mark_as_helper(helper.make_node(op_type, inputs, [output], name, **to), where)


def is_helper(node: onnx.NodeProto) -> bool:
    """Whether a patch put ``node`` around another node."""
    return any(entry.key == _HELPS for entry in node.metadata_props)


class WithHelpers(NamedTuple):
    """A node together with its helper nodes.

    Attributes:
        inputs: the values that the first of these nodes read.
        output: the value that the last of these nodes computes.
        helpers: the indices of the helper nodes.
    """

    inputs: Sequence[str]
    output: str
    helpers: frozenset[int]


def with_helpers(scope: Scope, node: onnx.NodeProto) -> WithHelpers:
    """Return ``node`` together with its helpers in ``scope``.

    Raises:
        GridSampleError: the guard consists of two nodes, and the second one is missing; or another
            node than a guard reads the status.
    """
    output = node.output[0] if node.output else ""
    if node.domain not in (DOMAIN, COMPILED_DOMAIN):
        return WithHelpers(node.input, output, frozenset())
    nodes = scope.nodes
    helpers = set[int]()
    inputs = []
    for name in node.input:
        maker = scope.makers.get(name)
        if maker is not None and _is_input_cast(nodes[maker]):
            helpers.add(maker)
            name = nodes[maker].input[0]
        inputs.append(name)
    status_readers = [reader for name in node.output[1:] for reader in _readers(scope, name)]
    for reader in status_readers:
        _check_reads_status(nodes[reader], node)
        helpers.add(reader)
        if is_guard_of(nodes[reader], node):
            output = nodes[reader].output[0]
            if nodes[reader].op_type == "Gather":
                squeeze = _squeeze_of_guard(scope, node, output)
                helpers.add(squeeze)
                output = nodes[squeeze].output[0]
    for reader in _readers(scope, output):
        if _is_output_cast(nodes[reader]) and nodes[reader].input[0] == output:
            helpers.add(reader)
            output = nodes[reader].output[0]
            break
    return WithHelpers(inputs, output, frozenset(helpers))


def _is_input_cast(node: onnx.NodeProto) -> bool:
    """Whether ``node`` is a helper that casts an input of another node."""
    return is_helper(node) and node.op_type == "Cast" and not _casts_to_half(node)


def _is_output_cast(node: onnx.NodeProto) -> bool:
    """Whether ``node`` is a helper that casts the output of another node."""
    return is_helper(node) and (node.op_type == "CastLike" or _casts_to_half(node))


def _casts_to_half(node: onnx.NodeProto) -> bool:
    """Whether ``node`` is a Cast to a type that no Python op accepts.

    Of two neighbouring nodes, this distinguishes the Cast of an output from that of an input.
    """
    if node.op_type != "Cast":
        return False
    return any(attribute.name == "to" and attribute.i in _HALVES for attribute in node.attribute)


def _check_reads_status(reader: onnx.NodeProto, op: onnx.NodeProto) -> None:
    """Check that ``reader``, which reads the status of ``op``, is a guard.

    The guard of a session's model reads nothing but the status.

    Raises:
        GridSampleError: it is another node, which a patch would have to drop.
    """
    is_guard = reader.op_type in ("Gather", "GatherND") and {*reader.input} <= {*op.output}
    if not is_guard:
        raise GridSampleError(
            where_node(op.op_type, display_name(op)),
            f"the status {op.output[1]!r}",
            f"an input of {where_node(reader.op_type, display_name(reader))}",
            "no reader but the guard that a patch writes",
        )


def _readers(scope: Scope, name: str) -> list[int]:
    """Return the indices of the nodes that read ``name`` as an input, not only in a body."""
    readers = sorted(scope.readers.get(name, ()))
    return [index for index in readers if index != OUTSIDE and name in scope.inputs[index]]


def _squeeze_of_guard(scope: Scope, node: onnx.NodeProto, gathered: str) -> int:
    """Return the index of the Squeeze that removes the axis that a guard of ``node`` adds.

    Raises:
        GridSampleError: there is no such Squeeze.
    """
    readers = _readers(scope, gathered)
    if len(readers) == 1:
        (index,) = readers
        squeeze = scope.nodes[index]
        axes = [list(attribute.ints) for attribute in squeeze.attribute]
        for name in squeeze.input[1:]:
            constant = scope.constant_value(name)
            if constant is not None:
                axes.append(list(constant))
        if squeeze.op_type == "Squeeze" and axes == [[1]]:
            return index
    raise GridSampleError(
        where_node(node.op_type, display_name(node)),
        "the guard",
        "without its Squeeze",
        "a Squeeze of axis 1 after it, as a patch writes",
    )
