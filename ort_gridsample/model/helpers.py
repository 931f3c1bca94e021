"""The nodes that stand around a node of this package: how they are named and marked, and finding them again.

A Python-defined op takes no float16 or bfloat16, may not raise, and has no type that is known inside a function: Casts,
a guard and a CastLike make up for that.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from .dialects import DOMAIN
from .graphs import Scope

#: The key in a helper node's ``metadata_props``; its value is the node that it helps.
_HELPS = "ort_gridsample.helps"


def guard_name(where: str) -> str:
    """The name of the guard node behind the node ``where``: the first thing that ONNX Runtime's error text says."""
    return f"ort_gridsample rejected the input of {where} (ort_gridsample.InferenceSession says why)"


def cast_name(where: str) -> str:
    """The name of a Cast or CastLike around the node ``where``."""
    return f"ort_gridsample casts for {where}"


def mark(node: onnx.NodeProto, where: str) -> onnx.NodeProto:
    """``node``, known from now on as a helper of the node ``where``."""
    node.metadata_props.add(key=_HELPS, value=where)
    return node


def is_helper(node: onnx.NodeProto) -> bool:
    """Whether a patch put ``node`` around another."""
    return any(entry.key == _HELPS for entry in node.metadata_props)


class Helpers:
    """The helper nodes in one scope."""

    def __init__(self, scope: Scope) -> None:
        self._nodes = list(scope)
        self._makers: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        for index, node in enumerate(self._nodes):
            if is_helper(node):
                self._makers.update(dict.fromkeys(node.output, index))
                for name in dict.fromkeys(node.input):
                    self._readers.setdefault(name, []).append(index)

    def around(self, node: onnx.NodeProto) -> tuple[Sequence[str], str, frozenset[int]]:
        """The values that ``node`` reads and the one that it makes, helpers aside, and the helpers' positions."""
        output = node.output[0] if node.output else ""
        if node.domain != DOMAIN:
            return node.input, output, frozenset()
        belonging, inputs = set(), []
        for name in node.input:
            maker = self._makers.get(name)
            if maker is not None and self._nodes[maker].op_type == "Cast":
                belonging.add(maker)
                name = self._nodes[maker].input[0]
            inputs.append(name)
        for i, name in enumerate(node.output):
            for reader in self._readers.get(name, ()):
                if self._nodes[reader].op_type == "Gather":
                    belonging.add(reader)
                elif i == 0 and self._nodes[reader].input[0] == name:
                    belonging.add(reader)
                    output = self._nodes[reader].output[0]
        return inputs, output, frozenset(belonging)
