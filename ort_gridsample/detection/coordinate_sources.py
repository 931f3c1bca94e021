"""The sources of the coordinates of GridSamples that are fused with the nodes of their grids.

A source is a node of an operator that computes a grid, such as AffineGrid, or a program for each
coordinate. :mod:`.fusion` finds it. Rewriting, compilation and the execution provider read the
inputs and attributes of the compiled op from the source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .. import spec
from ..dialects.table import FUSED
from ..functions.grid_operators import GRID_OPERATORS
from ..kernels.tap_plans import COMPILED_MODES, MODE_CODES
from .programs import Program, Scalar, encode

if TYPE_CHECKING:
    from .match import Match


@dataclass(frozen=True, kw_only=True)
class CoordinateSource(ABC):
    """What a GridSample computes its coordinates from.

    Attributes:
        nodes: the indices of the nodes between the source and the GridSample, and of the nodes that
            compute constants, shapes and indices for these alone. ``absorbed`` is not among them.
        fused_names: the names that a record lists: that of ``absorbed``, then those of the nodes
            between, in order.
    """

    nodes: tuple[int, ...]
    fused_names: tuple[str, ...]

    @property
    @abstractmethod
    def op_name(self) -> str:
        """The name of the fused op in the catalog. Ops of one name differ in their inputs."""

    @property
    def absorbed(self) -> Match | None:
        """The match of the grid operator that is fused into the GridSample; None for programs."""
        return None

    @property
    def scalars(self) -> Sequence[Scalar]:
        """The scalar operands, which the op reads as one input: numbers, and names of values."""
        return ()

    def state_index(self, mode: str) -> int:
        """Return the index of the op's initial state for a mode."""
        return MODE_CODES[mode]

    @property
    @abstractmethod
    def inputs(self) -> list[str]:
        """The values that the op reads after X, in order; "" for the scalars."""

    @property
    @abstractmethod
    def input_types(self) -> list[tuple[str, ...]]:
        """The types that the second input may have, and those of the third and all later ones."""

    @property
    def attributes(self) -> Mapping[str, str | list[int]]:
        """The attributes of the op, in addition to those of the GridSample and of ``absorbed``."""
        return {}


@dataclass(frozen=True, kw_only=True)
class OperatorSource(CoordinateSource):
    """A node of one of :data:`~ort_gridsample.functions.grid_operators.GRID_OPERATORS`.

    Attributes:
        match: the node.
        cast_type: the type that the grid is cast to; "" if it is of the type of the node's output.
    """

    match: Match
    cast_type: str = ""

    @property
    def op_name(self) -> str:
        return spec.OP_SPECS[self.match.record.operator].fused_type

    @property
    def absorbed(self) -> Match:
        return self.match

    @property
    def _input_names(self) -> tuple[str, str]:
        return GRID_OPERATORS[self.match.record.operator].fused_inputs

    @property
    def inputs(self) -> list[str]:
        return [self.match.record.values[name] for name in self._input_names]

    @property
    def input_types(self) -> list[tuple[str, ...]]:
        return [self.match.record.types[name] for name in self._input_names]

    @property
    def attributes(self) -> Mapping[str, str | list[int]]:
        return {"grid_type": self.cast_type} if self.cast_type else {}

    def state_index(self, mode: str) -> int:
        # The op has a group of states for grids of theta's type, and one for each other type.
        group = 1 + spec.FLOATS.index(self.cast_type) if self.cast_type else 0
        return group * len(COMPILED_MODES) + super().state_index(mode)


@dataclass(frozen=True, kw_only=True)
class ProgramSource(CoordinateSource):
    """A program for each coordinate.

    Attributes:
        type: the type of the grid, of the scalars and of the values that the programs read.
        programs: the programs, innermost axis first.
    """

    type: str
    programs: tuple[Program, ...]

    @property
    def op_name(self) -> str:
        return FUSED

    @cached_property
    def values(self) -> list[str]:
        """The values that the programs read coordinates from, each once."""
        names: dict[str, None] = {}
        for program in self.programs:
            names[program.component.name] = None
            names.update((operand.component.name, None) for operand in program.operands)
        return list(names)

    @cached_property
    def scalars(self) -> list[Scalar]:
        return [scalar for program in self.programs for scalar in program.scalars]

    @property
    def inputs(self) -> list[str]:
        return ["", *self.values]

    @property
    def input_types(self) -> list[tuple[str, ...]]:
        return [(self.type,), (self.type,)]

    @property
    def attributes(self) -> Mapping[str, str | list[int]]:
        names = {f"source{index}": repr(name) for index, name in enumerate(self.values)}
        return {"coordinates": encode(self.programs, self.values), **names}
