"""The compiled ops: their schemas, and where their kernels are defined.

The ops are made from the operators of :data:`ort_gridsample.spec.OP_SPECS` and the nodes of
:mod:`ort_gridsample.dialects.table`. Only the fused ops are listed here.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from ... import spec, versions
from ...detection import programs
from ...dialects.spelling import Dialect
from ...dialects.table import (
    ATTENTION,
    ATTENTION_SIGNATURES,
    COMPILED_DOMAIN,
    COMPILED_TYPES,
    DOMAIN,
    FUSED,
    OPENMMLAB,
    AttentionSignature,
)
from ...functions.grid_operators import GRID_OPERATORS
from ...kernels.tap_plans import COMPILED_MODES
from .c_api import ELEMENT_TYPES

#: The version of the ops' inputs and attributes. A node states it in its attribute ``interface``,
#: whose default is 1.
INTERFACE = 1

#: The values of a record's fields: a number, a compiled function as
#: :data:`ort_gridsample.kernels.compilation.FunctionSpec` (None: 0), an
#: :class:`.record_image.Relocation`, or the fields of a record inside the record.
Fields = Mapping[str, Any]

#: The ops that a session needs: types of nodes, each with a type of the node's first input. None
#: selects all ops.
OpSelection = frozenset[tuple[str, str]] | None


class OpImplementation(NamedTuple):
    """What an op consists of: its compiled functions, error messages and initial states."""

    #: CreateKernelV2.
    create: Callable[..., int]
    #: KernelComputeV2.
    compute: Callable[..., int]
    #: KernelDestroy.
    destroy: Callable[..., int]
    #: The error messages, as :func:`.sentences.encode` returns them.
    sentences: Sequence[bytes]
    #: From the types of the inputs to the op's initial states: their record, and the fields of
    #: each.
    states: Callable[..., tuple[Any, Sequence[Fields]]]
    #: InferOutputShapeFn, or None.
    infer: Callable[..., int] | None = None

    @property
    def functions(self) -> dict[str, tuple[Callable[..., int]]]:
        """The functions to compile, by their fields in :data:`.structs.OP`."""
        function_specs: dict[str, tuple[Callable[..., int]]] = {
            "CreateKernelV2": (self.create,),
            "KernelComputeV2": (self.compute,),
            "KernelDestroy": (self.destroy,),
        }
        if self.infer is not None:
            function_specs["InferOutputShapeFn"] = (self.infer,)
        return function_specs


@dataclass(frozen=True)
class Op:
    """An op.

    Attributes:
        name: the operator, which several ops may share. :attr:`op_type` is the type of the op's own
            nodes, and ``node_type`` overrides it.
        implementation: where its :class:`OpImplementation` is defined, as module and name. The
            module imports Numba.
        inputs: the names of the inputs.
        types: all combinations of the inputs' types.
        variadic: the index of the variadic input; -1 for none.
        infers_shape: whether the shape of the output can be inferred.
        has_modes: whether the op has one state per mode, in each group of its states.
        n_outputs: 2 if the op has the status output of a Python op.
        node_type: the type of the op's nodes if they are another package's.
    """

    name: str
    implementation: str
    inputs: tuple[str, ...]
    types: tuple[tuple[str, ...], ...]
    variadic: int = -1
    infers_shape: bool = False
    has_modes: bool = True
    n_outputs: int = 1
    node_type: str = ""

    @property
    def op_type(self) -> str:
        """The type of the op's nodes. An op that replaces a Python op has the Python op's type."""
        if self.node_type:
            return self.node_type
        return COMPILED_TYPES[self.name] if self.n_outputs == 1 else self.name

    def is_selected(self, types: Sequence[str], selection: OpSelection) -> bool:
        """Whether ``selection`` has this op for inputs of these ``types``."""
        return selection is None or (self.op_type, types[0]) in selection

    def needs_state(
        self,
        types: Sequence[str],
        index: int,
        needed: Mapping[str, Collection[str]] | None,
    ) -> bool:
        """Whether a library for the ``needed`` nodes needs a state.

        Args:
            types: the types of the inputs.
            needed: the types that the nodes have, by the names of inputs, and the modes that they
                have, as ``mode``. If None, all states are needed.
        """
        if needed is None:
            return True
        properties = dict(zip(self.inputs, types, strict=True))
        if self.has_modes:
            properties["mode"] = COMPILED_MODES[index % len(COMPILED_MODES)]
        for name, value in properties.items():
            if name not in _DEPENDENT_INPUTS and value not in needed.get(name, ()):
                return False
        return True

    def load(self) -> OpImplementation:
        """Import and return the op's implementation. This imports Numba.

        Raises:
            ModuleNotFoundError: Numba or a module of this package is missing.
        """
        module_name, attribute = self.implementation.split(".")
        try:
            module = importlib.import_module(f".{module_name}", __package__)
        except ModuleNotFoundError as error:
            reason = versions.missing_module_message(error.name or module_name, str(error))
            raise ModuleNotFoundError(reason, name=error.name) from error
        return getattr(module, attribute)

    def describe(self, types: Sequence[str]) -> str:
        """Describe inputs of these ``types``, for an error message."""
        inputs = [f"{name} of {type_}" for name, type_ in zip(self.inputs, types, strict=True)]
        return f"{', '.join(inputs[:-1])} and {inputs[-1]}"


def find_op(name: str, types: Sequence[str]) -> Op | None:
    """Return the op of :data:`OPS` for inputs of these types; None if there is none.

    Args:
        name: the operator. The fused ops share one name.
        types: the types of the inputs.
    """
    return next((op for op in OPS if op.name == name and tuple(types) in op.types), None)


def _combinations(*alternatives: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return all combinations of types, one of each row, without types that have no compiled op."""
    supported = ([name for name in names if name in ELEMENT_TYPES] for names in alternatives)
    return tuple(product(*supported))


