"""Helper nodes that a patch puts around a node: how they are named and found.

A Python op accepts no float16 and no bfloat16, must not raise, and has no known type inside a
function. Casts, a guard and a CastLike compensate for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import helper

from ..dialects.table import COMPILED_DOMAIN, DOMAIN, EXTENSIONS_DOMAIN
from ..errors import GridSampleError, node_label
from ..graph.scope import OUTSIDE, Names, Scope, display_name

#: The key in the ``metadata_props`` of a helper node. Its value is the node that it helps.
_HELPS = "ort_gridsample.helps"
#: The part of the names of lowered nodes that follows the name of the original node.
_LOWERED = "/ort_gridsample/"
_LOWERED_GRID = f"{_LOWERED}coordinates/"
#: What a shape is found to be in the error that is the name of a node which checks shapes in a run.
OTHER_SHAPE = "of another shape"


def is_check(node: onnx.NodeProto) -> bool:
    """Whether ``node`` checks in a run that a shape is as the original node requires."""
    return node.op_type == "Gather" and f" is {OTHER_SHAPE}, expected " in node.name


def guard_name(where: str) -> str:
    """Return the name of the guard of the node ``where``. onnxruntime's error begins with it."""
    hint = "ort_gridsample.InferenceSession says why"
    return f"ort_gridsample rejected the input of {where} ({hint})"


def guards(node: onnx.NodeProto, op: onnx.NodeProto) -> bool:
    """Whether ``node`` is the guard of ``op``.

    A guard gathers the op's output at the positions in its status.

    All readers of the output read it through the guard. Therefore no optimization can remove the
    guard.
    """
    return node.op_type in ("Gather", "GatherND") and list(node.input) == list(op.output)


def has_status(op: onnx.NodeProto) -> bool:
    """Whether a Python op has the output that its guard reads.

    A node that was written by hand may not have it.
    """
    return len(op.output) > 1


def mark(node: onnx.NodeProto, where: str) -> onnx.NodeProto:
    """Mark ``node`` as a helper of the node ``where``, and return it."""
    node.metadata_props.add(key=_HELPS, value=where)
    return node


def cast(
    op_type: str,
    inputs: Sequence[str],
    output: str,
    where: str,
    names: Names,
    **to: Any,
) -> onnx.NodeProto:
    """Return a Cast or CastLike that is a helper of the node ``where``."""
    name = names.new(f"ort_gridsample casts for {where}")
    return mark(helper.make_node(op_type, inputs, [output], name, **to), where)


def lowered_name(where: str, name: str, reads_grid: bool) -> str:
    """Return the name of one of the nodes to which the node ``where`` is lowered.

    onnxruntime keeps names, but no metadata, when it optimizes a model or inlines a function.
    """
    return f"{where}{_LOWERED_GRID if reads_grid else _LOWERED}{name}"


def lowered_from(node: onnx.NodeProto) -> str | None:
    """Return the name of the node that was lowered to ``node`` and others.

    None: ``node`` is no lowered node.
    """
    name, separator, _ = node.name.partition(_LOWERED)
    return name if separator else None


def reads_grid(node: onnx.NodeProto) -> bool:
    """Whether a lowered node computes with the grid."""
    return _LOWERED_GRID in node.name


def is_helper(node: onnx.NodeProto) -> bool:
    """Whether a patch put ``node`` around another node."""
    return any(entry.key == _HELPS for entry in node.metadata_props)


def around(scope: Scope, node: onnx.NodeProto) -> tuple[Sequence[str], str, frozenset[int]]:
    """Return the inputs and the output of ``node`` with its helpers, and the helpers' positions.

    Raises:
        GridSampleError: the guard consists of two nodes, and the second one is missing.
    """
    output = node.output[0] if node.output else ""
    if node.domain not in (DOMAIN, COMPILED_DOMAIN, EXTENSIONS_DOMAIN):
        return node.input, output, frozenset()
    nodes = scope.nodes
    helpers = set[int]()
    inputs = []
    for name in node.input:
        maker = scope.makers.get(name)
        if maker is not None and nodes[maker].op_type == "Cast" and is_helper(nodes[maker]):
            helpers.add(maker)
            name = nodes[maker].input[0]
        inputs.append(name)
    status_readers = [reader for name in node.output[1:] for reader in _readers(scope, name)]
    for reader in status_readers:  # only guards read the status
        helpers.add(reader)
        if guards(nodes[reader], node):
            output = nodes[reader].output[0]
            if nodes[reader].op_type == "Gather":
                squeeze = _squeeze_of_guard(scope, node, output)
                helpers.add(squeeze)
                output = nodes[squeeze].output[0]
    for reader in _readers(scope, output):
        if is_helper(nodes[reader]) and nodes[reader].input[0] == output:
            helpers.add(reader)
            output = nodes[reader].output[0]
            break
    return inputs, output, frozenset(helpers)


def _readers(scope: Scope, name: str) -> list[int]:
    """Return the positions of the nodes that read ``name`` themselves, not in a graph they hold."""
    readers = sorted(scope.readers.get(name, ()))
    return [index for index in readers if index != OUTSIDE and name in scope.inputs[index]]


def _squeeze_of_guard(scope: Scope, node: onnx.NodeProto, gathered: str) -> int:
    """Return the position of the Squeeze that removes the axis which a guard of ``node`` adds."""
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
        node_label(node.op_type, display_name(node)),
        "the guard behind it",
        "without its Squeeze",
        "the nodes that a patch writes",
    )
