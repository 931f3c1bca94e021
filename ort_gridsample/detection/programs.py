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
>>> np.reshape(encode([x, y], ["flow"]), (2, -1))[:, :8].tolist()
[[0, 1, 0, 2, 2, 6, 2, 0], [0, 1, 1, 2, 2, 6, 2, 0]]

The codes 6 and 2 are those of Div and Sub with the operand as second input. The number 2 before
them is the number of steps, and each number after them is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..kernels.program_codes import MAX_STEPS, OPERATIONS, PROGRAM, WITH_PROGRAM

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


def encode(programs: Sequence[Program], sources: Sequence[str]) -> list[int]:
    """Return programs as the integers of an array of :data:`.program_codes.PROGRAM`.

    Args:
        programs: one program for each coordinate.
        sources: the values that the programs read.
    """
    pending = list(programs)
    rows = []
    for program in pending:  # grows during the loop
        component = program.component
        axis = -1 if component.axis is None else component.axis
        codes = [_code(step) for step in program.steps]
        steps = codes + [0] * (MAX_STEPS - len(codes))
        source = sources.index(component.name)
        rows.append((source, axis, component.index, program.length, len(codes), steps))
        pending += program.operands
    numbers: list[int] = np.array(rows, PROGRAM).view(np.int64).tolist()
    return numbers


def _code(step: ProgramStep) -> int:
    code = OPERATIONS.index(step.operation) << 1 | int(step.operand_first)
    return code + WITH_PROGRAM if isinstance(step.operand, Program) else code
