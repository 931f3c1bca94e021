"""Split fused nodes, which onnxruntime saves with a session's optimized model, into their parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import count

import onnx
from onnx import helper

from ..detection.programs import decode
from ..dialects.table import COMPILED_DOMAIN, COMPILED_TYPES, FUSED, PACKAGE_DIALECTS
from ..errors import GridSampleError, where_node
from ..graph.expressions import Expressions, Tensor
from ..graph.new_names import Names
from ..graph.scope import Scope, scopes_of
from ..kernels.program_codes import OPERATIONS, WITH_PROGRAM
from ..opsets.imports import import_used
from .targets.compiled_op import label


def unfused(model: onnx.ModelProto, all_scopes: Sequence[Scope] = ()) -> onnx.ModelProto:
    """Return a model without fused nodes.

    Args:
        model: the model, which is not changed.
        all_scopes: the scopes of ``model`` if they are known.

    Returns:
        ``model`` itself if it has no fused nodes; otherwise a copy with compiled ops and the nodes
        of their grids instead of fused nodes.

    Raises:
        GridSampleError: a fused node is not what a session writes.
    """
    if not any(FUSED in scope.op_types for scope in all_scopes or scopes_of(model)):
        return model
    copy = deepcopy(model)
    names = Names(copy)
    # Inner graphs first: a list of nodes that was rewritten holds copies.
    for scope in reversed(scopes_of(copy)):
        replaced = {}
        for index, node in enumerate(scope):
            if is_fused(node):
                replaced[index] = _unfused_nodes(node, scope, names)
        scope.replace_nodes(replaced)
    import_used(copy, {COMPILED_DOMAIN: 1})
    return copy


def is_fused(node: onnx.NodeProto) -> bool:
    """Whether ``node`` is a fused node, which only sessions write."""
    return (node.domain, node.op_type) == (COMPILED_DOMAIN, FUSED)


def _unfused_nodes(fused: onnx.NodeProto, scope: Scope, names: Names) -> list[onnx.NodeProto]:
    """Return the nodes that a fused node is equivalent to: those of the grid, and the GridSample.

    Raises:
        GridSampleError: the fused node is not what a session writes.
    """
    unfusing = _Unfusing(fused, scope, names)
    try:
        unfusing.write()
    except (LookupError, TypeError, ValueError) as error:
        place = where_node(fused.op_type, label(fused) or fused.name)
        found = f"not readable ({error!r})"
        expected = "what a session writes"
        raise GridSampleError(place, "the fused node", found, expected) from error
    return unfusing.expressions.finish_all()


class _Unfusing:
    """Writes the nodes that a fused node is equivalent to.

    Attributes:
        expressions: the written nodes.
    """

    def __init__(self, fused: onnx.NodeProto, scope: Scope, names: Names) -> None:
        opset = scope.opsets.get("", 0)
        self.expressions = Expressions(f"{fused.output[0]}_grid", opset, names=names)
        self._fused = fused
        self._names = names
        self._attributes = {attribute.name: attribute for attribute in fused.attribute}

    def write(self) -> None:
        """Write all nodes."""
        has_programs = "coordinates" in self._attributes
        grid = self._write_programs() if has_programs else self._write_affine_grid()
        node = deepcopy(self._fused)
        del node.input[:]
        del node.attribute[:]
        node.input.extend([self._fused.input[0], self.expressions.name_of(grid)])
        self._add_compiled_op(node, "GridSample")

    def _add_compiled_op(self, node: onnx.NodeProto, operator: str, prefix: str = "") -> None:
        """Write ``node`` as the compiled op of an operator.

        Args:
            node: the node, without type and attributes.
            operator: ``"GridSample"`` or ``"AffineGrid"``.
            prefix: the prefix of the operator's attributes on the fused node.
        """
        node.op_type = COMPILED_TYPES[operator]
        node.domain = COMPILED_DOMAIN
        for name in (*PACKAGE_DIALECTS[operator].attributes, "node"):
            if prefix + name in self._attributes:
                node.attribute.add().CopyFrom(self._attributes[prefix + name])
                node.attribute[-1].name = name
        self.expressions.node(node)

    def _write_affine_grid(self) -> Tensor:
        """Write the AffineGrid; return the grid."""
        _, size, theta = self._fused.input
        grid = self._names.new(f"{self._fused.output[0]}_grid")
        node = helper.make_node("", [theta, size], [grid])
        self._add_compiled_op(node, "AffineGrid", "affine_grid_")
        # Labels in parentheses are those of nodes without a name.
        if label(node) and not label(node).startswith("("):
            node.name = self._names.new(label(node))
        grid_type = self._attributes.get("grid_type")
        if grid_type is None:
            return self.expressions.input(grid)
        return self.expressions.input(grid).astype(grid_type.s.decode())

    def _write_programs(self) -> Tensor:
        """Return the grid of all coordinates."""
        n_sources = len(self._fused.input) - 2
        rows, r = decode(self._attributes["coordinates"].ints, n_sources)
        scalar_indices = count()
        operands = iter(rows[r:])
        coordinates = []
        for program in rows[:r]:
            coordinates.append(self._write_coordinate(program, scalar_indices, operands))
        last_axis = r + 1
        e = self.expressions
        columns = [e.unsqueeze(coordinate, last_axis) for coordinate in coordinates]
        return e.op("Concat", *columns, axis=last_axis)

    def _write_coordinate(
        self,
        program: Sequence[int],
        scalar_indices: count[int],
        operands: Iterator[Sequence[int]],
    ) -> Tensor:
        """Return one coordinate.

        Args:
            program: a row of :func:`ort_gridsample.detection.programs.to_rows`.
            scalar_indices: the indices of the next scalars of the fused node.
            operands: the programs of the next operands.
        """
        e = self.expressions
        source, axis, index, _, *steps = program
        value = e.input(self._fused.input[2 + source])
        if axis >= 0:
            value = e.gather(value, index, axis)
        for code in steps:
            if code >= WITH_PROGRAM:
                operand = self._write_coordinate(next(operands), scalar_indices, operands)
            else:
                operand = e.gather(e.input(self._fused.input[1]), next(scalar_indices))
            operation, is_operand_first = divmod(code % WITH_PROGRAM, 2)
            inputs = (operand, value) if is_operand_first else (value, operand)
            value = e.op(OPERATIONS[operation], *inputs)
        return value
