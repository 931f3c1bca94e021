"""The target ``compiled``: this package's compiled ops, with or without fusion of grids."""

from __future__ import annotations

import onnx
from onnx import helper

from ...detection.match import FusedGrid, Match
from ...detection.programs import encode
from ...detection.records import NodeRecord
from ...dialects.table import COMPILED, FUSED
from ...graph.element_types import elem_type
from ...graph.expressions import Expressions, Tensor
from ...graph.first_opsets import FIRST_OPSET_WITH_CAST_LIKE
from ...graph.new_names import Names
from ...kernels.tap_plans import COMPILED_MODES, COMPILED_PADDING
from ...reference.coordinates import PADDING_RULES
from ...reference.taps import MAX_TAPS, MODE_RULES
from . import Replacement, typed_in_function
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

    def replaces(self, match: Match) -> bool:
        is_fused = match.fused_grid is not None or match.fused_into is not None
        return is_fused or super().replaces(match)

    def needs_inlining(self, match: Match) -> bool:
        # A function cannot state the type that :func:`_output_type` returns.
        has_several_sources = match.fused_grid is not None and len(match.fused_grid.sources) > 1
        return super().needs_inlining(match) or has_several_sources

    def replacement_for(self, match: Match, names: Names) -> Replacement:
        if match.fused_into is not None:
            return Replacement([])
        fused = match.fused_grid
        if fused is None:
            return super().replacement_for(match, names)
        *before, op = self.fused_nodes(match, fused, names)
        op.output[0], after = typed_in_function(match, op.input[0], names)
        value_info = []
        if len(fused.sources) > 1:
            value_info = _output_type(op.output[0], match)
        return Replacement([*before, op, *after], superseded=fused.nodes, value_info=value_info)

    def fused_nodes(self, match: Match, fused: FusedGrid, names: Names) -> list[onnx.NodeProto]:
        """Return the op of a GridSample with its grid, after the nodes that compute its inputs."""
        constants, op = self._op(match, names)
        op.op_type = FUSED
        if fused.affine_grid is not None:
            before = self._fuse_affine_grid(op, fused, fused.affine_grid, names)
        else:
            before = _fuse_programs(op, fused, match.opset, names)
        return [*constants, *before, op]

    def _fuse_affine_grid(
        self,
        op: onnx.NodeProto,
        fused: FusedGrid,
        affine_grid: Match,
        names: Names,
    ) -> list[onnx.NodeProto]:
        """Give ``op`` the inputs and attributes of an AffineGrid; return the Constants it reads."""
        constants, affine_op = self._op(affine_grid, names)
        theta, size = affine_op.input
        op.input[1:] = [size, theta]
        for attribute in affine_op.attribute:
            op.attribute.add().CopyFrom(attribute)
            op.attribute[-1].name = f"affine_grid_{attribute.name}"
        if fused.type:
            op.attribute.append(helper.make_attribute("grid_type", fused.type))
        return constants


def _fuse_programs(
    op: onnx.NodeProto,
    fused: FusedGrid,
    opset: int,
    names: Names,
) -> list[onnx.NodeProto]:
    """Give ``op`` the programs of its coordinates; return the nodes that compute their scalars."""
    scalars = _join_scalars(fused, Expressions(f"{op.output[0]}_scalars", opset, names=names))
    scalars_name = scalars.owner.name_of(scalars)
    op.input[1:] = [scalars_name, *fused.sources]
    numbers = encode(fused.programs, fused.sources)
    op.attribute.append(helper.make_attribute("coordinates", numbers))
    for index, source in enumerate(fused.sources):
        op.attribute.append(helper.make_attribute(f"source{index}", repr(source)))
    return scalars.owner.finish(scalars, scalars_name)


def _output_type(name: str, match: Match) -> list[onnx.ValueInfoProto]:
    """Return the type of ``name``, the output of the op for ``match``, if it is known.

    onnxruntime 1.17 infers no type of an op with more than one source.
    """
    types = match.record.types["X"]
    if not types or match.scope.function is not None:
        return []
    type_proto = helper.make_tensor_type_proto(elem_type(types[0]), None)
    return [helper.make_value_info(name, type_proto)]


def _join_scalars(fused: FusedGrid, e: Expressions) -> Tensor:
    """Return the scalars of a program as one value."""
    rows = []
    for scalar in fused.scalars or [0.0]:
        if isinstance(scalar, str):
            rows.append(e.op("Reshape", e.input(scalar, fused.type), e.row(1)))
        else:
            rows.append(e.constant([scalar], fused.type))
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
