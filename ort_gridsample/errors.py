"""The one exception of this package, and how it names a node."""


class GridSampleError(ValueError):
    """Raised when an input, an attribute or a model is not what the operator's specification allows.

    Attributes:
        where: the function, or the node in its graph, that found it.
        argument: the input or attribute concerned.
        found: what was there.
        expected: what the specification asks for.
    """

    def __init__(self, where: str, argument: str, found: str, expected: str) -> None:
        super().__init__(where, argument, found, expected)
        self.where, self.argument, self.found, self.expected = where, argument, found, expected

    def __str__(self) -> str:
        return f"{self.where}: {self.argument} is {self.found}, expected {self.expected}"


def where(op_type: str, node: str) -> str:
    """The name of a node in errors and guards."""
    return f"{op_type} node {node!r}"
