"""Programs: how each coordinate of a fused grid is computed, and how the node that it is fused into writes that down.

Every step computes what a node of the graph does, in its order and its type, so that no answer changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: The types that programs compute in. Runtimes round arithmetic of halves as they like.
TYPES = ("float32", "float64")
#: The most values that a grid is computed from, and the most steps of a program.
MOST_SOURCES, MOST_STEPS = 6, 16
#: What a step does to a coordinate x with an operand n: ``x op n``, or ``n op x``.
OPERATIONS = ("Add", "Sub", "Mul", "Div")
#: A step's code is twice the index of its operation, and 1 more where the operand comes first; and this much more where
#: the operand is the next program that computes one, and no scalar.
WITH_PROGRAM = 2 * len(OPERATIONS)
#: A scalar operand: a number, or the name of a value that is one.
Scalar = float | str


@dataclass(frozen=True)
class Component:
    """Where a coordinate is stored."""

    name: str  #: the value that holds it
    axis: int | None  #: the axis of the value that lists the coordinates; None where the value holds this one only
    index: int = 0  #: its index on that axis
    broadcasts: bool = False  #: whether it may be broadcast on the way, such as one batch of it to all


@dataclass(frozen=True)
class Step:
    """One of :data:`OPERATIONS` with an operand, which comes ``first`` or second."""

    operation: str
    operand: Scalar | Program
    first: bool


@dataclass(frozen=True)
class Program:
    """How one coordinate is computed."""

    component: Component  #: where it is read
    length: int  #: the length of the component's axis; 1 where it has none
    steps: tuple[Step, ...]  #: what is done to it, in order; the steps of an operand have scalar operands only

    @property
    def operands(self) -> list[Program]:
        """The programs that compute operands, in order."""
        return [step.operand for step in self.steps if isinstance(step.operand, Program)]

    @property
    def scalars(self) -> Iterator[Scalar]:
        """Its scalar operands, in order."""
        for step in self.steps:
            if isinstance(step.operand, Program):
                yield from step.operand.scalars
            else:
                yield step.operand


def written(programs: Sequence[Program], sources: Sequence[str]) -> list[list[int]]:
    """The ``programs``, one a coordinate, as rows, and behind them those that compute operands, in order.

    A row is: source, axis (-1: none), index, length, then the code of each step.
    """
    rows, todo = list[list[int]](), list(programs)
    for program in todo:  # grows while it is walked
        component, axis = program.component, program.component.axis
        rows.append([sources.index(component.name), -1 if axis is None else axis, component.index, program.length])
        for step in program.steps:
            is_program = isinstance(step.operand, Program)
            rows[-1].append(2 * OPERATIONS.index(step.operation) + step.first + WITH_PROGRAM * is_program)
        todo += program.operands
    return rows


def encoded(rows: Sequence[Sequence[int]], r: int) -> list[int]:
    """The ``rows`` of :func:`written` for ``r`` coordinates as a node has them: r, then each with its step count."""
    return [r, *(number for row in rows for number in (*row[:4], len(row) - 4, *row[4:]))]


def decoded(numbers: Sequence[int], n_sources: int) -> tuple[list[list[int]], int]:
    """The rows and r of :func:`encoded`.

    Raises:
        LookupError, TypeError, ValueError: they are not what a session writes for ``n_sources`` values.
    """
    r, *rest = numbers
    rows = []
    while rest:
        *head, count = rest[:5]
        rows.append([*head, *rest[5 : 5 + max(count, 0)]])
        if len(rows[-1]) != 4 + count:
            raise ValueError(rest)
        rest = rest[5 + count :]
    for number, (source, axis, index, length, *steps) in enumerate(rows):
        fits = 0 <= source < n_sources <= MOST_SOURCES and -1 <= axis <= r + 1 and 0 <= index < length
        codes = range(WITH_PROGRAM if number >= r else 2 * WITH_PROGRAM)
        if not (fits and len(steps) <= MOST_STEPS and {*steps} <= {*codes}):
            raise ValueError(rows[number])
    operands = sum(step >= WITH_PROGRAM for row in rows for step in row[4:])
    if not 0 < r == len(rows) - operands:
        raise ValueError(f"{len(rows)} programs")
    return rows, r
