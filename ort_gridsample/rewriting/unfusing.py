"""Fused nodes, which onnxruntime saves with a session's optimized model, split again into what was fused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import count

import onnx
from onnx import helper

from ..detection.programs import OPERATIONS, WITH_PROGRAM, decode
from ..dialects.table import COMPILED_DOMAIN, COMPILED_TYPES, EXTENSIONS_DOMAIN, FUSED, OLD_PREFIX, OURS
from ..errors import GridSampleError, where
from ..graph.element_types import elem_type
from ..graph.scope import Names, Nodes, Scope, scopes
from ..opsets.inlining import import_used
from .targets.compiled_op import label

#: How a fused node is called, now and in releases before 0.2.
_FUSED_NODES = {(COMPILED_DOMAIN, FUSED), (EXTENSIONS_DOMAIN, OLD_PREFIX + FUSED)}


def unfused(model: onnx.ModelProto, found: Sequence[Scope] = ()) -> onnx.ModelProto:
    """``model`` itself; or, if it has fused nodes, a copy with compiled ops and the nodes of their grids instead.

    ``found`` are the model's scopes, where they are known.

    Raises:
        GridSampleError: a fused node is not what a session writes.
    """
    op_types = {op_type for _, op_type in _FUSED_NODES}
    if all(op_types.isdisjoint(scope.op_types) for scope in found or scopes(model)):
        return model
    copy = deepcopy(model)
    names = Names(copy)
    for scope in reversed(scopes(copy)):  # inner graphs first: a list of nodes that was rewritten holds copies
        scope.replace({at: _Parts(node, scope, names).nodes for at, node in enumerate(scope) if is_fused(node)})
    import_used(copy, {COMPILED_DOMAIN: 1}, {EXTENSIONS_DOMAIN})
    return copy


def is_fused(node: onnx.NodeProto) -> bool:
    """Whether ``node`` is a fused one, which only sessions write."""
    return (node.domain, node.op_type) in _FUSED_NODES


class _Parts:
    """The :attr:`nodes` that a fused node stands for."""

    def __init__(self, fused: onnx.NodeProto, scope: Scope, names: Names) -> None:
        self.nodes = Nodes(names, f"{fused.output[0]}_grid")
        self._fused, self._names, self._opset = fused, names, scope.opsets.get("", 0)
        self._attributes = {attribute.name: attribute for attribute in fused.attribute}
        try:
            grid = self._programs() if "coordinates" in self._attributes else self._affine_grid()
            node = deepcopy(fused)
            del node.input[:], node.attribute[:]
            node.input.extend([fused.input[0], grid])
            self._finish(node, "GridSample")
        except (LookupError, TypeError, ValueError) as error:
            here = where(fused.op_type, label(fused) or fused.name)
            raise GridSampleError(here, "inputs or attributes", repr(error), "what a session writes") from error

    def _finish(self, node: onnx.NodeProto, operator: str, prefix: str = "") -> None:
        """Make ``node`` the compiled ``operator``, with its own attributes, whose names began with ``prefix``."""
        node.op_type, node.domain = COMPILED_TYPES[operator], COMPILED_DOMAIN
        for name in (*OURS[operator].attributes, "node"):
            if prefix + name in self._attributes:
                node.attribute.add().CopyFrom(self._attributes[prefix + name])
                node.attribute[-1].name = name
        self.nodes.append(node)

    def _affine_grid(self) -> str:
        _, size, theta = self._fused.input
        grid = self._names.new(f"{self._fused.output[0]}_grid")
        node = helper.make_node("", [theta, size], [grid])
        self._finish(node, "AffineGrid", "affine_grid_")
        if label(node) and not label(node).startswith("("):  # as the names of nodes are that have none
            node.name = self._names.new(label(node))
        to = self._attributes.get("grid_type")
        return self.nodes.add("Cast", grid, to=elem_type(to.s.decode())) if to is not None else grid

    def _programs(self) -> str:
        rows, r = decode(self._attributes["coordinates"].ints, len(self._fused.input) - 2)
        numbers, operands, last = count(), iter(rows[r:]), r + 1
        columns = [self._coordinate(each, numbers, operands) for each in rows[:r]]
        if self._opset < 13:
            columns = [self.nodes.add("Unsqueeze", each, axes=[last]) for each in columns]
        else:
            columns = [self.nodes.add("Unsqueeze", each, self.nodes.row(last)) for each in columns]
        return self.nodes.add("Concat", *columns, axis=last)

    def _coordinate(self, program: Sequence[int], numbers: count[int], operands: Iterator[Sequence[int]]) -> str:
        """The coordinate that a ``program`` (a row of :func:`.written`) computes, without an axis of its own."""
        source, axis, index, _, *steps = program
        value = self._fused.input[2 + source]
        if axis >= 0:
            value = self.nodes.add("Gather", value, self.nodes.constant(index), axis=axis)
        for code in steps:
            if code >= WITH_PROGRAM:
                operand = self._coordinate(next(operands), numbers, operands)
            else:
                operand = self.nodes.add("Gather", self._fused.input[1], self.nodes.constant(next(numbers)), axis=0)
            code %= WITH_PROGRAM
            pair = (operand, value) if code % 2 else (value, operand)
            value = self.nodes.add(OPERATIONS[code // 2], *pair)
        return value
