"""Programs that compute the coordinates of a fused grid, and their encoding.

A program computes one coordinate. Each of its steps computes what a node of the graph computes, in
the same order and type, so that the results are the same to the last bit. The fused node has the
encoded programs as an attribute.

A graph computes a grid (N, H, W, 2) from a flow (N, 2, H, W) and a width and height in pixels::

    moved = Transpose <perm = [0, 2, 3, 1]> (flow)
    half = Constant <value_floats = [320.0, 240.0]> ()
    scaled = Div (moved, half)
    grid = Sub (scaled, one)

For x, the component is index 0 on axis 1 of flow, and the steps divide by 320 and subtract the
scalar ``one``, whose value is known in a run only:

>>> steps = (ProgramStep("Div", 320.0, False), ProgramStep("Sub", "one", False))
>>> x = Program(Component("flow", axis=1, index=0), 2, steps)
>>> y = Program(Component("flow", axis=1, index=1), 2, (ProgramStep("Div", 240.0, False), steps[1]))
>>> to_rows([x, y], ["flow"])
[[0, 1, 0, 2, 6, 2], [0, 1, 1, 2, 6, 2]]
>>> encode(to_rows([x, y], ["flow"]), r=2)
[2, 0, 1, 0, 2, 2, 6, 2, 0, 1, 1, 2, 2, 6, 2]

The codes 6 and 2 are those of Div and Sub with the operand as second input. The number 2 before
them is the number of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..kernels.program_codes import (
    MAX_SOURCES,
    MAX_STEPS,
    N_HEADER_NUMBERS,
    OPERATIONS,
    WITH_PROGRAM,
)

#: The types that programs compute in. Half precision is missing because runtimes round its
#: arithmetic differently.
TYPES = ("float32", "float64")
#: A scalar operand: a number, or the name of a value that has one element.
Scalar = float | str


@dataclass(frozen=True)
class Component:
    """Where a coordinate is stored.

    Attributes:
        name: the value that contains it.
        axis: the axis of that value that lists the coordinates. None: the value has no such axis,
            and so one axis fewer than the grid.
        index: its index on that axis.
        broadcasts: whether the graph may broadcast the coordinate before it reaches the grid, such
            as one batch to all batches.
    """

    name: str
    axis: int | None
    index: int = 0
    broadcasts: bool = False


class ProgramStep(NamedTuple):
    """One step of a program.

    Attributes:
        operation: one of :data:`~ort_gridsample.kernels.program_codes.OPERATIONS`.
        operand: a scalar, or the program that computes the operand.
        operand_first: whether the operand is the first input of the operation.
    """

    operation: str
    operand: Scalar | Program
    operand_first: bool


@dataclass(frozen=True)
class Program:
    """How one coordinate is computed.

    Attributes:
        component: where the coordinate is read.
        length: the length of the component's axis, or 1 if the component has no axis.
        steps: the steps in order. The steps of an operand have scalar operands only.
    """

    component: Component
    length: int
    steps: tuple[ProgramStep, ...]

    @property
    def operands(self) -> list[Program]:
        """The programs that compute operands, in order."""
        return [step.operand for step in self.steps if isinstance(step.operand, Program)]

    @property
    def scalars(self) -> Iterator[Scalar]:
        """The scalar operands of the program and of its operands, in order."""
        for step in self.steps:
            if isinstance(step.operand, Program):
                yield from step.operand.scalars
            else:
                yield step.operand


def to_rows(programs: Sequence[Program], sources: Sequence[str]) -> list[list[int]]:
    """Return programs as rows of integers.

    Args:
        programs: one program for each coordinate.
        sources: the values that the programs read.

    Returns:
        A row for each program, followed by rows for the programs that compute operands, in order. A
        row consists of the index of the source, the axis (-1 if there is none), the index on it,
        its length, and the code of each step.
    """
    rows: list[list[int]] = []
    pending = list(programs)
    for program in pending:  # grows during the loop
        component = program.component
        axis = -1 if component.axis is None else component.axis
        codes = [_code(step) for step in program.steps]
        rows.append([sources.index(component.name), axis, component.index, program.length, *codes])
        pending += program.operands
    return rows


def _code(step: ProgramStep) -> int:
    code = OPERATIONS.index(step.operation) << 1 | int(step.operand_first)
    return code + WITH_PROGRAM if isinstance(step.operand, Program) else code


def encode(rows: Sequence[Sequence[int]], r: int) -> list[int]:
    """Return the attribute of a fused node for the ``rows`` of :func:`to_rows`.

    The attribute consists of ``r``, the number of coordinates, and the rows. In each row, the
    number of steps is inserted before the steps.
    """
    numbers = [r]
    for row in rows:
        steps = row[4:]
        numbers += [*row[:4], len(steps), *steps]
    return numbers


def decode(numbers: Sequence[int], n_sources: int) -> tuple[list[list[int]], int]:
    """Return the rows and the number of coordinates r from the result of :func:`encode`.

    Raises:
        LookupError, TypeError, ValueError: ``numbers`` are not what a session writes for
            ``n_sources`` values.
    """
    r, *remaining = numbers
    rows: list[list[int]] = []
    while remaining:
        *head, n_steps = remaining[:N_HEADER_NUMBERS]
        row = [*head, *remaining[N_HEADER_NUMBERS : N_HEADER_NUMBERS + max(n_steps, 0)]]
        if len(row) != 4 + n_steps:
            raise ValueError(f"program {len(rows)} has fewer than {n_steps} steps")
        rows.append(row)
        remaining = remaining[N_HEADER_NUMBERS + n_steps :]
    for number, row in enumerate(rows):
        is_operand = number >= r
        if not _is_valid(row, r, n_sources, is_operand=is_operand):
            raise ValueError(f"row {number} is not a program: {row}")
    n_operands = sum(code >= WITH_PROGRAM for row in rows for code in row[4:])
    if not 0 < r == len(rows) - n_operands:
        raise ValueError(f"{len(rows)} programs")
    return rows, r


def _is_valid(row: Sequence[int], r: int, n_sources: int, *, is_operand: bool) -> bool:
    """Whether a row is one of a coordinate's program, or of a program that computes an operand."""
    source, axis, index, length, *codes = row
    if not 0 <= source < n_sources <= MAX_SOURCES:
        return False
    if not -1 <= axis <= r + 1 or not 0 <= index < length:
        return False
    valid_codes = range(WITH_PROGRAM if is_operand else 2 * WITH_PROGRAM)
    return len(codes) <= MAX_STEPS and set(codes) <= set(valid_codes)
