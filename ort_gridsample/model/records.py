"""Finding the nodes concerned in a model, and reading what each of them says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from os import PathLike
from typing import TypeVar

import onnx

from .. import checks, spec
from ..core.arrays import Array
from ..core.plan import type_name
from ..errors import GridSampleError, where
from ..runtime import native
from .dialects import DOMAIN, Dialect, Plain, constant_size, dialect_of
from .files import read_model, sound
from .graphs import Scope, domain_of, scopes
from .helpers import Helpers
from .inference import Inference, Value

T = TypeVar("T")

#: Why a type cannot be run, where the reason is not that the specification has no such type.
_REFUSED = "as ONNX Runtime has no complex tensors: sample the real and the imaginary part each for itself"
_UNKNOWN = "types or ranks of its inputs are known only when it runs"


@dataclass(frozen=True)
class NodeRecord:
    """What is known of one node concerned, without running it.

    Attributes:
        graph: where the node is: "" for the main graph, else the way to its If, Loop or Scan body or its function.
        name: the node's name, or (in brackets) its output's where it has none.
        operator: the operator that it stands for, ``GridSample`` or ``AffineGrid``.
        op_type: the node's own.
        domain: the node's domain, "" for ONNX's own; ``ort_gridsample`` where it is patched already.
        opset: the version of that domain that the node is written in.
        dialect: how it is spelled.
        attributes: the operator's attributes, modes by their names in :data:`ort_gridsample.spec.MODES`, defaults
            filled in; what a function passes on is ``@name``. Empty where they cannot be read.
        inputs: input name -> what is known of its type and shape, with alternatives in a function called with several.
        values: input name -> the name of its value in the model, "" where it has none.
        constants: input name -> its value, where the model holds it.
        output: the name of its output in the model.
    """

    graph: str
    name: str
    operator: str
    op_type: str
    domain: str
    opset: int
    dialect: Dialect = field(repr=False)
    attributes: Mapping[str, Plain]
    inputs: Mapping[str, Sequence[Value]]
    values: Mapping[str, str]
    constants: Mapping[str, Array] = field(repr=False, compare=False)
    output: str
    node: onnx.NodeProto = field(repr=False, compare=False)
    scope: Scope = field(repr=False, compare=False)
    index: int = field(repr=False, compare=False)
    helpers: frozenset[int] = field(repr=False, compare=False)
    unreadable: GridSampleError | None = field(repr=False, compare=False)

    @property
    def label(self) -> str:
        """How errors, and the patched model, name the node."""
        return f"{self.name} in {self.graph}" if self.graph else self.name

    @property
    def where(self) -> str:
        """The place that an error names."""
        return where(self.op_type, self.label)

    @property
    def patched(self) -> bool:
        """Whether the node is one of this package's already."""
        return self.domain == DOMAIN

    @property
    def mode(self) -> str | None:
        """The node's mode, by its name in :data:`ort_gridsample.spec.MODES`; None for AffineGrid."""
        return self._text("mode")

    @property
    def padding_mode(self) -> str | None:
        """The node's padding mode; None for AffineGrid."""
        return self._text("padding_mode")

    @property
    def align_corners(self) -> Plain | None:
        """The node's ``align_corners``."""
        return self.attributes.get("align_corners")

    @property
    def spatial_axes(self) -> tuple[int, ...]:
        """The numbers of spatial axes that it may sample or make a grid for; empty where unknown."""
        return _distinct(map(_spatial_axes, product(*(values or [Value()] for values in self.inputs.values()))))

    @property
    def types(self) -> dict[str, tuple[str, ...]]:
        """Input name -> the element types that it may have, by numpy's names; empty where unknown."""
        return {name: _distinct(value.type for value in values) for name, values in self.inputs.items()}

    @property
    def ranks(self) -> dict[str, tuple[int, ...]]:
        """Input name -> the numbers of axes that it may have; empty where unknown."""
        return {name: _distinct(value.rank for value in values) for name, values in self.inputs.items()}

    @cached_property
    def error(self) -> GridSampleError | None:
        """What is wrong with the node, as far as it can be seen without running it."""
        try:
            _check(self)
        except GridSampleError as error:
            return error
        return None

    @property
    def casts(self) -> dict[str, str]:
        """Input name -> the type that a patch casts it to, for the inputs that no Python-defined op can take."""
        carriers = {name: spec.TYPES[types[0]].carrier for name, types in self.types.items() if types}
        return {name: to for name, to in carriers.items() if to is not None and to != self.types[name][0]}

    @property
    def action(self) -> str:
        """What a patch does to the node, if it selects it."""
        if self.patched:
            return "nothing, it is patched"
        if self.error is not None:
            return "refuses it"
        casts = [f"cast {name} {self.types[name][0]} → {to}" for name, to in self.casts.items()]
        return ", ".join(["replaces it", *casts])

    @property
    def native(self) -> bool:
        """Whether the installed onnxruntime runs this node by itself."""
        return not self.reason

    @cached_property
    def reason(self) -> str:
        """Why the installed onnxruntime does not run this node by itself, or why that is not known; else empty."""
        if self.patched:
            return "it is a node of this package"
        if self.error is not None:
            return str(self.error)
        alternatives = list(product(*self.inputs.values()))
        if not alternatives:
            return _UNKNOWN
        attributes = {
            name: next(iter(self.dialect.attributes[name].values)) if passed_on(value) else value
            for name, value in self.attributes.items()
        }
        node = onnx.NodeProto(op_type=self.op_type, domain=self.domain, attribute=self.dialect.write(attributes))
        opsets = {"": 20, **self.scope.opsets}
        for case in alternatives:
            types = {name: value.type for name, value in zip(self.inputs, case, strict=True) if value.type is not None}
            axes = _spatial_axes(case)
            if len(types) < len(case) or axes is None:
                return _UNKNOWN
            refusal = native.refusal(node, opsets, self.operator, types, axes)
            if refusal:
                return refusal
        return ""

    def _text(self, attribute: str) -> str | None:
        return str(self.attributes[attribute]) if attribute in self.attributes else None


