"""The records of sampling nodes that users read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeVar

import onnx

from .. import spec
from ..dialects.spelling import AttributeReference, AttributeValue, Dialect
from ..dialects.table import ATTENTION, COMPILED, DECOMPOSED, DOMAIN
from ..errors import GridSampleError, nested_name, where_node
from ..functions.grid_operators import GRID_OPERATORS, length_of
from ..inference.runtime_probe import NOT_INSTALLED
from ..inference.types import TypeAndShape
from ..reference.arrays import Array

T = TypeVar("T")
#: The reason in a record if onnxruntime was not asked whether it runs the node.
NOT_ASKED = "onnxruntime was not asked"


@dataclass(frozen=True, repr=False)
class NodeRecord:
    """The properties of a node that are known without running it.

    Attributes:
        graph: the place of the node: "" for the main graph, else the path to its If, Loop or Scan
            body or its function.
        name: the node's name, or (in brackets) that of its output if it has no name.
        operator: the operator that it computes: ``GridSample``, ``AffineGrid`` or
            ``DeformableAttention``.
        op_type: the node's own operator type.
        domain: the node's domain, "" for ONNX's own. ``ort_gridsample``: the node is patched
            already. ``decomposed``: the operator is decomposed to several nodes of basic operators,
            and the last of them has this name.
        opset: the version of that domain that the node is written in.
        dialect: the way in which the operator is written as a node.
        attributes: the operator's attributes with defaults filled in.

            A mode has its name in ``MODE_RULES`` of :mod:`ort_gridsample.reference.taps`. The
            ``str()`` of an attribute that a function passes on is ``@name``. Empty if the
            attributes cannot be read.
        cases: the types and shapes of its inputs, in their order. In a function, there is a case
            for each kind of call.
        values: input name -> the name of its value in the model, "" if it has none.
        constants: input name -> its value, if the model contains it.
        output: the name of its output in the model.
        error: a fault of the node that can be found without running it.
        reason: why the installed onnxruntime does not run this node by itself, or why this is
            unknown; else empty.
        fused: the names of the nodes that compute the grid of this GridSample and nothing else,
            such as an AffineGrid. The GridSample computes the grid itself if it is a compiled op.
            For decomposed deformable attention, the names of the nodes from the samples to the sum.
    """

    graph: str
    name: str
    operator: str
    op_type: str
    domain: str
    opset: int
    dialect: Dialect
    attributes: Mapping[str, AttributeValue] = field(hash=False)
    cases: Sequence[tuple[TypeAndShape, ...]] = field(hash=False)
    values: Mapping[str, str] = field(hash=False)
    constants: Mapping[str, Array] = field(compare=False)
    output: str
    error: GridSampleError | None = field(default=None, compare=False)
    reason: str = field(default=NOT_ASKED, compare=False)
    fused: tuple[str, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        cells = ", ".join(f"{column}: {text}" for column, text in columns(self).items() if text)
        reason = f" ({self.reason})" if self.reason else ""
        graph = f" in {self.graph}" if self.graph else ""
        return f"<NodeRecord {cells}{reason}{graph}>"

    @property
    def label(self) -> str:
        """The name of the node in errors and in the patched model."""
        return nested_name(self.name, self.graph)

    @property
    def where(self) -> str:
        """The place that an error names."""
        return where_node(self.operator if self.patched else self.op_type, self.label)

    @property
    def patched(self) -> bool:
        """Whether the node is an op of this package."""
        return is_of_package(self.dialect)

    @property
    def decomposed(self) -> bool:
        """Whether several nodes of basic operators compute the operator."""
        return self.dialect.name == DECOMPOSED

    @property
    def mode(self) -> AttributeValue | None:
        """The mode, by its name in ``MODE_RULES``, or None for an AffineGrid."""
        return self.attributes.get("mode")

    @property
    def padding_mode(self) -> AttributeValue | None:
        """The padding mode, or None for an AffineGrid."""
        return self.attributes.get("padding_mode")

    @property
    def align_corners(self) -> AttributeValue | None:
        """The attribute ``align_corners``."""
        return self.attributes.get("align_corners")

    @property
    def has_attribute_references(self) -> bool:
        """Whether an attribute is one that the caller of the node's function gives."""
        return any(isinstance(value, AttributeReference) for value in self.attributes.values())

    @property
    def possible_attributes(self) -> dict[str, str | int]:
        """The attributes, with the first possible value of those that a function's caller sets."""
        attributes = {}
        for name, value in self.attributes.items():
            if isinstance(value, AttributeReference):
                value = next(iter(self.dialect.attributes[name].values))
            attributes[name] = value
        return attributes

    def node_without_values(self) -> onnx.NodeProto:
        """Return a node with these properties, but without inputs and outputs."""
        attributes = self.dialect.write(self.possible_attributes)
        return onnx.NodeProto(op_type=self.op_type, domain=self.domain, attribute=attributes)

    @property
    def spatial_axes(self) -> tuple[int, ...]:
        """The possible numbers of spatial axes, or an empty tuple if they are unknown."""
        return _distinct(n_spatial_axes(self.operator, case) for case in self.cases)

    def has_axes_of(self, axes: Collection[int]) -> bool:
        """Whether the number of spatial axes is certainly one of the numbers ``axes``.

        The number follows from the shapes of the inputs or, if these are unknown, from the dialect.
        """
        dialect_axes = self.dialect.axes
        is_dialect_sufficient = dialect_axes is not None and set(dialect_axes) <= set(axes)
        numbers = [n_spatial_axes(self.operator, case) for case in self.cases]
        return all(
            is_dialect_sufficient if number is None else number in axes for number in numbers
        )

    @cached_property
    def inputs(self) -> dict[str, list[TypeAndShape]]:
        """Input name -> the types and shapes that it can have.

        A node in a function has one for each kind of call, ``TypeAndShape()`` for calls of which
        nothing is known. The list is empty if nothing is known of any call.
        """
        inputs = {}
        for name, values in zip(self.values, zip(*self.cases, strict=True), strict=True):
            distinct = list(dict.fromkeys(values))
            inputs[name] = [] if distinct == [TypeAndShape()] else distinct
        return inputs

    @cached_property
    def types(self) -> dict[str, tuple[str, ...]]:
        """Input name -> its known element types, by numpy's names.

        The tuple is empty if no type is known. Calls of a function may have other types if
        :meth:`varies_in_type`.
        """
        inputs = self.inputs.items()
        return {name: _distinct(value.type for value in values) for name, values in inputs}

    @property
    def ranks(self) -> dict[str, tuple[int, ...]]:
        """Input name -> its known ranks. The tuple is empty if no rank is known."""
        inputs = self.inputs.items()
        return {name: _distinct(value.rank for value in values) for name, values in inputs}

    def shapes_by_call(self, argument: str) -> list[spec.Shape | None]:
        """Return the shape of an input in each kind of call, or None where it is unknown."""
        index = list(self.values).index(argument)
        return [case[index].shape for case in self.cases]

    def shape_in_all_calls(self, argument: str) -> spec.Shape | None:
        """Return the shape of an input if it is the same in all calls, or None."""
        shapes = set(self.shapes_by_call(argument))
        return shapes.pop() if len(shapes) == 1 else None

    def length_in_all_calls(self, argument: str, axis: int) -> spec.Dim:
        """Return the length of an axis of an input if it is the same in all calls, or None."""
        lengths = {shape[axis] if shape else None for shape in self.shapes_by_call(argument)}
        return lengths.pop() if len(lengths) == 1 else None

    def varies_in_type(self, argument: str) -> bool:
        """Whether calls differ in the type of an input, or only some of the types are known."""
        return len({value.type for value in self.inputs[argument]}) > 1

    def varies_in_rank(self, argument: str) -> bool:
        """Whether calls differ in the rank of an input, or only some of the ranks are known."""
        return len({value.rank for value in self.inputs[argument]}) > 1

    @property
    def native(self) -> bool:
        """Whether the installed onnxruntime runs this node by itself.

        A node that is decomposed is native if onnxruntime runs all nodes that compute it. The
        property does not depend on other nodes: one that a session fuses into another node may be
        native, and the other one not.
        """
        return not self.reason

    @property
    def multiply_adds(self) -> int | None:
        """The number of multiply-adds of basic operators without Gather, as matrix products.

        For a GridSample, it is that of values of X for each output position; for deformable
        attention, that of values for each query. Unknown lengths of other axes than
        those of pixels count as 1. None: for AffineGrid, and if a length of pixels is not known.
        """
        if self.operator == ATTENTION:
            queries = [argument for argument in self.values if argument.startswith("sampling_")]
            value_shape = self.shape_in_all_calls("value")
            query_shape = self.shape_in_all_calls(queries[0]) if queries else None
            return attention_multiply_adds(value_shape, query_shape)
        if self.operator != "GridSample":
            return None
        numbers = [multiply_adds(*(value.shape for value in case)) for case in self.cases]
        known = [number for number in numbers if number is not None]
        return max(known) if known and len(known) == len(numbers) else None

    @property
    def casts(self) -> dict[str, str]:
        """Input name -> the type that a patch casts it to, if no Python op accepts its type."""
        casts = {}
        for name, types in self.types.items():
            element_type = spec.TYPES.get(types[0]) if types else None
            if element_type is None or element_type.transport in (None, element_type.name):
                continue
            casts[name] = element_type.transport
        return casts

    @property
    def action(self) -> str:
        """What a patch does to the node if the node is selected."""
        if self.patched:
            return "nothing, it is patched"
        if self.error is not None:
            return "refuses it"
        if self.operator == ATTENTION and self.decomposed:
            return "replaces its GridSamples; a session fuses them"
        casts = [f"cast {name} {self.types[name][0]} → {to}" for name, to in self.casts.items()]
        return ", ".join(["replaces it", *casts])


