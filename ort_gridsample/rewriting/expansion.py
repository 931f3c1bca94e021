"""Nodes that stand for several, as these: deformable attention of any package, and samplers whose grid is planes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import onnx
from onnx import helper

from ..detection.helpers import has_status
from ..detection.match import Match
from ..dialects.table import DOMAIN, standard
from ..errors import GridSampleError
from ..functions import validation
from ..graph.element_types import elem_type
from ..graph.scope import Names, Nodes
from .attention_nodes import (
    OperandNodes,
    checked_own,
    constants_like,
    constants_of,
    known_type,
    level_count,
    typed_constant,
)
from .targets import Replacement, renamed

#: The first opset with GridSample, that with its newer words, and the domain of onnxruntime's own before the first.
_GRID_SAMPLE, _NEWER_WORDS, BEFORE_GRID_SAMPLE = 16, 20, "com.microsoft"
#: The first opset in which ReduceSum reads its axes as an input.
_AXES_AS_INPUT = 13


def points_of(match: Match) -> list[int]:
    """The number of points on each level, as far as the node of ``match``, which is no plugin's, says it."""
    table = match.scope.constant(match.record.values["levels"])
    if table is not None:
        return [int(n) for n in table[:, 0]] if table.ndim == 2 and table.shape[1] > 1 else []
    return [int(n) for each in match.node.attribute if each.name == "points" for n in each.s.split()]


def expanded(match: Match, names: Names) -> Replacement:
    """What the node of ``match`` stands for, named after its output.

    Raises:
        GridSampleError: the number of levels, or of points on each where these may differ, is not known.
    """
    if match.record.dialect.plane_scale:
        return _expanded_planes(match, names)
    record, opset, contract = match.record, match.scope.opsets.get("", 0), match.contract
    is_plugin = contract is not None
    table = match.scope.constant(list(record.values.values())[1])
    points = [] if is_plugin else points_of(match)
    if not is_plugin and not points:
        found = "computed" if table is None else f"of shape {validation.shown(table.shape)}"
        expected = "a constant of shape (L, 1 + r), which says how many points each has"
        raise GridSampleError(record.where, "levels", found, expected)
    n_levels = len(points) or level_count(match)
    sizes = [None] * n_levels if table is None else [row[bool(points) :] for row in table.tolist()]
    nodes, r = Nodes(names, record.output), 2 if is_plugin else (record.spatial_axes or (2,))[0]
    if contract is None:
        value, levels, locations, weights = record.values.values()
        begins, starts = "", None
        if record.dialect.name == DOMAIN and not has_status(match.node):  # those that a session wrote were checked
            _check_own(match, points)
            locations, weights = checked_own(match, nodes, r)
    else:
        operands = OperandNodes(match, contract, nodes).operands()
        value, levels, locations, weights = operands.value, operands.lengths, operands.locations, operands.weights
        begins = operands.starts
        starts = match.scope.constant(begins) if begins else None
    X_type = elem_type(next(iter(record.types["value"]), "float32"))
    depths = {(case[0].shape or (None,))[-1] for case in record.cases}
    depth = depths.pop() if len(depths) == 1 else None
    mode, aligned = "linear" if opset >= _NEWER_WORDS else "bilinear", int(record.align_corners == 1)

    add, row = nodes.add, cache(nodes.row)
    of_value = add("Shape", value)
    heads, channels = add("Gather", of_value, row(2)), add("Gather", of_value, row(3))
    queries = add("Gather", add("Shape", locations), row(1))
    if contract is not None and contract.has_offsets:
        kind = "float64" if known_type(match, "reference_points") == "float64" else "float32"
        two, one = (typed_constant(nodes, number, kind) for number in (2, 1))
    else:
        two, one = constants_like(match, nodes, "sampling_locations", 2, 1)
    unit = add("Reshape", locations, row(0, 0, 0, *([-1] if points else [n_levels, -1]), r))
    grids = add("Sub", add("Mul", unit, two), one)
    samples, end, after, first = list[str](), "", 0, 0  # ``after`` is ``end`` as a number, where it is known
    for level, size in enumerate(sizes):
        if size is None:
            line = add("Cast", add("Gather", levels, nodes.constant(level)), to=onnx.TensorProto.INT64)
            lengths = add("Slice", line, row(bool(points)), row(bool(points) + r))
        else:
            lengths = row(*size)
        if not begins:
            begin = end or row(0)
        elif starts is None:
            begin, after = add("Cast", add("Gather", begins, row(level)), to=onnx.TensorProto.INT64), -1
        else:
            begin = row(after := int(starts[level]))
        after = -1 if size is None or after < 0 else after + math.prod(size)
        area = add("ReduceProd", lengths, keepdims=1) if size is None else row(math.prod(size)) if after < 0 else ""
        end = add("Add", begin, area) if area else row(after)
        image = add("Transpose", add("Slice", value, begin, end, row(1)), perm=[0, 2, 3, 1])
        if isinstance(depth, int) and size is not None:  # of which all opsets' inference knows the rank
            X = add("Reshape", image, row(-1, depth, *size))
        else:
            X = add("Reshape", image, add("Concat", row(-1), channels, lengths, axis=0))
        if points:
            some = add("Slice", grids, row(first), row(first := first + points[level]), row(3))
        else:
            some = add("Gather", grids, nodes.constant(level), axis=3)
        flat = add("Transpose", some, perm=[0, 2, 1, 3, 4])
        count = add("Gather", add("Shape", flat), row(3))
        positions = [add("Mul", queries, count)] if r == 1 else [queries, count, *[row(1)] * (r - 2)]
        grid = add("Reshape", flat, add("Concat", row(-1), *positions, row(r), axis=0))
        sample = add("GridSample", X, grid, mode=mode, align_corners=aligned)
        if opset < _GRID_SAMPLE:
            nodes[-1].domain = BEFORE_GRID_SAMPLE
        # onnx does not infer its rank where its shape is computed.
        match.scope.container.value_info.append(helper.make_tensor_value_info(X, X_type, [None] * (2 + r)))
        if r != 2:
            sample = add("Reshape", sample, add("Concat", row(0), row(0), queries, count, axis=0))
        samples.append(sample)
    by = add("Transpose", add("Reshape", weights, row(0, 0, 0, -1)), perm=[0, 2, 1, 3])
    ends = add("Gather", add("Shape", by), row(2, 3))
    weight = add("Reshape", by, add("Concat", row(-1), row(1), ends, axis=0))
    product = add("Mul", add("Concat", *samples, axis=3), weight)
    if opset < _AXES_AS_INPUT:
        total = add("ReduceSum", product, axes=[-1], keepdims=0)
    else:
        total = add("ReduceSum", product, row(-1), keepdims=0)
    wide = add("Concat", row(-1), add("Mul", heads, channels), queries, axis=0)
    if contract is not None and contract.is_by_head:
        by_query = add("Transpose", add("Reshape", total, wide), perm=[0, 2, 1])
        split = add("Concat", row(0), queries, heads, channels, axis=0)
        add("Reshape", by_query, split, output=record.output)
    else:
        add("Transpose", add("Reshape", total, wide), perm=[0, 2, 1], output=record.output)
    return Replacement(nodes, fused=[match.index, *constants_of(match)])


