"""Finding the nodes concerned in a model, and reading what each of them says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from os import PathLike
from typing import TypeVar

import onnx
from onnx import helper

from . import checks, native, spec
from .errors import GridSampleError
from .graphs import Scope, domain_of, scopes
from .inference import Inference, Value
from .models import read_model
from .ops import DOMAIN, where

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
        op_type: ``GridSample`` or ``AffineGrid``.
        domain: the node's domain, "" for ONNX's own; ``ort_gridsample`` where it is patched already.
        opset: the version of that domain that the node is written in.
        attributes: the operator's attributes, defaults filled in; what a function passes on is ``@name``.
        inputs: input name -> what is known of its type and shape, with alternatives in a function called with several.
    """

    graph: str
    name: str
    op_type: str
    domain: str
    opset: int
    attributes: Mapping[str, str | int]
    inputs: Mapping[str, Sequence[Value]]
    node: onnx.NodeProto = field(repr=False, compare=False)
    scope: Scope = field(repr=False, compare=False)
    index: int = field(repr=False, compare=False)

    @property
    def label(self) -> str:
        """How errors, and the patched model, name the node."""
        return f"{self.name} in {self.graph}" if self.graph else self.name

    @property
    def patched(self) -> bool:
        """Whether the node is one of this package's already."""
        return self.domain == DOMAIN

    @property
    def mode(self) -> str | None:
        """The node's ``mode``, as written; None for AffineGrid."""
        return self._text("mode")

    @property
    def padding_mode(self) -> str | None:
        """The node's ``padding_mode``; None for AffineGrid."""
        return self._text("padding_mode")

    @property
    def align_corners(self) -> int | str:
        """The node's ``align_corners``."""
        return self.attributes["align_corners"]

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
        """What a patch does to the node."""
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
        attributes = {name: self.default(name) if _passed_on(v) else v for name, v in self.attributes.items()}
        for case in alternatives:
            types = {name: value.type for name, value in zip(self.inputs, case, strict=True) if value.type is not None}
            axes = _spatial_axes(case)
            if len(types) < len(case) or axes is None:
                return _UNKNOWN
            refusal = native.refusal(self.op_type, self.opset, types, axes, attributes)
            if refusal:
                return refusal
        return ""

    def default(self, attribute: str) -> str | int:
        """The default of one of the node's attributes."""
        return self._version.attributes[attribute].default

    @property
    def _version(self) -> spec.Version:
        versions = spec.OPERATORS[self.op_type]
        newest = max(versions)
        return versions[newest if self.patched else spec.version_of(self.op_type, self.opset) or newest]

    def _text(self, attribute: str) -> str | None:
        return str(self.attributes[attribute]) if attribute in self.attributes else None


def inspect_model(model: onnx.ModelProto | str | PathLike[str]) -> list[NodeRecord]:
    """One record for every GridSample and AffineGrid node of ``model``, in every graph and function of it.

    Args:
        model: a ModelProto, or the path of a model (its external data is not read).

    Raises:
        GridSampleError: the file is not an ONNX model.
        OSError: the file cannot be read.
    """
    proto = read_model(model)
    found = scopes(proto)
    return find(found, Inference(proto, found))


def find(found: Sequence[Scope], inference: Inference) -> list[NodeRecord]:
    """A record of every node concerned in the scopes ``found``."""
    return [
        _record(node, index, scope, inference)
        for scope in found
        for index, node in enumerate(scope)
        if node.op_type in spec.OPERATORS and domain_of(node.domain) in ("", DOMAIN)
    ]


def _record(node: onnx.NodeProto, index: int, scope: Scope, inference: Inference) -> NodeRecord:
    domain = domain_of(node.domain)
    opset = scope.opsets.get(domain, 0)
    versions = spec.OPERATORS[node.op_type]
    version = versions[(spec.version_of(node.op_type, opset) if domain != DOMAIN else None) or max(versions)]
    attributes: dict[str, str | int] = {name: attribute.default for name, attribute in version.attributes.items()}
    attributes.update((a.name, _plain(a)) for a in node.attribute if a.name in attributes)
    names = dict(zip(version.types, node.input, strict=False))
    return NodeRecord(
        graph=scope.path,
        name=node.name or f"({', '.join(node.output)})",
        op_type=node.op_type,
        domain=domain,
        opset=opset,
        attributes=attributes,
        inputs={i: inference.alternatives(scope, names[i]) if names.get(i) else [] for i in version.types},
        node=node,
        scope=scope,
        index=index,
    )


def _check(record: NodeRecord) -> None:
    """Raise for the first thing that is wrong with the node of ``record``."""
    here, node, versions = where(record.op_type, record.label), record.node, spec.OPERATORS[record.op_type]
    if record.patched:
        return
    if spec.version_of(record.op_type, record.opset) is None:
        raise GridSampleError(here, "opset", str(record.opset), f"at least {min(versions)}")
    version = record._version
    for i, name in enumerate(version.types):
        if i >= len(node.input) or not node.input[i]:
            raise GridSampleError(here, name, "missing", "an input")
    if len(node.input) > len(version.types):
        raise GridSampleError(here, "inputs", str(len(node.input)), str(len(version.types)))
    if len(node.output) != 1 or not node.output[0]:
        raise GridSampleError(here, "outputs", str(len(node.output)), "1")
    for attribute in node.attribute:
        if attribute.name not in version.attributes:
            raise GridSampleError(here, "attribute", repr(attribute.name), checks.listed(version.attributes))
        allowed = version.attributes[attribute.name].allowed
        value = record.attributes[attribute.name]
        if not _passed_on(value) and value not in allowed:
            raise GridSampleError(here, attribute.name, repr(value), f"{checks.listed(allowed)} (opset {record.opset})")
    newest = versions[max(versions)].types
    for name, types in record.types.items():
        for type_name in types:
            if type_name in newest[name] and spec.TYPES[type_name].carrier is None:
                raise GridSampleError(here, name, f"of type {type_name}", f"another type, {_REFUSED}")
            if type_name not in newest[name]:
                raise GridSampleError(here, name, f"of type {type_name}", f"one of {', '.join(newest[name])}")
    for values in product(*(values or [Value()] for values in record.inputs.values())):
        _check_values(here, record, *values)


def _check_values(here: str, record: NodeRecord, first: Value, second: Value) -> None:
    if record.op_type == "AffineGrid":
        checks.affine_grid_shapes(here, first.shape, None)
        if second.shape is not None and (
            len(second.shape) != 1 or (isinstance(second.shape[0], int) and second.shape[0] not in (4, 5))
        ):
            raise GridSampleError(here, "size", f"of shape {second.shape}", "4 or 5 numbers")
        return
    checks.grid_sample_shapes(here, first.shape, second.shape, record.padding_mode)
    if first.type is not None and record.mode in spec.MODES + tuple(spec.MODE_SYNONYMS):
        checks.mode_and_padding(here, str(record.mode), spec.PADDING_MODES[0], first.type)


def _spatial_axes(case: Sequence[Value]) -> int | None:
    """The number of spatial axes that a node's inputs have: X and grid, or theta and size."""
    first, second = case
    by_rank = first.rank if first.rank != 3 or second.rank != 1 else None
    if by_rank is not None:
        return by_rank - 2
    rows = first.shape[1] if first.shape is not None else None
    return rows if isinstance(rows, int) else None


def _plain(attribute: onnx.AttributeProto) -> str | int:
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    value = helper.get_attribute_value(attribute)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _passed_on(value: str | int) -> bool:
    return isinstance(value, str) and value.startswith("@")


def _distinct(values: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(value for value in values if value is not None))
