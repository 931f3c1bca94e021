"""The target ``primitives``: basic standard operators, which every runtime has."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from ...core.arrays import Array
from ...errors import GridSampleError
from ..graphs import Names
from ..matches import Match
from . import FUNCTIONS_DOMAIN, Replacement, primitives


class Primitives:
    """See :class:`ort_gridsample.model.targets.Target`.

    Args:
        functions: whether nodes that are lowered alike share a model-local function.
    """

    def __init__(self, functions: bool = False) -> None:
        self._functions = functions
        self._shared: dict[bytes, onnx.FunctionProto] = {}
        self._grids: dict[tuple[int, str], Array] = {}  # of AffineGrids that came out constant

    def takes(self, match: Match) -> bool:
        return True

    def needs_inlining(self, match: Match) -> bool:
        """What is lowered depends on types, ranks and attributes: they must be the same in all calls."""
        record = match.record
        return record.passes_on or any(len(found) > 1 for found in (*record.types.values(), *record.ranks.values()))

    def least_opset(self, match: Match) -> int:
        return primitives.FIRST_OPSET

    def replace(self, match: Match, names: Names) -> Replacement:
        record = match.record
        if not self._functions:
            prefix = match.node.name or record.output
            while True:
                nodes = self._lower(match, prefix, record.output)
                made = {name for node in nodes for name in node.output} - {record.output}
                if names.take_all(made):
                    break
                prefix += "_"
            if len(nodes) == 1 and nodes[0].op_type == "Constant":
                self._grids[id(match.scope), record.output] = onnx.numpy_helper.to_array(nodes[0].attribute[0].t)
            return Replacement(nodes)
        nodes = self._lower(match, record.operator, "output")
        inputs = dict.fromkeys(value for value in record.values.values() if value)
        read = {name for node in nodes for name in node.input}
        arguments = [name for name in inputs if name in read]
        renamed = {name: f"input{i}" for i, name in enumerate(arguments)}
        for node in nodes:
            node.input[:] = [renamed.get(name, name) for name in node.input]
        opset = match.scope.opsets[""]
        body = primitives.as_function(
            nodes, list(renamed.values()), "output", domain=FUNCTIONS_DOMAIN, name="", opset=opset
        )
        function = self._shared.setdefault(body.SerializeToString(deterministic=True), body)
        if not function.name:
            function.name = f"{record.operator}_{len(self._shared)}"
        call = helper.make_node(
            function.name, arguments, [record.output], match.node.name, match.node.doc_string, FUNCTIONS_DOMAIN
        )
        return Replacement([call], functions=[function])

    def _lower(self, match: Match, name: str, output: str) -> list[onnx.NodeProto]:
        record = match.record
        first, second = (self._value(match, argument) for argument in record.values)
        opset = match.scope.opsets.get("", 0)
        align_corners = bool(record.align_corners)
        if record.operator == "AffineGrid":
            return primitives.lower_affine_grid(name, first, second, output, align_corners=align_corners, opset=opset)
        return primitives.lower_grid_sample(
            name,
            first,
            second,
            output,
            mode=str(record.mode),
            padding_mode=str(record.padding_mode),
            align_corners=align_corners,
            opset=opset,
        )

    def _value(self, match: Match, argument: str) -> primitives.Value:
        record = match.record
        types = record.types[argument]
        if not types:
            raise GridSampleError(record.where, argument, "of unknown type", "a type that is known before it runs")
        name = record.values[argument]
        constant = record.constants.get(argument)
        if constant is None:
            constant = self._grids.get((id(match.scope), name))
        return primitives.Value(name, types[0], _common([v.shape for v in record.inputs[argument]]), constant)


def _common(shapes: Sequence[tuple[int | str | None, ...] | None]) -> tuple[int | str | None, ...] | None:
    """What all of ``shapes`` say."""
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) < len(shapes):
        return None
    return tuple(dims[0] if len(set(dims)) == 1 else None for dims in zip(*known, strict=True))
