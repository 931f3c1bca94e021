"""The nodes of a session that a user's function chose."""

from __future__ import annotations

from collections.abc import Callable

from ..detection.records import NodeRecord


class ChosenNodes:
    """The answers of a user's function, for sessions of the same model that are opened later.

    The function is called once for each node. It may be one that cannot be pickled.

    Args:
        function: whether a node must be replaced.
    """

    def __init__(self, function: Callable[[NodeRecord], object]) -> None:
        self._function: Callable[[NodeRecord], object] | None = function
        #: A node's graph, operator and output -> whether the function chose the node.
        self._answers: dict[tuple[str, str, str], bool] = {}

    def __call__(self, record: NodeRecord) -> bool:
        key = record.graph, record.operator, record.output
        if key not in self._answers and self._function is not None:
            self._answers[key] = bool(self._function(record))
        return self._answers.get(key, False)

    def __getstate__(self) -> dict[str, object]:
        return {"_function": None, "_answers": self._answers}
