"""New names for values and nodes of a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import chain, count

import onnx

from .scope import Scope, scopes_of


class Names:
    """The names of the values and nodes of a model, for the choice of new ones.

    Args:
        scopes: its scopes if they are known.
    """

    def __init__(self, model: onnx.ModelProto, scopes: Sequence[Scope] = ()) -> None:
        self._model = model
        self._scopes = scopes

    @cached_property
    def _taken(self) -> set[str]:
        taken = set[str]()
        for scope in self._scopes or scopes_of(self._model):
            taken.update([node.name for node in scope.nodes])
            taken.update(*scope.inputs, scope.definitions, scope.output_names)
            taken.update([value.name for value in scope.container.value_info])
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
