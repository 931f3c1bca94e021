"""What is known of a node concerned: the record of it that users read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import onnx

from .. import spec
from ..dialects.spelling import AttributeReference, AttributeValue, Dialect
from ..dialects.table import ATTENTION, COMPILED, DECOMPOSED, DOMAIN
from ..errors import GridSampleError, where
from ..inference.types import Value
from ..reference.arrays import Array

T = TypeVar("T")
#: The reason that a record gives where nobody asked onnxruntime.
NOT_ASKED = "onnxruntime was not asked"


@dataclass(frozen=True, repr=False)
class NodeRecord:
    """What is known of one node concerned, without running it.

    Attributes:
        graph: where the node is: "" for the main graph, else the way to its If, Loop or Scan body or its function.
        name: the node's name, or (in brackets) its output's where it has none.
        operator: the operator that it stands for, ``GridSample``, ``AffineGrid`` or ``DeformableAttention``.
        op_type: the node's own.
        domain: the node's domain, "" for ONNX's own; ``ort_gridsample`` where it is patched already; ``unrolled``
            where no node says it, but several of basic operators compute it, the last of which has this name.
        opset: the version of that domain that the node is written in.
        dialect: how it is spelled.
        attributes: the operator's attributes, modes by their names in :data:`ort_gridsample.spec.MODES`, defaults
            filled in; ``str()`` of what a function passes on is ``@name``. Empty where they cannot be read.
        cases: what is known of the types and shapes of its inputs, in their order: in a function of each kind of call.
        values: input name -> the name of its value in the model, "" where it has none.
        constants: input name -> its value, where the model holds it.
        output: the name of its output in the model.
        error: what is wrong with the node, as far as it can be seen without running it.
        reason: why the installed onnxruntime does not run this node by itself, or why that is not known; else empty.
        fused: the names of the nodes that compute the grid of this GridSample and nothing else, such as an AffineGrid:
            as a compiled op, the GridSample does what they do. Of deformable attention, which is no node, those of the
            nodes from the samples to the sum.
    """

    graph: str
    name: str
    operator: str
    op_type: str
    domain: str
    opset: int
    dialect: Dialect
    attributes: Mapping[str, AttributeValue] = field(hash=False)
    cases: Sequence[tuple[Value, ...]] = field(hash=False)
    values: Mapping[str, str] = field(hash=False)
    constants: Mapping[str, Array] = field(compare=False)
    output: str
    error: GridSampleError | None = field(default=None, compare=False)
    reason: str = field(default=NOT_ASKED, compare=False)
    fused: tuple[str, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        said = ", ".join(f"{column}: {text}" for column, text in columns(self).items() if text)
        place = f" in {self.graph}" if self.graph else ""
        return f"<NodeRecord {said}{f' ({self.reason})' if self.reason else ''}{place}>"

    @property
    def label(self) -> str:
        """How errors, and the patched model, name the node."""
        return f"{self.name} in {self.graph}" if self.graph else self.name

    @property
    def where(self) -> str:
        """The place that an error names."""
        return where(self.operator if self.patched else self.op_type, self.label)

    @property
    def patched(self) -> bool:
        """Whether the node is one of this package's already."""
        return self.dialect.name in (DOMAIN, COMPILED)

    @property
    def unrolled(self) -> bool:
        """Whether it is no node, but a part of the graph that computes what a node of the operator would."""
        return self.dialect.name == DECOMPOSED

    @property
    def mode(self) -> AttributeValue | None:
        """The node's mode, by its name in :data:`ort_gridsample.spec.MODES`; None for AffineGrid."""
        return self.attributes.get("mode")

    @property
    def padding_mode(self) -> AttributeValue | None:
        """The node's padding mode; None for AffineGrid."""
        return self.attributes.get("padding_mode")

    @property
    def align_corners(self) -> AttributeValue | None:
        """The node's ``align_corners``."""
        return self.attributes.get("align_corners")

    @property
    def passes_on(self) -> bool:
        """Whether the function that the node is in passes one of its attributes on."""
        return any(isinstance(value, AttributeReference) for value in self.attributes.values())

    @property
    def possible_attributes(self) -> dict[str, str | int]:
        """The attributes, one that the node's function is given being any that it may be."""
        spellings = self.dialect.attributes
        return {
            name: next(iter(spellings[name].values)) if isinstance(value, AttributeReference) else value
            for name, value in self.attributes.items()
        }

    def bare(self) -> onnx.NodeProto:
        """Such a node, without inputs and outputs."""
        attributes = self.dialect.write(self.possible_attributes)
        return onnx.NodeProto(op_type=self.op_type, domain=self.domain, attribute=attributes)

    @property
    def spatial_axes(self) -> tuple[int, ...]:
        """The numbers of spatial axes that it may sample or make a grid for; empty where unknown."""
        return _distinct(spatial_axes(self.operator, case) for case in self.cases)

    def has_axes_of(self, axes: Collection[int]) -> bool:
        """Whether its number of spatial axes is one of ``axes`` in each case, also where only its dialect says so."""
        possible = self.dialect.axes
        return all(
            (possible is not None and {*possible} <= {*axes}) if found is None else found in axes
            for found in (spatial_axes(self.operator, case) for case in self.cases)
        )

    @cached_property
    def inputs(self) -> dict[str, list[Value]]:
        """Input name -> what is known of its type and shape: alternatives in a function that is called with several."""
        each = zip(self.values, zip(*self.cases, strict=True), strict=True)
        return {name: [value for value in dict.fromkeys(found) if value != Value()] for name, found in each}

    @cached_property
    def types(self) -> dict[str, tuple[str, ...]]:
        """Input name -> the element types that it may have, by numpy's names; empty where unknown."""
        return {name: _distinct(value.type for value in values) for name, values in self.inputs.items()}

    @property
    def ranks(self) -> dict[str, tuple[int, ...]]:
        """Input name -> the numbers of axes that it may have; empty where unknown."""
        return {name: _distinct(value.rank for value in values) for name, values in self.inputs.items()}

    @property
    def native(self) -> bool:
        """Whether the installed onnxruntime runs this node by itself."""
        return not self.reason

    @property
    def casts(self) -> dict[str, str]:
        """Input name -> the type that a patch casts it to, for the inputs that no Python-defined op can take."""
        transport_types = {name: spec.TYPES[types[0]].transport for name, types in self.types.items() if types}
        return {name: to for name, to in transport_types.items() if to is not None and to != self.types[name][0]}

    @property
    def action(self) -> str:
        """What a patch does to the node, if it selects it."""
        if self.patched:
            return "nothing, it is patched"
        if self.error is not None:
            return "refuses it"
        if self.operator == ATTENTION and self.unrolled:
            return "replaces its GridSamples; a session fuses them"
        casts = [f"cast {name} {self.types[name][0]} → {to}" for name, to in self.casts.items()]
        return ", ".join(["replaces it", *casts])


