"""Helper nodes, which a patch puts around a node or in its place: their names, and how to find them again.

A Python-defined op takes no float16 or bfloat16, may not raise, and has no type that is known inside a function: Casts,
a guard and a CastLike make up for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import helper

from ..dialects.table import COMPILED_DOMAIN, DOMAIN, EXTENSIONS_DOMAIN
from ..errors import GridSampleError, node_label
from ..graph.scope import OUTSIDE, Names, Scope, called

#: The key in a helper node's ``metadata_props``; its value is the node that it helps.
_HELPS = "ort_gridsample.helps"

_LOWERED = "/ort_gridsample/"
_LOWERED_GRID = f"{_LOWERED}coordinates/"


#: The found part of the error that is the name of a node which checks a shape in a run.
OTHER_SHAPE = "of another shape"


def is_check(node: onnx.NodeProto) -> bool:
    """Whether ``node`` fails in a run where a shape is not as the contract of the original node requires."""
    return node.op_type == "Gather" and f" is {OTHER_SHAPE}, expected " in node.name


def guard_name(where: str) -> str:
    """The name of the guard node behind the node ``where``: the beginning of ONNX Runtime's error text."""
    return f"ort_gridsample rejected the input of {where} (ort_gridsample.InferenceSession says why)"


def guards(node: onnx.NodeProto, op: onnx.NodeProto) -> bool:
    """Whether ``node`` is the guard behind ``op``: it gathers the op's output at the places that are its status.

    Every reader of the output reads it through the guard, so no pass can drop that.
    """
    return node.op_type in ("Gather", "GatherND") and list(node.input) == list(op.output)


def has_status(op: onnx.NodeProto) -> bool:
    """Whether a Python op has the output that its guard reads; a node that was written by hand may not."""
    return len(op.output) > 1


def mark(node: onnx.NodeProto, where: str) -> onnx.NodeProto:
    """``node``, marked as a helper of the node ``where``."""
    node.metadata_props.add(key=_HELPS, value=where)
    return node


def cast(op_type: str, inputs: Sequence[str], output: str, where: str, names: Names, **to: Any) -> onnx.NodeProto:
    """A Cast or CastLike around the node ``where``."""
    name = names.new(f"ort_gridsample casts for {where}")
    return mark(helper.make_node(op_type, inputs, [output], name, **to), where)


def lowered_name(where: str, name: str, reads_grid: bool) -> str:
    """The name of the node ``name`` among those that the node ``where`` is lowered to.

    When onnxruntime optimizes a model or inlines a function, it keeps names, and no metadata.
    """
    return f"{where}{_LOWERED_GRID if reads_grid else _LOWERED}{name}"


def lowered_from(node: onnx.NodeProto) -> str | None:
    """The name of the node that was lowered to this ``node``, among others."""
    name, lowered, _ = node.name.partition(_LOWERED)
    return name if lowered else None


def reads_grid(node: onnx.NodeProto) -> bool:
    """Whether ``node``, of a lowered node, reads its grid."""
    return _LOWERED_GRID in node.name


def is_helper(node: onnx.NodeProto) -> bool:
    """Whether a patch put ``node`` around another."""
    return any(entry.key == _HELPS for entry in node.metadata_props)


def around(scope: Scope, node: onnx.NodeProto) -> tuple[Sequence[str], str, frozenset[int]]:
    """The inputs and the output of ``node`` in ``scope`` with its helpers as one, and the helpers' positions.

    Raises:
        GridSampleError: of a guard that consists of two nodes the second is not there.
    """
    output = node.output[0] if node.output else ""
    if node.domain not in (DOMAIN, COMPILED_DOMAIN, EXTENSIONS_DOMAIN):
        return node.input, output, frozenset()
    nodes, belonging, inputs = scope.nodes, set(), []
    for name in node.input:
        maker = scope.makers.get(name)
        if maker is not None and nodes[maker].op_type == "Cast" and is_helper(nodes[maker]):
            belonging.add(maker)
            name = nodes[maker].input[0]
        inputs.append(name)
    for reader in (each for name in node.output[1:] for each in _readers(scope, name)):
        belonging.add(reader)  # of the status, which only guards read
        if guards(nodes[reader], node):
            output = nodes[reader].output[0]
            if nodes[reader].op_type == "Gather":
                squeeze = _squeeze(scope, node, output)
                belonging.add(squeeze)
                output = nodes[squeeze].output[0]
    for reader in _readers(scope, output):
        after = nodes[reader]
        if is_helper(after) and after.input[0] == output:
            belonging.add(reader)
            output = after.output[0]
            break
    return inputs, output, frozenset(belonging)


def _readers(scope: Scope, name: str) -> list[int]:
    """The positions of the nodes that read ``name`` themselves."""
    return [at for at in sorted(scope.readers.get(name, ())) if at != OUTSIDE and name in scope.inputs[at]]


def _squeeze(scope: Scope, node: onnx.NodeProto, gathered: str) -> int:
    """The position of the Squeeze that takes off the axis that the guard of ``node`` leaves in the output."""
    match _readers(scope, gathered):
        case [index]:
            after = scope.nodes[index]
            axes = [*(each.ints for each in after.attribute), *map(scope.constant, after.input[1:])]
            if after.op_type == "Squeeze" and [list(each) for each in axes if each is not None] == [[1]]:
                return index
    here = node_label(node.op_type, called(node))
    raise GridSampleError(here, "the guard behind it", "without its Squeeze", "the nodes that a patch writes")
