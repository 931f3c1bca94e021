"""Errors about nodes that cannot be written in an older opset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import GridSampleError
from ...spec import Shape


class ObstacleError(Exception):
    """A node cannot be written in an older opset.

    Attributes:
        argument, found, expected, verb: those of :class:`GridSampleError`, which also names the
            node.
    """

    def __init__(self, argument: str, found: str, expected: str, verb: str = "is") -> None:
        super().__init__(argument, found, expected)
        self.argument = argument
        self.found = found
        self.expected = expected
        self.verb = verb

    def __str__(self) -> str:
        return f"{self.argument} {self.verb} {self.found}, expected {self.expected}"


def combined_error(obstacles: Sequence[tuple[str, ObstacleError]]) -> GridSampleError:
    """Return one error that lists all ``obstacles``.

    Args:
        obstacles: the names of nodes, as errors write them, with their obstacles; at least one.
    """
    (label, first), *others = obstacles
    expected = first.expected
    if others:
        descriptions = [f"{other} ({obstacle})" for other, obstacle in others]
        expected += f"; {len(others)} more cannot be converted: {', '.join(descriptions)}"
    return GridSampleError(label, first.argument, first.found, expected, first.verb)


def value_text(value: Any) -> str:
    """Return the value of an attribute as an error writes it."""
    return repr(value.decode(errors="replace") if isinstance(value, bytes) else value)


def shape_text(shape: Shape | None) -> str:
    """Return a shape as an error writes it."""
    return "not known" if shape is None else str(shape)
