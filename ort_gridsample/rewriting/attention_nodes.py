"""The nodes that check the inputs of a whole attention node in a run, and compute what such a node computes with.

The contracts of the nodes are :data:`ort_gridsample.dialects.table.ATTENTION_PLUGINS`. Shapes that the model states are
checked in :mod:`.attention_checks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto, helper

from ..detection.attention_checks import are_contiguous
from ..detection.helpers import OTHER_SHAPE
from ..detection.match import Match
from ..detection.records import NodeRecord
from ..dialects.table import AttentionNode
from ..errors import GridSampleError
from ..functions.validation import Dim
from ..graph.element_types import elem_type
from ..graph.scope import Nodes, Scope, domain_of
from ..inference.types import Value
from .targets import CAST_LIKE

#: The operators between a Softmax and the weights that are led from it.
_MOVES = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_INTEGER_INPUTS = ("spatial_shapes", "value_spatial_shapes", "level_start_index")
#: The axes of each floating-point input, but for attention_weights, whose axes depend on the contract.
_AXES = {
    "value": "B, S, H, D",
    "sampling_locations": "B, Q, H, L, P, 2",
    "reference_points": "B, Q, 1, 2·G",
    "sampling_offsets": "B, Q, H, L·P·2",
}


@dataclass(frozen=True)
class Operands:
    """The names of the values that a deformable attention computes with."""

    value: str  #: (B, S, H, D)
    lengths: str  #: (L, 2), the height and the width of each level
    starts: str  #: (L,), the first pixel of each level; empty where the levels lie one behind the other
    locations: str  #: (B, Q, H, L, P, 2), in [0, 1]
    weights: str  #: (B, Q, H, L, P), of the type of ``value``


def has_unusual_starts(match: Match) -> bool:
    """Whether the model states that the levels of the node do not lie one behind the other."""
    constants, record = match.record.constants, match.record
    lengths, starts = constants.get("spatial_shapes"), constants.get("level_start_index")
    if record.error is not None or lengths is None or starts is None:
        return False
    return not are_contiguous(lengths, starts)


def level_count(match: Match) -> int:
    """The number of levels.

    Raises:
        GridSampleError: the model does not state it.
    """
    name = match.node.input[1]
    table = match.scope.constant(name)
    rows = {(case[1].shape or (None,))[0] for case in match.record.cases} if table is None else {len(table)}
    count = rows.pop() if len(rows) == 1 else None
    if not isinstance(count, int):
        argument = list(match.record.values)[1]
        raise GridSampleError(match.record.where, argument, "of an unknown number of rows", "one for each level")
    return count


def known_type(match: Match, argument: str) -> str:
    """The element type of an input.

    Raises:
        GridSampleError: the model does not state it, or calls the node's function with several types.
    """
    types = match.record.types[argument]
    if len(types) != 1:
        expected = "one type that is known before it runs"
        raise GridSampleError(match.record.where, argument, f"of type {' or '.join(types) or 'unknown'}", expected)
    return types[0]


def has_softmax(scope: Scope, name: str) -> bool:
    """Whether the value ``name`` comes from a Softmax, and was only rearranged since."""
    while (at := scope.makers.get(name)) is not None and not domain_of(scope.nodes[at].domain):
        if scope.op_types[at] == "Softmax":
            return True
        before = scope.inputs[at][0] if scope.op_types[at] in _MOVES else ""
        if not before or scope.makers.get(before, -1) >= at:  # in a model that is not valid
            return False
        name = before
    return False


class OperandNodes:
    """Writes the nodes that check the inputs of a whole attention node, and compute its operands.

    ``is_op`` is whether an op of this package reads the operands. Such an op checks most shapes itself. Without
    ``is_checked`` no checks are written.
    """

    def __init__(
        self, match: Match, contract: AttentionNode, nodes: Nodes, *, is_op: bool = False, is_checked: bool = True
    ) -> None:
        self._match, self._contract, self._nodes = match, contract, nodes
        self._is_op, self._is_checked = is_op, is_checked
        self._names = dict(zip(contract.inputs, match.node.input, strict=True))
        self._shapes: dict[str, str] = {}

    def operands(self) -> Operands:
        """The operands, behind their checks."""
        if self._is_checked:
            self._check_ranks()
            self._check_lengths()
        lengths = self._names[self._contract.inputs[1]]
        if self._contract.has_offsets:
            if self._is_checked:
                self._check_offsets()
            locations, weights = self._locations(), self._softmaxed()
            starts = ""
        else:
            if self._is_checked and not self._is_op:
                self._check_locations()
            locations, starts = self._names["sampling_locations"], self._names["level_start_index"]
            weights = self._as_value_type("attention_weights")
        if self._is_checked and not self._is_op:
            self._check_pixels()
        elif self._is_checked and starts:
            lengths = self._check_starts(lengths, starts)
        return Operands(self._names["value"], lengths, starts, locations, weights)

    def levels(self, operands: Operands) -> tuple[str, list[int]]:
        """The value (L, 3), the points and the lengths of each level, and the points where they are known."""
        nodes, name = self._nodes, self._contract.inputs[1]
        shape = self._known("attention_weights")
        points = shape[-1] if shape is not None else None
        count = level_count(self._match)
        if isinstance(points, int) and self._contract.has_offsets:
            points //= max(count, 1)
        table = self._match.record.constants.get(name)
        if isinstance(points, int) and table is not None:
            levels = np.insert(table.astype(np.int64), 0, points, axis=1)
            return nodes.constant(levels), [points] * count
        length = nodes.add("Gather", nodes.add("Shape", operands.locations), nodes.row(4))
        column = nodes.add("Expand", nodes.add("Reshape", length, nodes.row(1, 1)), nodes.row(count, 1))
        lengths = nodes.add("Cast", operands.lengths, to=TensorProto.INT64)
        levels_name = nodes.add("Concat", column, lengths, axis=1)
        return levels_name, [points] * count if isinstance(points, int) else []

    def _known(self, argument: str) -> tuple[Dim, ...] | None:
        """The shape of an input where it is the same in all calls."""
        position = list(self._match.record.values).index(argument)
        shapes = {case[position].shape for case in self._match.record.cases}
        return shapes.pop() if len(shapes) == 1 else None

    def _is_known(self, *arguments: str) -> bool:
        """Whether all lengths of these inputs are known. They were checked when the model was read."""
        shapes = [self._known(argument) for argument in arguments]
        return all(shape is not None and all(isinstance(dim, int) for dim in shape) for shape in shapes)

    def _shape_of(self, argument: str) -> str:
        """The value that is the shape of an input."""
        if argument not in self._shapes:
            self._shapes[argument] = self._nodes.add("Shape", self._names[argument])
        return self._shapes[argument]

    def _lengths_of(self, argument: str, *axes: int) -> str:
        return self._nodes.add("Gather", self._shape_of(argument), self._nodes.row(*axes))

    def _gate(self, row: str, found: str, expected: str, argument: str, expectation: str) -> str:
        """``row``, a row of integers, behind a node that fails unless ``found`` and ``expected`` are equal.

        The name of that node is the text of the error.
        """
        error = GridSampleError(self._match.record.where, argument, OTHER_SHAPE, expectation)
        return gate(self._nodes, row, found, expected, error)

    def _check_against(self, argument: str, expected: str, expectation: str) -> None:
        """Let an input have a shape that is equal to ``expected``."""
        shape = self._shape_of(argument)
        checked = self._gate(shape, shape, expected, argument, expectation)
        self._names[argument] = self._nodes.add("Reshape", self._names[argument], checked)

    def _check_ranks(self) -> None:
        """Check the number of axes of each array whose rank is unknown. The other checks read axes by their index."""
        nodes = self._nodes
        for argument in self._contract.inputs:
            axes = _AXES.get(argument) or ("B, Q, H, L·P" if self._contract.has_offsets else "B, Q, H, L, P")
            if argument in _INTEGER_INPUTS or self._known(argument) is not None:
                continue
            shape = self._shape_of(argument)
            rank, expected = nodes.add("Shape", shape), nodes.row(axes.count(",") + 1)
            checked = self._gate(shape, rank, expected, argument, f"shape ({axes})")
            self._shapes[argument] = checked
            self._names[argument] = nodes.add("Reshape", self._names[argument], checked)

    def _check_lengths(self) -> None:
        """Check that no length of a level is negative."""
        nodes, name = self._nodes, self._contract.inputs[1]
        if name in self._match.record.constants:
            return
        found = nodes.add("Reshape", self._names[name], nodes.row(-1))
        expected = nodes.add("Abs", found)
        error = GridSampleError(self._match.record.where, name, "with a negative length", "nothing negative")
        checked = gate(nodes, found, found, expected, error)
        self._names[name] = nodes.add("Reshape", checked, nodes.row(-1, 2))

    def _check_locations(self) -> None:
        nodes = self._nodes
        if not self._is_known("value", "sampling_locations", "attention_weights"):
            parts = [self._lengths_of("value", 0), self._lengths_of("sampling_locations", 1)]
            parts += [self._lengths_of("value", 2), nodes.row(level_count(self._match))]
            parts += [self._lengths_of("sampling_locations", 4), nodes.row(2)]
            expected = nodes.add("Concat", *parts, axis=0)
            expectation = "shape (B, Q, H, L, P, 2), as value is of shape (B, S, H, D)"
            self._check_against("sampling_locations", expected, expectation)
            expected = self._lengths_of("sampling_locations", 0, 1, 2, 3, 4)
            expectation = "all axes but the last of sampling_locations"
            self._check_against("attention_weights", expected, expectation)

    def _check_offsets(self) -> None:
        nodes = self._nodes
        if not self._is_known("value", "reference_points", "sampling_offsets", "attention_weights"):
            batch, heads = self._lengths_of("value", 0), self._lengths_of("value", 2)
            queries, count = self._lengths_of("sampling_offsets", 1), self._lengths_of("attention_weights", 3)
            coordinates = nodes.add("Mul", count, nodes.row(2))
            expected = nodes.add("Concat", batch, queries, heads, coordinates, axis=0)
            expectation = "shape (B, Q, H, L·P·2), as value is of shape (B, S, H, D)"
            self._check_against("sampling_offsets", expected, expectation)
            expected = nodes.add("Concat", batch, queries, heads, count, axis=0)
            expectation = "shape (B, Q, H, L·P), as value is of shape (B, S, H, D)"
            self._check_against("attention_weights", expected, expectation)
            last = self._lengths_of("reference_points", 3)
            expected = nodes.add("Concat", batch, queries, nodes.row(1), last, axis=0)
            self._check_against("reference_points", expected, "shape (B, Q, 1, 2·G), of the batch and queries")

    def _check_pixels(self) -> None:
        """Check that the levels are the pixels of ``value``, or lie in them where other starts are constant."""
        nodes, constants, name = self._nodes, self._match.record.constants, self._contract.inputs[1]
        table, starts = constants.get(name), constants.get("level_start_index")
        is_given = "level_start_index" in self._contract.inputs
        shape = self._known("value")
        if table is not None and (starts is not None or not is_given):
            if shape is not None and isinstance(shape[1], int):
                return
            areas = table.prod(1, dtype=np.int64)
            is_exact = starts is None or are_contiguous(table, starts)
            if starts is None or is_exact:
                total = nodes.row(int(areas.sum()))
            else:
                ends_of_levels = np.asarray(starts + areas, np.int64)
                total = nodes.row(max(ends_of_levels.tolist(), default=0))
        else:
            is_exact = True
            ends = self._areas(self._names[name])
            if is_given:
                first = nodes.add("Cast", self._names["level_start_index"], to=TensorProto.INT64)
                ends = nodes.add("Add", first, ends)
            else:
                ends = nodes.add("CumSum", ends, nodes.constant(0))
            total = nodes.add("Reshape", nodes.add("ReduceMax", ends, keepdims=0), nodes.row(1))
        pixels = found = self._lengths_of("value", 1)
        if not is_exact:
            found = nodes.add("Where", nodes.add("Less", pixels, total), pixels, total)
        row = self._shape_of("value")
        checked = self._gate(row, found, total, "value", f"shape (B, S, H, D), with the S pixels of {name}")
        self._names["value"] = nodes.add("Reshape", self._names["value"], checked)

    def _areas(self, lengths: str) -> str:
        """The pixels of each level (L,)."""
        nodes = self._nodes
        wide = nodes.add("Cast", lengths, to=TensorProto.INT64)
        axes = [nodes.add("Gather", wide, nodes.constant(axis), axis=1) for axis in (0, 1)]
        return nodes.add("Mul", *axes)

    def _check_starts(self, lengths: str, starts: str) -> str:
        """``lengths``, behind a check that the levels lie one behind the other."""
        constants, nodes = self._match.record.constants, self._nodes
        if {self._contract.inputs[1], "level_start_index"} <= constants.keys():
            return lengths
        first = nodes.add("CumSum", self._areas(lengths), nodes.constant(0), exclusive=1)
        found = nodes.add("Cast", starts, to=TensorProto.INT64)
        expectation = "the number of pixels before each level"
        checked = self._gate(lengths, found, first, "level_start_index", expectation)
        return nodes.add("Reshape", checked, nodes.row(-1, 2))

    def _as_value_type(self, argument: str) -> str:
        """An input as the type of ``value``, where both are known."""
        types = self._match.record.types
        if types[argument] and types["value"] and types[argument] != types["value"]:
            to = elem_type(known_type(self._match, "value"))
            return self._nodes.add("Cast", self._names[argument], to=to)
        return self._names[argument]

    def _wide(self, argument: str) -> tuple[str, str]:
        """An input in at least single precision, and the name of that type."""
        kind = known_type(self._match, argument)
        if kind in ("float32", "float64"):
            return self._names[argument], kind
        return self._nodes.add("Cast", self._names[argument], to=TensorProto.FLOAT), "float32"

    def _locations(self) -> str:
        """The locations that reference points and offsets make: point p is relative to reference point p modulo G."""
        nodes, count = self._nodes, level_count(self._match)
        (references, kind), (offsets, offset_kind) = self._wide("reference_points"), self._wide("sampling_offsets")
        if kind != offset_kind:
            expected = f"type {kind}, as reference_points"
            raise GridSampleError(self._match.record.where, "sampling_offsets", f"of type {offset_kind}", expected)
        shape = self._known("reference_points")
        if shape is not None and isinstance(shape[3], int):
            groups = nodes.row(shape[3] // 2)
        else:
            groups = nodes.add("Div", self._lengths_of("reference_points", 3), nodes.row(2))
        by_group = nodes.add("Concat", nodes.row(0, 0, 0, count, -1), groups, nodes.row(2), axis=0)
        offsets = nodes.add("Reshape", offsets, by_group)
        references = nodes.add("Reshape", references, nodes.row(0, 0, 1, 1, 1, -1, 2))
        table = self._match.record.constants.get(self._contract.inputs[1])
        if table is not None:
            sizes = nodes.constant(table[:, ::-1].astype(kind).reshape(1, 1, 1, count, 1, 1, 2))
        else:
            turned = nodes.add("Gather", self._names[self._contract.inputs[1]], nodes.row(1, 0), axis=1)
            sizes = nodes.add("Cast", turned, to=elem_type(kind))
            sizes = nodes.add("Reshape", sizes, nodes.row(1, 1, 1, count, 1, 1, 2))
        located = nodes.add("Add", references, nodes.add("Div", offsets, sizes))
        return nodes.add("Reshape", located, nodes.row(0, 0, 0, count, -1, 2))

    def _softmaxed(self) -> str:
        """The weights (B, Q, H, L, P): the plugins apply a softmax, and those of first releases had it before them."""
        nodes, count = self._nodes, level_count(self._match)
        if has_softmax(self._match.scope, self._match.record.values["attention_weights"]):
            weights = self._as_value_type("attention_weights")
        else:
            weights, kind = self._wide("attention_weights")
            weights = nodes.add("Softmax", weights, axis=3)
            to = known_type(self._match, "value")
            weights = weights if to == kind else nodes.add("Cast", weights, to=elem_type(to))
        return nodes.add("Reshape", weights, nodes.row(0, 0, 0, count, -1))


def constants_of(match: Match) -> Sequence[int]:
    """The positions of the Constants that the node of ``match`` reads."""
    makers = (match.scope.makers.get(name, match.index) for name in match.node.input)
    return [at for at in makers if match.scope.op_types[at] == "Constant"]


def typed_constant(nodes: Nodes, number: float, type_name: str) -> str:
    """Write a Constant of a floating-point type; the name of its value."""
    tensor = helper.make_tensor("", elem_type(type_name), [], [number])
    return nodes.add("Constant", value=tensor)


def constants_like(match: Match, nodes: Nodes, argument: str, *numbers: float) -> list[str]:
    """Write constants of the type of an input; the names of their values."""
    if len(match.record.types[argument]) != 1 and match.scope.opsets.get("", 0) >= CAST_LIKE:
        plain = [typed_constant(nodes, number, "float32") for number in numbers]
        return [nodes.add("CastLike", name, match.record.values[argument]) for name in plain]
    return [typed_constant(nodes, number, known_type(match, argument)) for number in numbers]


def gate(nodes: Nodes, row: str, found: str, expected: str, error: GridSampleError) -> str:
    """Write nodes that fail unless ``found`` and ``expected`` are equal, and else make ``row``, a row of integers.

    The name of each node that can fail is the text of the ``error``.
    """
    is_equal = nodes.add("Equal", found, expected)
    nodes.rename_last(str(error))  # it fails itself where the two have different lengths
    same = nodes.add("Cast", is_equal, to=TensorProto.INT64)
    is_wrong = nodes.add("Sub", nodes.constant(1), nodes.add("ReduceMin", same, keepdims=0))
    only = nodes.add("Reshape", row, nodes.row(1, -1))
    checked = nodes.add("Gather", only, is_wrong, axis=0)
    nodes.rename_last(str(error))
    return checked


def checked_own(match: Match, nodes: Nodes, axes: int) -> tuple[str, str]:
    """The locations and weights of this package's node, behind checks of their shapes in a run.

    ``axes`` is the number of spatial axes. Weights (B, 1, H, P) are of one query for all.
    """
    record = match.record
    value, _, locations, weights = record.values.values()
    shapes = [case[position].shape for case in record.cases for position in (0, 2, 3)]
    if all(shape is not None and all(isinstance(dim, int) for dim in shape) for shape in shapes):
        return locations, weights
    is_for_all = record.ranks["attention_weights"] != (5,)
    shape = nodes.add("Shape", locations)
    ends = nodes.row(0, 2)
    found = nodes.add("Gather", shape, ends)
    expected = nodes.add("Gather", nodes.add("Shape", value), ends)
    error = GridSampleError(
        record.where, "sampling_locations", OTHER_SHAPE, "shape (B, Q, H, L, P, r), with the B and H of value"
    )
    located = nodes.add("Reshape", locations, gate(nodes, shape, found, expected, error))
    shape = nodes.add("Shape", weights)
    found = nodes.add("Shape", nodes.add("Reshape", weights, nodes.row(0, 0, 0, -1)))
    flat = nodes.add("Shape", nodes.add("Reshape", located, nodes.row(0, 0, 0, -1, axes)))
    expected = nodes.add("Gather", flat, nodes.row(0, 1, 2, 3))
    if is_for_all:
        one = nodes.row(1, 1, 1, 1)
        is_query = nodes.constant(np.array([False, True, False, False]))
        is_one = nodes.add("And", nodes.add("Equal", found, one), is_query)
        expected = nodes.add("Where", is_one, found, expected)
    expectation = "all axes but the last of sampling_locations"
    error = GridSampleError(record.where, "attention_weights", OTHER_SHAPE, expectation)
    return located, nodes.add("Reshape", weights, gate(nodes, shape, found, expected, error))


def op_record(match: Match) -> NodeRecord:
    """The record of the op of this package that computes what the node of ``match`` does, without its operands."""
    record, contract = match.record, match.contract
    cases = []
    for case in record.cases:
        value, third, fourth = case[0], case[2], case[3]
        located = fourth
        if contract is not None and contract.has_offsets:
            located = Value("float64" if third.type == "float64" else "float32")
        cases.append((value, Value("int64"), Value(located.type), Value(value.type)))
    values = dict.fromkeys(("value", "levels", "sampling_locations", "attention_weights"), "")
    return replace(record, values=values, cases=list(dict.fromkeys(cases)), constants={})
