"""The target ``compiled``: this package's compiled ops, with or without fusion of grids."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from ...detection.coordinate_sources import CoordinateSource
from ...detection.hosts import choose_hosts
from ...detection.match import Match
from ...detection.records import NodeRecord
from ...dialects.table import COMPILED
from ...functions.grid_operators import GRID_OPERATORS
from ...graph.element_types import elem_type
from ...graph.expressions import Expressions, Tensor
from ...graph.first_opsets import FIRST_OPSET_WITH_CAST_LIKE
from ...graph.new_names import Names
from ...kernels.tap_plans import COMPILED_MODES, COMPILED_PADDING
from ...reference.coordinates import PADDING_RULES
from ...reference.taps import MAX_TAPS, MODE_RULES
from . import ABSORBED, Replacement, Target, typed_in_function
from .dialect_target import DialectTarget


class CompiledOpTarget(DialectTarget):
    """The compiled op of a single node."""

    def __init__(self) -> None:
        super().__init__(COMPILED)

    def replaces(self, match: Match) -> bool:
        # Wrong nodes are taken, because a patch raises the errors of the nodes that it takes.
        is_wrong = match.record.error is not None
        return super().replaces(match) and (is_wrong or not unsupported_reason(match.record))

    def needs_inlining(self, match: Match) -> bool:
        return super().needs_inlining(match) or match.opset < FIRST_OPSET_WITH_CAST_LIKE

    def replacement_for(self, match: Match, names: Names) -> Replacement:
        constants, op = self._op(match, names)
        op.output[0], after = typed_in_function(match, op.input[0], names)
        return Replacement([*constants, op, *after])

    def _op(self, match: Match, names: Names) -> tuple[list[onnx.NodeProto], onnx.NodeProto]:
        """Return the Constants that the op reads, and the op."""
        *constants, op = super().replacement_for(match, names).nodes
        node_name = label(match.node) or match.record.label
        op.attribute.append(helper.make_attribute("node", node_name))
        return constants, op


class FusedOpTarget(CompiledOpTarget):
    """The compiled op of a GridSample and the nodes that compute its grid.

    An AffineGrid that is fused into a GridSample is dropped.
    """

    fuses = True

    def targets_of(self, matches: Sequence[Match]) -> dict[Match, Target]:
        targets = super().targets_of(matches)
        for host in choose_hosts(matches, lambda match: match.fused_grid is not None):
            targets.update(dict.fromkeys(host.absorbed, ABSORBED))
        return targets

    def replaces(self, match: Match) -> bool:
        return match.fused_grid is not None or super().replaces(match)

    def needs_inlining(self, match: Match) -> bool:
        if super().needs_inlining(match):
            return True
        if match.fused_grid is None:
            return False
        if any(CompiledOpTarget.needs_inlining(self, absorbed) for absorbed in match.absorbed):
            return True
        # A function cannot state the type that :func:`_output_type` returns.
        return _has_several_sources(match.fused_grid)

    def replacement_for(self, match: Match, names: Names) -> Replacement:
        fused = match.fused_grid
        if fused is None:
            return super().replacement_for(match, names)
        *before, op = self.fused_nodes(match, fused, names)
        op.output[0], after = typed_in_function(match, op.input[0], names)
        return Replacement(
            [*before, op, *after],
            superseded=fused.nodes,
            value_info=_output_type(op.output[0], match),
        )

    def fused_nodes(
        self, match: Match, source: CoordinateSource, names: Names
    ) -> list[onnx.NodeProto]:
        """Return the op of a GridSample with a source, after the nodes that compute its inputs."""
        before, op = self._op(match, names)
        op.op_type = source.op_name
        if source.absorbed is not None:
            constants, absorbed_op = self._op(source.absorbed, names)
            before += constants
            row = GRID_OPERATORS[source.absorbed.record.operator]
            values = dict(zip(source.absorbed.record.values, absorbed_op.input, strict=True))
            op.input[1:] = [values[name] for name in row.fused_inputs]
            for attribute in absorbed_op.attribute:
                op.attribute.add().CopyFrom(attribute)
                op.attribute[-1].name = f"{row.fused_prefix}{attribute.name}"
        else:
            e = Expressions(f"{op.output[0]}_scalars", match.opset, names=names)
            scalars = _join_scalars(source, e)
            scalars_name = scalars.owner.name_of(scalars)
            op.input[1:] = [name or scalars_name for name in source.inputs]
            before += scalars.owner.finish(scalars, scalars_name)
        for name, value in source.attributes.items():
            op.attribute.append(helper.make_attribute(name, value))
        return [*before, op]


def _has_several_sources(source: CoordinateSource) -> bool:
    """Whether programs read several values, of which onnxruntime may infer no type."""
    return source.absorbed is None and len(source.inputs) > 2


def _output_type(name: str, match: Match) -> list[onnx.ValueInfoProto]:
    """Return the type and the rank of ``name``, the output of a fused op, as far as they are known.

    onnxruntime infers no shape of a fused op, and release 1.17 no type of one with several sources.
    OpenVINO's provider does not open a graph that reads a value of unknown rank. No lengths are
    stated, because a run may have others.
    """
    types = match.record.types["X"]
    if not types or match.scope.function is not None:
        return []
    ranks = match.record.spatial_axes
    shape = [None] * (2 + ranks[0]) if len(ranks) == 1 else None
    return [helper.make_tensor_value_info(name, elem_type(types[0]), shape)]


def _join_scalars(source: CoordinateSource, e: Expressions) -> Tensor:
    """Return the scalars of a source as one value."""
    (dtype,) = source.input_types[0]
    if not any(isinstance(scalar, str) for scalar in source.scalars):
        return e.constant(list(source.scalars) or [0.0], dtype)
    rows = []
    for scalar in source.scalars:
        if isinstance(scalar, str):
            rows.append(e.op("Reshape", e.input(scalar, dtype), e.row(1)))
        else:
            rows.append(e.constant([scalar], dtype))
    return e.concatenate(rows)


def label(node: onnx.NodeProto) -> str:
    """Return the name by which errors of the compiled op ``node`` call it; empty if it has none."""
    return next((a.s.decode() for a in node.attribute if a.name == "node"), "")


def unsupported_reason(record: NodeRecord) -> str:
    """Return why no compiled op can replace a node; empty if one can, or if too little is known."""
    for name, types in record.types.items():
        if "str" in types:
            return f"{name} is of type str"
    if record.mode not in MODE_RULES:
        return ""
    uncompiled_paddings = PADDING_RULES.keys() - {*COMPILED_PADDING}
    if record.mode not in COMPILED_MODES or record.padding_mode in uncompiled_paddings:
        return f"compiled kernels lack {record.mode} with {record.padding_mode} padding"
    taps = MODE_RULES[str(record.mode)].taps
    for n_axes in record.spatial_axes:
        if taps**n_axes > MAX_TAPS:
            return f"{record.mode} in {n_axes} spatial axes has more than {MAX_TAPS} taps"
    return ""
