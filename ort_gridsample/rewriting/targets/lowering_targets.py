"""The targets ``primitives`` (basic operators) and ``ai.onnx-2d`` (4-D GridSamples)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import count

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...detection.attention.layouts import Attention
from ...detection.hosts import choose_hosts
from ...detection.lowered_names import lowered_name
from ...detection.match import Match
from ...dialects.table import AI_ONNX
from ...errors import GridSampleError
from ...functions.grid_operators import GRID_OPERATORS
from ...graph.expressions import Expressions
from ...graph.new_names import Names
from ...graph.runtimes import ANY, Runtime
from ...graph.substitutes import MissingOperatorError
from ...reference.arrays import Array
from ...spec import Shape, known_lengths
from . import (
    ABSORBED,
    FUNCTIONS_DOMAIN,
    Replacement,
    Target,
    matrix_products,
    primitives,
    two_axes,
)
from .lowered_arguments import Argument


class PrimitivesTarget(Target):
    """Basic standard operators.

    Args:
        functions: whether nodes that are lowered alike share a model-local function.
        runtime: the runtime that the nodes are for.
    """

    replaces_decomposed = False
    _first_opset = primitives.FIRST_OPSET
    _lower_grid_sample = staticmethod(primitives.lower_grid_sample)

    def __init__(
        self,
        functions: bool = False,
        existing: Iterable[onnx.FunctionProto] = (),
        runtime: Runtime = ANY,
    ) -> None:
        self._functions = functions
        self.runtime = runtime
        self.has_allowzero = runtime.has_allowzero
        # Without Gather, an attention is cheaper as a whole than its GridSamples.
        self.replaces_attention = runtime.lacks("Gather")
        # The id of a scope and the output of an attention -> whether it becomes matrix products.
        self._has_products: dict[tuple[int, str], bool] = {}
        shared = [function for function in existing if function.domain == FUNCTIONS_DOMAIN]
        self._shared = {_bytes_without_name(function): function for function in shared}
        # The id of a scope and the name of an AffineGrid's output -> the grid, if it is constant.
        self._grids: dict[tuple[int, str], Array] = {}
        # The id of a scope and the name of a grid that a GridSample reads -> its shape, if known.
        self._grid_shapes: dict[tuple[int, str], list[int]] = {}

    def targets_of(self, matches: Sequence[Match]) -> dict[Match, Target]:
        self._has_products.clear()  # the scopes of another plan may have had the same ids
        self._grid_shapes = _shapes_of_grids(matches)
        targets = super().targets_of(matches)
        for host in choose_hosts(matches, self._becomes_products):
            targets.update(dict.fromkeys(host.absorbed, ABSORBED))
        return targets

    def replaces(self, match: Match) -> bool:
        if match.detected_attention is not None:
            return self._becomes_products(match)
        return not match.record.decomposed

    def _becomes_products(self, match: Match) -> bool:
        """Whether an attention around GridSamples becomes matrix products.

        It does unless a length that must be known is not, or an operand needs other operators.
        """
        if match.detected_attention is None:
            return False
        key = id(match.scope), match.record.output
        if key not in self._has_products:
            try:
                self._products(match, match.detected_attention, None)
                self._has_products[key] = True
            except (GridSampleError, MissingOperatorError):
                self._has_products[key] = False
        return self._has_products[key]

    def _products(self, match: Match, attention: Attention, names: Names | None) -> Replacement:
        """Return the matrix products of an attention around GridSamples."""
        from ..attention_products import AttentionProducts
        from .detected_attention import DetectedAttention

        source = DetectedAttention(match, attention, names, self.runtime)
        products = AttentionProducts(match, source).replacement()
        return replace(products, superseded=())

    def needs_inlining(self, match: Match) -> bool:
        """Whether the node's function must be inlined.

        With ``functions`` it is if its calls differ in types, ranks or attributes. Otherwise it
        always is, because many runtimes have no functions.
        """
        record = match.record
        is_attention = match.detected_attention is not None
        if not self._functions or is_attention or record.has_attribute_references:
            return True
        return any(
            record.varies_in_type(argument) or record.varies_in_rank(argument)
            for argument in record.values
        )

    def least_opset(self, match: Match) -> int:
        return self._first_opset

    def replacement_for(self, match: Match, names: Names) -> Replacement:
        if match.detected_attention is not None:
            return self._products(match, match.detected_attention, names)
        if self._functions:
            return self._call(match)
        output = match.record.output
        prefix = match.node.name or output
        nodes = self._lower(match, prefix, output, {})
        while not names.take_all(_new_names(nodes, output)):
            prefix += "_"
            nodes = self._lower(match, prefix, output, {})
        if len(nodes) == 1 and nodes[0].op_type == "Constant":
            grid = numpy_helper.to_array(nodes[0].attribute[0].t)
            self._grids[id(match.scope), output] = grid
        return Replacement(nodes, superseded=self._size_makers(match, nodes))

    def _size_makers(self, match: Match, nodes: Sequence[onnx.NodeProto]) -> Sequence[int]:
        """Return the nodes that compute a size which ``nodes`` do not read, without Gather."""
        size = match.record.values.get("size", "")
        if not self.runtime.lacks("Gather") or any(size in node.input for node in nodes):
            return ()
        scope = match.scope
        makers = set[int]()
        names = [size]
        while names:
            maker = scope.makers.get(names.pop())
            if maker is not None and maker not in makers:
                makers.add(maker)
                names += scope.inputs[maker]
        return sorted(makers)

    def _call(self, match: Match) -> Replacement:
        """Return a call of a function that holds the nodes."""
        record = match.record
        values = dict.fromkeys(value for value in record.values.values() if value)
        parameter_of = {value: f"input{index}" for index, value in enumerate(values)}
        nodes = self._lower(match, record.operator, "output", parameter_of)
        read = {name for node in nodes for name in node.input}
        arguments = [value for value, name in parameter_of.items() if name in read]
        function = self._shared_function(match, nodes, [parameter_of[value] for value in arguments])
        call = helper.make_node(
            function.name,
            arguments,
            [record.output],
            name=match.node.name,
            doc_string=match.node.doc_string,
            domain=FUNCTIONS_DOMAIN,
        )
        return Replacement([call], functions=[function])

    def _shared_function(
        self,
        match: Match,
        nodes: Sequence[onnx.NodeProto],
        parameters: Sequence[str],
    ) -> onnx.FunctionProto:
        """Return the function that consists of ``nodes``, which may exist already."""
        imports = [helper.make_opsetid("", match.scope.opsets[""])]
        body = helper.make_function(FUNCTIONS_DOMAIN, "", parameters, ["output"], nodes, imports)
        function = self._shared.setdefault(_bytes_without_name(body), body)
        if not function.name:
            taken = {other.name for other in self._shared.values()}
            candidates = (f"{match.record.operator}_{number}" for number in count(1))
            function.name = next(name for name in candidates if name not in taken)
        return function

    def _lower(
        self,
        match: Match,
        name: str,
        output: str,
        parameter_of: Mapping[str, str],
    ) -> list[onnx.NodeProto]:
        """Return the nodes that compute the node of ``match``.

        Args:
            match: the node to replace.
            name: the names of the nodes begin with this.
            output: the name of their output.
            parameter_of: input of the node -> the input of the function that holds the nodes.
        """
        record = match.record
        first, second = (self._value(match, argument, parameter_of) for argument in record.values)
        origin = record.operator if self._functions else record.where
        e = Expressions(name, match.opset, self.runtime, origin=origin)
        align_corners = bool(record.align_corners)
        grid_lowerings = primitives.GRID_LOWERINGS
        lower_grid_sample = self._lower_grid_sample
        if self.runtime.lacks("Gather"):
            grid_lowerings = matrix_products.GRID_LOWERINGS
            lower_grid_sample = matrix_products.lower_grid_sample
        if record.operator in GRID_OPERATORS:
            coordinates = first
            lower_grid_operator = grid_lowerings[record.operator]
            nodes = lower_grid_operator(e, first, second, output, align_corners=align_corners)
        else:
            coordinates = second
            nodes = lower_grid_sample(
                e,
                first,
                second,
                output,
                mode=str(record.mode),
                padding_mode=str(record.padding_mode),
                align_corners=align_corners,
            )
        for node in nodes:
            reads_coordinates = coordinates.name in node.input
            node.name = lowered_name(name, node.name.removeprefix(f"{name}/"), reads_coordinates)
        return nodes

    def _value(
        self,
        match: Match,
        argument: str,
        parameter_of: Mapping[str, str],
    ) -> Argument:
        """Return an input of the node, as far as it is known.

        Raises:
            GridSampleError: its type is not known.
        """
        record = match.record
        types = record.types[argument]
        if not types:
            expected = "a type that the model states, or that onnx can infer"
            raise GridSampleError(record.where, argument, "of unknown type", expected)
        name = record.values[argument]
        constant = record.constants.get(argument)
        if argument == "size" and constant is None and self.runtime.lacks("Gather"):
            shape_of_grid = self._grid_shapes.get((id(match.scope), record.output))
            if shape_of_grid is not None:
                batches, *lengths, _ = shape_of_grid
                constant = np.array([batches, 1, *lengths])  # the channels have no effect
        if constant is None:
            constant = self._grids.get((id(match.scope.defining_scope(name)), name))
        shape = _common_shape([value.shape for value in record.inputs[argument]])
        return Argument(parameter_of.get(name, name), types[0], shape, constant)


class TwoAxesTarget(PrimitivesTarget):
    """GridSamples of two spatial axes. AffineGrid, which opset 16 does not have, is lowered."""

    _first_opset = two_axes.FIRST_OPSET
    _lower_grid_sample = staticmethod(two_axes.lower_grid_sample)

    def replaces(self, match: Match) -> bool:
        if not super().replaces(match):
            return False
        record = match.record
        is_standard = record.dialect.name == AI_ONNX and record.operator == "GridSample"
        if not is_standard or record.spatial_axes != (2,):
            return True
        # The opsets that can be written have no GridSample of bfloat16.
        return any("bfloat16" in types for types in record.types.values())


def _shapes_of_grids(matches: Sequence[Match]) -> dict[tuple[int, str], list[int]]:
    """Return the shapes of grids that GridSamples read, by the id of their scope and their name."""
    shapes = {}
    for match in matches:
        name = match.record.values.get("grid", "")
        shape = known_lengths(match.record.shape_in_all_calls("grid")) if name else None
        if shape is not None:
            shapes[id(match.scope.defining_scope(name)), name] = shape
    return shapes


def _new_names(nodes: Sequence[onnx.NodeProto], output: str) -> set[str]:
    """Return the names of all values that ``nodes`` make, except ``output``."""
    return {name for node in nodes for name in node.output} - {output}


def _bytes_without_name(function: onnx.FunctionProto) -> bytes:
    """Return the bytes of a function without its name."""
    copy = deepcopy(function)
    copy.name = ""
    return copy.SerializeToString(deterministic=True)


def _common_shape(
    shapes: Sequence[Shape | None],
) -> Shape | None:
    """Return the lengths that all ``shapes`` agree on; None if a shape is not known."""
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) < len(shapes):
        return None
    return tuple(dims[0] if len(set(dims)) == 1 else None for dims in zip(*known, strict=True))
