"""The exception of this package, and the parts of error messages."""

from collections.abc import Sequence


class GridSampleError(ValueError):
    """The exception that callers of this package get: a ValueError with its parts as attributes.

    Attributes:
        where: the function, or the node of the graph, that raises the error.
        argument: the input or the attribute.
        found: its value, type or shape.
        expected: what the specification requires.
        verb: the verb between ``argument`` and ``found`` in the sentence.
    """

    def __init__(
        self,
        where: str,
        argument: str,
        found: str,
        expected: str,
        verb: str = "is",
    ) -> None:
        super().__init__(where, argument, found, expected)
        self.where = where
        self.argument = argument
        self.found = found
        self.expected = expected
        self.verb = verb

    def __str__(self) -> str:
        return f"{self.where}: {self.argument} {self.verb} {self.found}, expected {self.expected}"


def one_line(error: object) -> str:
    """Return the message of an exception, or any other text, in one line."""
    return " ".join(str(error).split())


#: The maximum number of names in the text of :func:`shortened_names`.
_MAX_NAMES = 4


def shortened_names(names: Sequence[str]) -> str:
    """Return a text of names: all if they are few, or the first ones and the number of others.

    >>> shortened_names(["a", "b"])
    'a, b'
    >>> shortened_names([f"node{number}" for number in range(9)])
    'node0, node1, node2 and 6 more nodes'
    """
    if len(names) <= _MAX_NAMES:
        return ", ".join(names)
    shown = names[: _MAX_NAMES - 1]
    return f"{', '.join(shown)} and {len(names) - len(shown)} more nodes"


def where_node(op_type: str, node: str) -> str:
    """Return the name of a node in errors and guards.

    >>> where_node("GridSample", "n"), where_node("GridSample", "(Y)")
    ("GridSample node 'n'", "GridSample node with output 'Y'")

    Args:
        node: the name of the node or, in brackets, of its output.
    """
    if _is_output(node):
        return f"{op_type} node with output {node[1:-1]!r}"
    return f"{op_type} node {node!r}"


def nested_name(node: str, graph: str) -> str:
    """Return the name of a node, as :func:`where_node` takes it, and of the graph that it is in.

    Args:
        node: the name of the node or, in brackets, of its output.
        graph: the path to the graph; empty for the main graph.
    """
    if not graph:
        return node
    if _is_output(node):
        return f"{node[:-1]} in {graph})"
    return f"{node} in {graph}"


def _is_output(node: str) -> bool:
    """Whether ``node`` is the name of an output in brackets, of a node without a name.

    Patched files contain such names, and compiled ops write errors with them. Hence a node whose
    own name is in brackets cannot be told apart.
    """
    return len(node) > 1 and node[0] == "(" and node[-1] == ")"
