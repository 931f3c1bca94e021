"""New nodes, and new names for values and nodes of a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import chain, count
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from .scope import Scope, scopes_of


class Names:
    """The names of the values and nodes of a model, for the choice of new ones.

    Args:
        model: the model.
        scopes: its scopes if they are known.
    """

    def __init__(self, model: onnx.ModelProto, scopes: Sequence[Scope] = ()) -> None:
        self._model = model
        self._scopes = scopes

    @cached_property
    def _taken(self) -> set[str]:
        taken = set[str]()
        for scope in self._scopes or scopes_of(self._model):
            taken.update(node.name for node in scope.nodes)
            taken.update(*scope.inputs, scope.definitions, scope.output_names)
            taken.update(value.name for value in scope.container.value_info)
        return taken

    def new(self, name: str) -> str:
        """Return ``name``, or ``name`` and a number if it is taken, and take it."""
        numbered_names = (f"{name}_{number}" for number in count(2))
        candidates = chain([name], numbered_names)
        free_name = next(candidate for candidate in candidates if candidate not in self._taken)
        self._taken.add(free_name)
        return free_name

    def take_all(self, names: Collection[str]) -> bool:
        """Take all ``names`` and return True, or return False if one of them is taken."""
        if not self._taken.isdisjoint(names):
            return False
        self._taken.update(names)
        return True


class Nodes(list[onnx.NodeProto]):
    """A list of new nodes, which has a method for each way to append one.

    Args:
        names: the names of the model.
        prefix: the beginning of the names of the nodes and of their outputs.
    """

    def __init__(self, names: Names, prefix: str) -> None:
        self._names = names
        self._prefix = prefix

    def add(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node with one output; return the name of the output.

        Args:
            op_type: the operator of the node.
            inputs: the names of its inputs.
            output: the name of its output; a new name if it is empty.
            attributes: its attributes.
        """
        # The node needs a name of its own: onnxruntime refuses two nodes of one name.
        name = self._names.new(f"{self._prefix}_{op_type.lower()}")
        self.append(helper.make_node(op_type, inputs, [output or name], name, **attributes))
        return output or name

    def rename_last(self, name: str) -> None:
        """Change the name of the last node to ``name``, with a number if that is taken."""
        self[-1].name = self._names.new(name)

    def constant(self, value: npt.ArrayLike) -> str:
        """Append a Constant node; return the name of its output.

        A Python integer becomes an int64.
        """
        # NumPy 1 on Windows makes it an int32.
        dtype = np.int64 if isinstance(value, int) else None
        return self.add("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def row(self, *numbers: int) -> str:
        """Append a Constant node of a 1-D tensor of int64; return the name of its output."""
        return self.constant(np.array(numbers, np.int64))