class NodeRecords(list[NodeRecord]):
    """Records that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        from html import escape  # here, as few need it

        rows = [{"graph": each.graph, **columns(each), "why not native": each.reason} for each in self]
        cells = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row.values())}</tr>" for row in rows)
        heads = "".join(f"<th>{head}</th>" for head in (rows[0] if rows else ["no GridSample and no AffineGrid"]))
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table>"


def columns(record: NodeRecord) -> dict[str, str]:
    """What ``inspect`` says of a node, column by column."""
    domain = f"{record.domain}::" if record.domain else ""
    mode, padding, align = (str(record.attributes.get(name, "")) for name in ("mode", "padding_mode", "align_corners"))
    known = ((f"{v.type or '?'} {'?' if v.rank is None else v.rank}-D" for v in vs) for vs in record.inputs.values())
    return {
        "node": record.name,
        "operator": f"{domain}{record.op_type}-{record.opset}",
        "mode": mode,
        "padding": padding,
        "align": align,
        "inputs": ", ".join(" | ".join(each) or "?" for each in known),
        "native": "yes" if record.native else "no",
        "a patch": record.action,
    }


def spatial_axes(operator: str, case: Sequence[Value]) -> int | None:
    """The number of spatial axes that a node's inputs have: X and grid, or theta and size."""
    if operator == ATTENTION and len(case) == len(spec.newest(ATTENTION).types):
        return _length(case[1].shape, 1, 1)
    if operator == ATTENTION:
        return 2  # of other packages' nodes
    first, second = (value.shape for value in case)
    if operator == "AffineGrid":
        found = [_length(first, 1, 0), _length(first, 2, 1), _length(second, 0, 2)]
    else:
        found = [len(shape) - 2 for shape in (first, second) if shape is not None]
    return next((axes for axes in found if axes is not None), None)


def _length(shape: Sequence[int | str | None] | None, axis: int, less: int) -> int | None:
    """The length of an axis of ``shape``, ``less`` so many, where it is known."""
    length = shape[axis] if shape is not None and len(shape) > axis else None
    return length - less if isinstance(length, int) else None


def _distinct(values: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(value for value in values if value is not None))
