"""The target ``compiled``: this package's op of machine code, a node for a node; and fused, a node for several."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from ...detection.match import FusedGrid, Match
from ...detection.programs import encode, to_rows
from ...detection.records import NodeRecord
from ...dialects.table import COMPILED, FUSED
from ...graph.element_types import elem_type
from ...graph.scope import Names, Nodes
from ...reference.coordinates import PADDING
from ...reference.taps import COMPILED_MODES, COMPILED_PADDING, MAX_TAPS, MODES
from . import CAST_LIKE, Replacement, typed_in_function
from .spelled import Spelled


class CompiledOp(Spelled):
    """The compiled op, by itself."""

    def __init__(self) -> None:
        super().__init__(COMPILED)

    def takes(self, match: Match) -> bool:
        # A wrong node is taken, as a patch raises what is wrong with those that it takes.
        return super().takes(match) and (match.record.error is not None or not unsupported(match.record))

    def needs_inlining(self, match: Match) -> bool:
        return super().needs_inlining(match) or match.scope.opsets.get("", 0) < CAST_LIKE

    def replace(self, match: Match, names: Names) -> Replacement:
        *before, op = self._nodes(match, names)
        op.output[0], after = typed_in_function(match, op.input[0], names)
        return Replacement([*before, op, *after])

    def _nodes(self, match: Match, names: Names) -> list[onnx.NodeProto]:
        """The op, last, and the Constants that it reads."""
        *before, op = super().replace(match, names).nodes
        op.attribute.append(helper.make_attribute("node", label(match.node) or match.record.label))
        return [*before, op]


class FusedOp(CompiledOp):
    """Also fuses what computes the grid of a GridSample into it; of an AffineGrid fused so, nothing stays."""

    fuses = True

    def takes(self, match: Match) -> bool:
        return match.fused is not None or match.fused_into is not None or super().takes(match)

    def needs_inlining(self, match: Match) -> bool:
        # No function can say the type that :func:`_declare` does.
        return super().needs_inlining(match) or (match.fused is not None and len(match.fused.sources) > 1)

    def replace(self, match: Match, names: Names) -> Replacement:
        if match.fused_into is not None:
            return Replacement([])
        replacement, fused = super().replace(match, names), match.fused
        if fused is None:
            return replacement
        at = next(i for i, node in enumerate(replacement.nodes) if label(node))
        op, before = replacement.nodes[at], list[onnx.NodeProto]()
        op.op_type = FUSED
        if fused.affine_grid is not None:
            *before, affine = self._nodes(fused.affine_grid, names)
            theta, size = affine.input
            op.input[1:] = [size, theta]
            for attribute in affine.attribute:
                op.attribute.add().CopyFrom(attribute)
                op.attribute[-1].name = f"affine_grid_{attribute.name}"
            if fused.type:
                op.attribute.append(helper.make_attribute("grid_type", fused.type))
        else:
            before = Nodes(names, f"{op.output[0]}_scalars")
            op.input[1:] = [_scalars(fused, before), *fused.sources]
            numbers = encode(to_rows(fused.programs, fused.sources), len(fused.programs))
            op.attribute.append(helper.make_attribute("coordinates", numbers))
            op.attribute.append(helper.make_attribute("sources", "\n".join(map(repr, fused.sources))))
            if len(fused.sources) > 1:
                _declare(op.output[0], match)
        return Replacement([*replacement.nodes[:at], *before, *replacement.nodes[at:]], fused=fused.nodes)


def _declare(name: str, match: Match) -> None:
    """Say the type of ``name``, the output of ``match``: onnxruntime 1.17 infers none from more than one source."""
    graph, types = match.scope.container, match.record.types["X"]
    if not types or not isinstance(graph, onnx.GraphProto):
        return
    if name not in {value.name for value in (*graph.value_info, *graph.output)}:
        graph.value_info.append(helper.make_value_info(name, helper.make_tensor_type_proto(elem_type(types[0]), None)))


def _scalars(fused: FusedGrid, nodes: Nodes) -> str:
    """Write the nodes that make the scalars of a program one value; its name."""
    if not any(isinstance(scalar, str) for scalar in fused.scalars):
        return nodes.constant(np.array(fused.scalars or [0], fused.type))
    own = (each if isinstance(each, str) else np.array([each], fused.type) for each in fused.scalars)
    rows = (nodes.add("Reshape", x, nodes.row(1)) if isinstance(x, str) else nodes.constant(x) for x in own)
    return nodes.add("Concat", *rows, axis=0)


def label(node: onnx.NodeProto) -> str:
    """How errors name the compiled op ``node``; empty where it does not say it."""
    return next((a.s.decode() for a in node.attribute if a.name == "node"), "")


def unsupported(record: NodeRecord) -> str:
    """Why no compiled op can stand in the node's place; empty where one can, or where nothing is known against it."""
    for name, types in record.types.items():
        if "str" in types:
            return f"{name} is of type str"
    if record.mode in MODES:
        if record.mode not in COMPILED_MODES or record.padding_mode in PADDING.keys() - {*COMPILED_PADDING}:
            return f"compiled kernels lack {record.mode} with {record.padding_mode} padding"
        taps = MODES[str(record.mode)].taps
        for axes in record.spatial_axes:
            if taps**axes > MAX_TAPS:
                return f"{record.mode} in {axes} spatial axes has more than {MAX_TAPS} taps"
    return ""
