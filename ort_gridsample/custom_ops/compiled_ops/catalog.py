"""The ops: what ONNX Runtime is told of each, and where its compiled functions are. One more op is one more row."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from ... import spec, versions
from ...detection import programs
from ...dialects.table import ATTENTION, COMPILED_DOMAIN, COMPILED_TYPES, DOMAIN, FUSED
from ...reference.taps import COMPILED_MODES
from .c_api import ELEMENT_TYPES, VERSION
from .structs import MOST_TYPES

#: The operators that have an op of their own, of the same name.
OPERATORS = ("GridSample", "AffineGrid", ATTENTION)

#: The version of the ops' inputs and attributes, which a node says in its attribute ``interface`` if it is not 1.
INTERFACE = 1

#: ``ONNXTensorElementDataType`` of the second output of an op that has one, and of strings.
INT64, STRING = ELEMENT_TYPES["int64"], 8

#: The fields of a record: numbers, functions to compile (:data:`ort_gridsample.kernels.compilation.Part`; None: 0), or
#: those of a record in it.
Fields = Mapping[str, Any]
#: What an op answers ONNX Runtime when it is registered: functions of :data:`.structs.OP`'s record, by their fields.
#: They are Python for ops that are compiled when they are needed, and compiled code in a library.
ANSWERS: Mapping[str, Callable[..., int]] = {
    "GetName": lambda op: op.name,
    "GetExecutionProviderType": lambda op: 0,  # the CPU's
    "GetInputType": lambda op, index: op.types[index],
    "GetInputTypeCount": lambda op: op.n_inputs,
    "GetOutputType": lambda op, index: op.types[0] if index == 0 else INT64,
    "GetOutputTypeCount": lambda op: op.n_outputs,
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

    name: str  #: the operator
    kernels: str  #: its :class:`Kernels`, as module and name: the module imports Numba
    inputs: tuple[str, ...]  #: the names of its inputs
    types: tuple[tuple[str, ...], ...]  #: theirs, every combination that there is
    variadic: int = -1  #: the input that may be several; -1: none
    infers: bool = False  #: whether its output's shape can be inferred
    has_modes: bool = True  #: whether its states are for one mode after the other
    n_outputs: int = 1  #: 2: the second output is the status output of a Python op

    @property
    def op_type(self) -> str:
        """The type of its nodes. A stand-in has the type of the Python op."""
        return COMPILED_TYPES[self.name] if self.n_outputs == 1 else self.name

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
        try:
            kernels = importlib.import_module(f".{module}", __package__)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                versions.missing_module_message(error.name or module, str(error)), name=error.name
            ) from error
        return getattr(kernels, name)

    def described(self, types: Sequence[str]) -> str:
        """What it takes, where its inputs are of these ``types``."""
        each = [f"{name} of {type_}" for name, type_ in zip(self.inputs, types, strict=True)]
        return f"{', '.join(each[:-1])} and {each[-1]}"


def fields(op: Op, types: Sequence[str]) -> dict[str, Any]:
    """The numbers in the :data:`.structs.OP` of an op whose inputs are of these ``types``."""
    numbers = [STRING if each == "str" else ELEMENT_TYPES[each] for each in types]
    numbers += [0] * (MOST_TYPES - len(types))
    return {
        "version": VERSION,
        "n_inputs": len(types),
        "n_outputs": op.n_outputs,
        "variadic": op.variadic,
        "types": numbers,
    }


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
    Op("GridSample", "sampling.KERNELS", ("X", "grid"), _combined(_X, _grid), infers=True),
    Op("AffineGrid", "affine.KERNELS", ("theta", "size"), _combined(_theta, _size), has_modes=False),
    Op(FUSED, "affine.FUSED", ("X", "size", "theta"), _combined(_X, _size, _theta), variadic=2),
    Op(FUSED, "program_grids.KERNELS", ("X", "scalars", "grid"), _sampled, 2),
    Op(ATTENTION, "attention.KERNELS", _inputs, _attended, infers=True, has_modes=False),
)


def _stand_in(op: Op) -> Op:
    """A compiled op with the interface of the Python op of the same name, for where onnxruntime-extensions is missing.

    It has the status output that the guard of a Python op reads, and the types that Python ops take. Strings are among
    these, so that :meth:`.registry.CompiledOps` can refuse them with a sentence.
    """
    module, _ = op.kernels.split(".")
    types = [
        each
        for each in op.types
        if all(spec.TYPES[name].transport == name for name in each)
    ]  # fmt: skip
    if op.name == "GridSample":
        types += [("str", grid) for grid in dict.fromkeys(spec.TYPES[name].transport for name in _grid) if grid]
    return replace(op, kernels=f"{module}.WITH_STATUS", types=tuple(types), n_outputs=2)


#: Domain -> its ops.
DOMAINS = {COMPILED_DOMAIN: OPS, DOMAIN: tuple(_stand_in(op) for op in OPS if op.name in OPERATORS)}
