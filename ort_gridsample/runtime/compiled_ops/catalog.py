"""The ops: what ONNX Runtime is told of each, and where its compiled functions are. One more op is one more row."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from ... import spec
from ...core.taps import COMPILED_MODES
from ...model import programs
from ...model.dialects import ATTENTION, COMPILED, COMPILED_ATTENTION, FUSED, dialects
from .c_api import ELEMENT_TYPES, VERSION
from .structs import MOST_TYPES

#: Operator -> the ``op_type`` of its op.
NAMES = {dialect.operator: dialect.op_type for dialect in dialects() if dialect.name == COMPILED}
NAMES[ATTENTION] = COMPILED_ATTENTION

#: The version of the ops' inputs and attributes, which a node says in its attribute ``interface`` if it is not 1.
INTERFACE = 1

#: The fields of a record: numbers, functions to compile (:data:`ort_gridsample.core.compilation.Part`; None: 0), or
#: those of a record in it.
Fields = Mapping[str, Any]
#: What an op answers ONNX Runtime when it is registered: functions of :data:`.structs.OP`'s record, by their fields.
#: They are Python for ops that are compiled when they are needed, and compiled code in a library.
ANSWERS: Mapping[str, Callable[..., int]] = {
    "GetName": lambda op: op.name,
    "GetExecutionProviderType": lambda op: 0,  # the CPU's
    "GetInputType": lambda op, index: op.types[index],
    "GetInputTypeCount": lambda op: op.n_inputs,
    "GetOutputType": lambda op, index: op.types[0],
    "GetOutputTypeCount": lambda op: 1,
    "GetInputCharacteristic": lambda op, index: 2 if index == op.variadic else 0,  # 2: several, of one type
    "GetOutputCharacteristic": lambda op, index: 0,
    "GetInputMemoryType": lambda op, index: 0,
    "GetVariadicInputMinArity": lambda op: 1,
    "GetVariadicInputHomogeneity": lambda op: 1,
}


class Kernels(NamedTuple):
    """The compiled side of an op."""

    #: CreateKernelV2. A number from 1 on is no status, but one more than that of the state that is not there.
    create: Callable[..., int]
    compute: Callable[..., int]  #: KernelComputeV2
    destroy: Callable[..., int]  #: KernelDestroy
    sentences: Sequence[bytes]  #: as :func:`.sentences.as_bytes` writes them
    #: For the types of the inputs, the states that a node's may begin as: their record, and fields.
    states: Callable[..., tuple[Any, Sequence[Fields]]]
    infer: Callable[..., int] | None = None  #: InferOutputShapeFn, if there is one

    @property
    def functions(self) -> dict[str, tuple[Callable[..., int]]]:
        """The functions that ONNX Runtime calls, to be compiled, by their fields in :data:`.structs.OP`."""
        found = {"CreateKernelV2": self.create, "KernelComputeV2": self.compute, "KernelDestroy": self.destroy}
        return {name: (each,) for name, each in {**found, "InferOutputShapeFn": self.infer}.items() if each is not None}


@dataclass(frozen=True)
class Op:
    """One op."""

    name: str  #: its ``op_type``
    kernels: str  #: its :class:`Kernels`, as module and name: the module imports Numba
    inputs: tuple[str, ...]  #: the names of its inputs
    types: tuple[tuple[str, ...], ...]  #: theirs, every combination that there is
    variadic: int = -1  #: the input that may be several; -1: none
    infers: bool = False  #: whether its output's shape can be inferred
    has_modes: bool = True  #: whether its states are for one mode after the other

    def serves(self, types: Sequence[str], number: int, wanted: Mapping[str, Collection[str]] | None) -> bool:
        """Whether the state of this number, of inputs of these ``types``, is of use to nodes of the ``wanted``.

        These are types by the inputs' names, and modes as ``mode``; None: all.
        """
        if wanted is None:
            return True
        named = dict(zip(self.inputs, types, strict=True))
        if self.has_modes:
            named["mode"] = COMPILED_MODES[number % len(COMPILED_MODES)]
        return all(name in _FREE or value in wanted.get(name, ()) for name, value in named.items())

    def load(self) -> Kernels:
        """Its kernels. Imports Numba."""
        module, name = self.kernels.split(".")
        return getattr(importlib.import_module(f".{module}", __package__), name)

    def described(self, types: Sequence[str]) -> str:
        """What it takes, where its inputs are of these ``types``."""
        each = [f"{name} of {type_}" for name, type_ in zip(self.inputs, types, strict=True)]
        return f"{', '.join(each[:-1])} and {each[-1]}"


def fields(types: Sequence[str], variadic: int = -1) -> dict[str, Any]:
    """The fields of an :data:`.structs.OP` that are numbers, of one whose inputs are of these ``types``."""
    numbers = [ELEMENT_TYPES[each] for each in types]
    numbers += [0] * (MOST_TYPES - len(types))
    return {"version": VERSION, "n_inputs": len(types), "variadic": variadic, "types": numbers}


def _combined(*types: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(product(*([name for name in each if name in ELEMENT_TYPES] for each in types)))


#: The inputs that are of one type, or of that of others.
_FREE = ("size", "scalars", "levels", "attention_weights")

_X, _grid = spec.newest("GridSample").types.values()
_theta, _size = spec.newest("AffineGrid").types.values()
_inputs = tuple(spec.newest(ATTENTION).types)
_sampled = tuple((*X, each, each) for X in _combined(_X) for each in programs.TYPES)
#: Weights are of value's type.
_attended = tuple((value, "int64", at, value) for value, at in product(spec.FLOATS, spec.FLOATS))

# An AffineGrid's shape is in the values of its size, and no axis can be left without a number or a name. A fused op
# reads what its sources have in common first: the sizes, or the programs' scalars.
OPS = (
    Op(NAMES["GridSample"], "sampling.KERNELS", ("X", "grid"), _combined(_X, _grid), infers=True),
    Op(NAMES["AffineGrid"], "affine.KERNELS", ("theta", "size"), _combined(_theta, _size), has_modes=False),
    Op(FUSED, "affine.FUSED", ("X", "size", "theta"), _combined(_X, _size, _theta), variadic=2),
    Op(FUSED, "program_grids.KERNELS", ("X", "scalars", "grid"), _sampled, 2),
    Op(NAMES[ATTENTION], "attention.KERNELS", _inputs, _attended, infers=True, has_modes=False),
)