def multiply_adds(X_shape: spec.Shape | None, grid_shape: spec.Shape | None) -> int | None:
    """Return the number of multiply-adds of a GridSample of these shapes as matrix products.

    Lengths that are not known, except the spatial ones of X, count as 1.

    Returns:
        The number; None if a spatial length of X, or a rank, is not known.
    """
    if X_shape is None or grid_shape is None:
        return None
    if not all(isinstance(length, int) for length in X_shape[2:]):
        return None
    return prod(length for length in (*X_shape, *grid_shape[1:-1]) if isinstance(length, int))


def attention_multiply_adds(
    value_shape: spec.Shape | None, query_shape: spec.Shape | None
) -> int | None:
    """Return the number of multiply-adds of an attention as matrix products.

    Args:
        value_shape: (B, S, H, D) or (B, S, H·D).
        query_shape: (B, Q, …), of the locations or offsets.
    """
    if value_shape is None or not isinstance(value_shape[1], int):
        return None
    queries = query_shape[1:2] if query_shape else ()
    return prod(length for length in (*value_shape, *queries) if isinstance(length, int))


def is_of_package(dialect: Dialect) -> bool:
    """Whether the nodes of ``dialect`` are ops of this package."""
    return dialect.name in (DOMAIN, COMPILED)


class NodeRecords(list[NodeRecord]):
    """Records that a notebook displays as a table."""

    def _repr_html_(self) -> str:
        from html import escape  # only notebooks need it

        rows = []
        for record in self:
            rows.append({"graph": record.graph, **columns(record), "why not native": record.reason})
        heads = list(rows[0]) if rows else ["no sampling nodes"]
        head = "".join(f"<th>{column}</th>" for column in heads)
        body = ""
        for row in rows:
            cells = "".join(f"<td>{escape(text)}</td>" for text in row.values())
            body += f"<tr>{cells}</tr>"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def columns(record: NodeRecord) -> dict[str, str]:
    """Return column -> text, for the row of a node in the table of ``inspect``."""
    domain = f"{record.domain}::" if record.domain else ""
    return {
        "node": record.name,
        "operator": f"{domain}{record.op_type}-{record.opset}",
        "mode": str(record.attributes.get("mode", "")),
        "padding": str(record.attributes.get("padding_mode", "")),
        "align": str(record.attributes.get("align_corners", "")),
        "inputs": ", ".join(_described(values) for values in record.inputs.values()),
        "native": _native_cell(record),
        "a patch": record.action,
    }


def _native_cell(record: NodeRecord) -> str:
    """Return whether the installed onnxruntime runs a node, as text."""
    if record.reason in (NOT_INSTALLED, NOT_ASKED):
        return "unknown"
    return "yes" if record.native else "no"


def _described(values: Sequence[TypeAndShape]) -> str:
    """Return the types and ranks of an input as text."""
    texts = []
    for value in values:
        rank = "?" if value.rank is None else value.rank
        texts.append(f"{value.type or '?'} {rank}-D")
    return " | ".join(texts) or "?"


def n_spatial_axes(operator: str, case: Sequence[TypeAndShape]) -> int | None:
    """Return the number of spatial axes that the shapes of a node's inputs imply, or None."""
    if operator == ATTENTION:
        is_of_this_package = len(case) == len(spec.newest(ATTENTION).types)
        if not is_of_this_package:
            return 2
        row_length = length_of(case[1].shape, 1)  # levels are (L, 1 + r)
        return None if row_length is None else row_length - 1
    first, second = (value.shape for value in case)
    if operator in GRID_OPERATORS:
        return GRID_OPERATORS[operator].count_axes((first, second))
    shape = second if first is None else first
    return None if shape is None else len(shape) - 2


def _distinct(values: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(value for value in values if value is not None))