#: The inputs that have only one type, or the type of another input.
_DEPENDENT_INPUTS = (
    "size",
    "scalars",
    "levels",
    "attention_weights",
    *(name for signature in ATTENTION_SIGNATURES.values() for name in signature.integer_inputs),
)


def _operator_types(operator: spec.OpSpec) -> tuple[tuple[str, ...], ...]:
    """Return all combinations of the types of an operator's inputs that have a compiled op."""
    alternatives = operator.newest.types
    independent = [name for name in alternatives if name not in operator.same_types]
    rows = []
    for combination in _combinations(*(alternatives[name] for name in independent)):
        types = dict(zip(independent, combination, strict=True))
        rows.append(tuple(types[operator.same_types.get(name, name)] for name in alternatives))
    return tuple(rows)


def _operator_op(operator: spec.OpSpec) -> Op:
    """Return the compiled op of an operator."""
    return Op(
        operator.name,
        operator.implementation,
        tuple(operator.newest.types),
        _operator_types(operator),
        infers_shape=operator.infers_shape,
        has_modes="mode" in operator.newest.attributes,
    )


_X_TYPES, _GRID_TYPES = spec.newest("GridSample").types.values()
_X_AND_PROGRAM = product(_combinations(_X_TYPES), programs.TYPES)
#: The types of X, of the scalars and of the sources, which are of one type.
_PROGRAM_TYPES = tuple((*X, type_, type_) for X, type_ in _X_AND_PROGRAM)


def _fused_op(operator: spec.OpSpec) -> Op:
    """Return the compiled op of a GridSample that is fused with a node of ``operator``."""
    inputs = GRID_OPERATORS[operator.name].fused_inputs
    types = operator.newest.types
    return Op(
        operator.fused_type,
        operator.fused_implementation,
        ("X", *inputs),
        _combinations(_X_TYPES, *(types[name] for name in inputs)),
        variadic=2,
    )


# A fused op first reads what its sources have in common: the size, or the scalars of its programs.
OPS = (
    *map(_operator_op, spec.OP_SPECS.values()),
    *(_fused_op(spec.OP_SPECS[name]) for name in GRID_OPERATORS),
    Op(
        FUSED,
        "program_grids.IMPLEMENTATION",
        ("X", "scalars", "grid"),
        _PROGRAM_TYPES,
        variadic=2,
    ),
)


def _is_python_op_type(name: str) -> bool:
    """Whether Python ops have inputs of this type, without a conversion."""
    return spec.TYPES[name].transport == name


def _python_op_replacement(op: Op) -> Op:
    """Return a compiled op with the interface of the Python op of the same name.

    Sessions use it if onnxruntime-extensions is not installed. It has the status output, which the
    guard node of a Python op reads, and the input types of Python ops. These include strings, so
    that :class:`.registry.CompiledOps` can refuse them with an error message.
    """
    module, _ = op.implementation.split(".")
    types = [names for names in op.types if all(map(_is_python_op_type, names))]
    if op.name == "GridSample":
        grid_types = dict.fromkeys(spec.TYPES[name].transport for name in _GRID_TYPES)
        types += [("str", grid_type) for grid_type in grid_types if grid_type]
    return replace(op, implementation=f"{module}.WITH_STATUS", types=tuple(types), n_outputs=2)


# Each op makes the creation of sessions slower, so there is none for float64.
_FOREIGN_FLOATS = ("float32", "float16")


def _coded_sampler(dialect: Dialect) -> Op:
    """Return the op for nodes of a dialect of :data:`~.dialects.table.OPENMMLAB`."""
    operator = _operator_op(spec.OP_SPECS[dialect.operator])
    types = tuple((name, name) for name in _FOREIGN_FLOATS)
    return replace(operator, implementation="foreign.CODED", types=types, node_type=dialect.op_type)


def _foreign_attention(node_type: str, signature: AttentionSignature) -> Op:
    """Return the op for nodes of a type of :data:`~.dialects.table.ATTENTION_SIGNATURES`."""
    types = []
    for name, integer in product(_FOREIGN_FLOATS, ("int64", "int32")):
        types.append((name, integer, integer, name, name))
    return Op(
        ATTENTION,
        f"foreign.{signature.output_layout.upper()}",
        tuple(signature.inputs),
        tuple(types),
        has_modes=False,
        node_type=node_type,
    )


def _foreign_domains() -> dict[str, tuple[Op, ...]]:
    """Return the ops of each domain of another package."""
    ops = defaultdict[str, list[Op]](list)
    for dialect in OPENMMLAB:
        ops[dialect.domain].append(_coded_sampler(dialect))
    for node_type, signature in ATTENTION_SIGNATURES.items():
        for domain in signature.op_domains:
            ops[domain].append(_foreign_attention(node_type, signature))
    return {domain: tuple(domain_ops) for domain, domain_ops in ops.items()}


#: The ops of other packages' domains. A domain com.microsoft would hide onnxruntime's own operators
#: of this domain, which its optimizer writes ("com.microsoft:FusedConv(-1) is not a registered
#: function/op").
FOREIGN_DOMAINS = _foreign_domains()

#: The ops of each domain.
DOMAINS = {
    **FOREIGN_DOMAINS,
    COMPILED_DOMAIN: OPS,
    DOMAIN: tuple(_python_op_replacement(op) for op in OPS if op.name in spec.OP_SPECS),
}
