"""The exception of this package, and the name of a node in errors."""


class GridSampleError(ValueError):
    """An input, an attribute or a model is not what the operator's specification allows.

    Attributes:
        where: the function, or the node of the graph, that raises the error.
        argument: the input or the attribute.
        found: its value, type or shape.
        expected: what the specification requires.
    """

    def __init__(self, where: str, argument: str, found: str, expected: str) -> None:
        super().__init__(where, argument, found, expected)
        self.where = where
        self.argument = argument
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.where}: {self.argument} is {self.found}, expected {self.expected}"


def node_label(op_type: str, node: str) -> str:
    """Return the name of a node in errors and guards, such as ``GridSample node 'n'``."""
    return f"{op_type} node {node!r}"
