"""The nodes that stand around, or in the place of, a node concerned: how they are named, and finding them again.

A Python-defined op takes no float16 or bfloat16, may not raise, and has no type that is known inside a function: Casts,
a guard and a CastLike make up for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import onnx

from .dialects import DOMAIN, EXTENSIONS_DOMAIN
from .graphs import Scope

#: The key in a helper node's ``metadata_props``; its value is the node that it helps.
_HELPS = "ort_gridsample.helps"

_LOWERED = "/ort_gridsample/"
_LOWERED_GRID = f"{_LOWERED}coordinates/"


def guard_name(where: str) -> str:
    """The name of the guard node behind the node ``where``: the first thing that ONNX Runtime's error text says."""
    return f"ort_gridsample rejected the input of {where} (ort_gridsample.InferenceSession says why)"


def guards(node: onnx.NodeProto, op: onnx.NodeProto) -> bool:
    """Whether ``node`` is the guard behind ``op``: the status is the places along the first axis of what it hands on.

    Whoever reads the answer reads it through its guard, so nobody can drop that.
    """
    return node.op_type in ("Gather", "GatherND") and list(node.input) == list(op.output)


def cast_name(where: str) -> str:
    """The name of a Cast or CastLike around the node ``where``."""
    return f"ort_gridsample casts for {where}"


def mark(node: onnx.NodeProto, where: str) -> onnx.NodeProto:
    """``node``, known from now on as a helper of the node ``where``."""
    node.metadata_props.add(key=_HELPS, value=where)
    return node


def lowered_name(where: str, name: str, reads_grid: bool) -> str:
    """The name of a node, called ``name`` among them, that the node called ``where`` was lowered to.

    onnxruntime keeps it when it optimizes a model or inlines a function, and no metadata.
    """
    return f"{where}{_LOWERED_GRID if reads_grid else _LOWERED}{name}"


def lowered_from(node: onnx.NodeProto) -> str | None:
    """The name of the node that was lowered to ``node`` and others."""
    name, lowered, _ = node.name.partition(_LOWERED)
    return name if lowered else None


def reads_grid(node: onnx.NodeProto) -> bool:
    """Whether ``node``, a lowered one, reads the coordinates from outside."""
    return _LOWERED_GRID in node.name


def is_helper(node: onnx.NodeProto) -> bool:
    """Whether a patch put ``node`` around another."""
    return any(entry.key == _HELPS for entry in node.metadata_props)


class Helpers:
    """The helper nodes in one scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    @cached_property
    def _nodes(self) -> list[onnx.NodeProto]:
        return list(self._scope)

    @cached_property
    def _makers(self) -> dict[str, int]:
        return {name: index for index, node in enumerate(self._nodes) if is_helper(node) for name in node.output}

    @cached_property
    def _readers(self) -> dict[str, list[int]]:
        readers: dict[str, list[int]] = {}
        for index, node in enumerate(self._nodes):
            for name in dict.fromkeys(node.input):
                readers.setdefault(name, []).append(index)
        return readers

    def around(self, node: onnx.NodeProto) -> tuple[Sequence[str], str, frozenset[int]]:
        """The values that ``node`` reads and the one that it makes, helpers aside, and the helpers' positions."""
        output = node.output[0] if node.output else ""
        if node.domain not in (DOMAIN, EXTENSIONS_DOMAIN):
            return node.input, output, frozenset()
        belonging, inputs = set(), []
        for name in node.input:
            maker = self._makers.get(name)
            if maker is not None and self._nodes[maker].op_type == "Cast":
                belonging.add(maker)
                name = self._nodes[maker].input[0]
            inputs.append(name)
        for reader in (each for name in node.output[1:] for each in self._readers.get(name, ())):
            belonging.add(reader)  # of the status, which only guards read
            if guards(self._nodes[reader], node):
                output = self._nodes[reader].output[0]
                if self._nodes[reader].op_type == "Gather":
                    (squeeze,) = self._readers[output]
                    belonging.add(squeeze)
                    output = self._nodes[squeeze].output[0]
        for reader in self._readers.get(output, ()):
            after = self._nodes[reader]
            if is_helper(after) and after.input[0] == output:
                belonging.add(reader)
                output = after.output[0]
                break
        return inputs, output, frozenset(belonging)