@sound
def inspect_model(model: onnx.ModelProto | str | PathLike[str]) -> list[NodeRecord]:
    """One record for every GridSample and AffineGrid node of ``model``, in every graph and function of it.

    Args:
        model: a ModelProto, or the path of a model (its external data is not read).

    Raises:
        GridSampleError: the file is not an ONNX model.
        OSError: the file cannot be read.
    """
    return records_of(read_model(model))


def records_of(model: onnx.ModelProto) -> list[NodeRecord]:
    """As :func:`inspect_model`, of a model that is in memory."""
    found = scopes(model)
    return find(found, Inference(model, found))


def find(found: Sequence[Scope], inference: Inference) -> list[NodeRecord]:
    """A record of every node concerned in the scopes ``found``."""
    records = []
    for scope in found:
        helpers = Helpers(scope)
        for index, node in enumerate(scope):
            dialect = dialect_of(node, scope.opsets)
            if dialect is not None:
                records.append(_record(dialect, node, index, scope, inference, helpers))
    return records


def _record(
    dialect: Dialect,
    node: onnx.NodeProto,
    index: int,
    scope: Scope,
    inference: Inference,
    helpers: Helpers,
) -> NodeRecord:
    domain = domain_of(node.domain)
    opset = scope.opsets.get(domain, dialect.version if domain else 0)
    name = node.name or f"({', '.join(node.output)})"
    sources, output, belonging = helpers.around(node)
    inputs, values, known = {}, {}, {}
    for position, argument in enumerate(_newest(dialect.operator).types):
        size = constant_size(node, dialect, argument)
        value = sources[position] if position < len(sources) and size is None else ""
        constant = scope.constant(value) if value else size
        values[argument] = value
        inputs[argument] = inference.alternatives(scope, value) if value else []
        if constant is not None:
            known[argument] = constant
            if not inputs[argument]:
                inputs[argument] = [Value(type_name(constant.dtype), constant.shape)]
    attributes: dict[str, Plain] = {}
    unreadable = None
    try:
        here = where(node.op_type, f"{name} in {scope.path}" if scope.path else name)
        note = f" (opset {opset})" if domain == "" else ""
        attributes = dialect.read(here, node, lambda i: scope.constant(node.input[i]), note)
    except GridSampleError as error:
        unreadable = error
    return NodeRecord(
        graph=scope.path,
        name=name,
        operator=dialect.operator,
        op_type=node.op_type,
        domain=domain,
        opset=opset,
        dialect=dialect,
        attributes=attributes,
        inputs=inputs,
        values=values,
        constants=known,
        output=output,
        node=node,
        scope=scope,
        index=index,
        helpers=belonging,
        unreadable=unreadable,
    )


