"""What a GridSample computes its coordinates from, if it is fused with the nodes of its grid.

The source of its coordinates is then a node of an operator that computes a grid, or a program for
each coordinate. :mod:`.fusion` finds the source. It states what the compiled op reads and which
attributes the op has, for all that write, compile or create the op.
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


class CoordinateSource(ABC):
    """What a GridSample computes its coordinates from.

    Attributes:
        nodes: the indices of the nodes to fuse except ``absorbed``, and of the Constants that they
            read.
        fused_names: the names of all nodes to fuse, in order.
    """

    nodes: tuple[int, ...]
    fused_names: tuple[str, ...]

    @property
    @abstractmethod
    def op_name(self) -> str:
        """The name in the catalog of the compiled op of a GridSample with this source."""

    @property
    def absorbed(self) -> Match | None:
        """The sampling node that is fused into the GridSample, if there is one."""
        return None

    @property
    def scalars(self) -> Sequence[Scalar]:
        """The numbers that the op reads as one input: known ones, and names of values."""
        return ()

    @property
    def state_group(self) -> int:
        """The index of the group of the op's states. Each group has a state per mode."""
        return 0

    def state_index(self, mode: str) -> int:
        """Return the index of the op's initial state for a mode."""
        return self.state_group * len(COMPILED_MODES) + MODE_CODES[mode]

    @property
    @abstractmethod
    def inputs(self) -> list[str]:
        """The values that the op reads behind X, in order; "" for the scalars."""

    @property
    @abstractmethod
    def input_types(self) -> list[tuple[str, ...]]:
        """The types that the second and the third input of the op may have."""

    @property
    def attributes(self) -> Mapping[str, str | list[int]]:
        """The attributes of the op, besides those of the GridSample and of ``absorbed``."""
        return {}


@dataclass(frozen=True)
class OperatorSource(CoordinateSource):
    """A node of one of :data:`~ort_gridsample.functions.grid_operators.GRID_OPERATORS`.

    Attributes:
        nodes, fused_names: as in :class:`CoordinateSource`.
        match: the node.
        cast_type: the type that the grid is cast to; "" if it is of the type of the node's output.
    """

    nodes: tuple[int, ...]
    fused_names: tuple[str, ...]
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

    @property
    def state_group(self) -> int:
        return 1 + spec.FLOATS.index(self.cast_type) if self.cast_type else 0


@dataclass(frozen=True)
class ProgramSource(CoordinateSource):
    """A program for each coordinate.

    Attributes:
        nodes, fused_names: as in :class:`CoordinateSource`.
        type: the type of the grid, of the scalars and of the values that the programs read.
        programs: the programs, innermost axis first.
    """

    nodes: tuple[int, ...]
    fused_names: tuple[str, ...]
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