def _check_own(match: Match, points: Sequence[int]) -> None:
    """Check the shapes of this package's node where all of them are known."""
    table = match.scope.constant(match.record.values["levels"])
    for value, _, locations, weights in match.record.cases:
        shapes = [_known(each.shape) for each in (value, locations, weights)]
        if table is not None and None not in shapes:
            first, second, third = (shape or () for shape in shapes)
            validation.attention_shapes(match.record.where, first, table[:, 1:], points, second, third)


def _known(shape: Sequence[int | str | None] | None) -> list[int] | None:
    """``shape``, where all lengths are known."""
    lengths = [dim for dim in shape or () if isinstance(dim, int)]
    return lengths if shape is not None and len(lengths) == len(shape) else None


def _expanded_planes(match: Match, names: Names) -> Replacement:
    """A sampler whose grid is planes, as a GridSample."""
    record, opset = match.record, match.scope.opsets.get("", 0)
    X, grid = record.values.values()
    (r,) = record.dialect.axes or (2,)
    kind, nodes = known_type(match, "grid"), Nodes(names, record.output)
    if kind not in ("float32", "float64"):  # a quotient in half precision would move the coordinates
        kind = "float32"
        grid = nodes.add("Cast", grid, to=elem_type(kind))
    moved = nodes.add("Transpose", grid, perm=[0, *range(2, r + 2), 1])
    scaled = nodes.add("Div", moved, typed_constant(nodes, record.dialect.plane_scale, kind))
    domain = "" if opset >= _GRID_SAMPLE else BEFORE_GRID_SAMPLE
    sample = renamed(match.node, "GridSample", domain, [X, scaled], [record.output])
    sample.attribute.extend(standard("GridSample", opset).write(record.possible_attributes))
    return Replacement([*nodes, sample])