def _newest(operator: str) -> spec.Version:
    versions = spec.OPERATORS[operator]
    return versions[max(versions)]


def _check(record: NodeRecord) -> None:
    """Raise for the first thing that is wrong with the node of ``record``."""
    here, node = record.where, record.node
    if record.patched:
        return
    first = min(spec.OPERATORS[record.operator])
    if record.domain == "" and record.dialect.name == "ai.onnx" and record.opset < first:
        raise GridSampleError(here, "opset", str(record.opset), f"at least {first}")
    for name, value in record.values.items():
        if not value and name not in record.constants:
            raise GridSampleError(here, name, "missing", "an input")
    most = max([1, *(s.position or 1 for s in record.dialect.attributes.values())]) + 1
    if len(node.input) > most:
        raise GridSampleError(here, "inputs", str(len(node.input)), f"at most {most}")
    if len(node.output) != 1 or not node.output[0]:
        raise GridSampleError(here, "outputs", str(len(node.output)), "1")
    if record.unreadable is not None:
        raise record.unreadable
    allowed = _newest(record.operator).types
    for name, types in record.types.items():
        for each in types:
            if each not in allowed[name]:
                raise GridSampleError(here, name, f"of type {each}", f"one of {', '.join(allowed[name])}")
            if spec.TYPES[each].carrier is None:
                raise GridSampleError(here, name, f"of type {each}", f"another type, {_REFUSED}")
    for values in product(*(values or [Value()] for values in record.inputs.values())):
        _check_values(here, record, *values)


def _check_values(here: str, record: NodeRecord, first: Value, second: Value) -> None:
    if record.operator == "AffineGrid":
        size = record.constants.get("size")
        checks.affine_grid_shapes(here, first.shape, size.tolist() if size is not None and size.ndim == 1 else None)
        if second.shape is not None and (
            len(second.shape) != 1 or (isinstance(second.shape[0], int) and second.shape[0] not in (4, 5))
        ):
            raise GridSampleError(here, "size", f"of shape {second.shape}", "4 or 5 numbers")
        return
    checks.grid_sample_shapes(here, first.shape, second.shape, record.padding_mode)
    if first.type is not None and record.mode in spec.MODES:
        checks.mode_and_padding(here, str(record.mode), spec.PADDING_MODES[0], first.type)


def _spatial_axes(case: Sequence[Value]) -> int | None:
    """The number of spatial axes that a node's inputs have: X and grid, or theta and size."""
    first, second = case
    by_rank = first.rank if first.rank != 3 or second.rank != 1 else None
    if by_rank is not None:
        return by_rank - 2
    rows = first.shape[1] if first.shape is not None else None
    return rows if isinstance(rows, int) else None


def passed_on(value: Plain) -> bool:
    """Whether an attribute of a record is one that its function passes on."""
    return isinstance(value, str) and value.startswith("@")


def _distinct(values: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(value for value in values if value is not None))
