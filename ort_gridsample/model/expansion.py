"""Deformable attention that one node says, a plugin's or a compiled op, as the nodes that exporters write for it."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import onnx
from onnx import helper

from .. import checks
from ..errors import GridSampleError
from .dialects import ATTENTION_PLUGINS
from .element_types import elem_type
from .graphs import Names, Nodes
from .matches import Match
from .targets import Replacement

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
    record, node, opset = match.record, match.node, match.scope.opsets.get("", 0)
    is_plugin = node.op_type in ATTENTION_PLUGINS
    table = match.scope.constant(record.values["levels"])
    points = [] if is_plugin else points_of(match)
    if not is_plugin and not points:
        found = "computed" if table is None else f"of shape {checks.shown(table.shape)}"
        expected = "a constant of shape (L, 1 + r), which says how many points each has"
        raise GridSampleError(record.where, "levels", found, expected)
    rows = {(case[1].shape or (None,))[0] for case in record.cases} if table is None else {len(table)}
    n_levels = len(points) or (rows.pop() if len(rows) == 1 else None)
    if not isinstance(n_levels, int):
        raise GridSampleError(record.where, "spatial_shapes", "of an unknown number of rows", "one for each level")
    sizes = [None] * n_levels if table is None else [row[bool(points) :] for row in table.tolist()]
    starts = match.scope.constant(node.input[2]) if is_plugin else None
    r = 2 if is_plugin else (record.spatial_axes or (2,))[0]
    X_type, type_ = (elem_type(next(iter(record.types[of]), "float32")) for of in ("value", "sampling_locations"))
    depths = {(case[0].shape or (None,))[-1] for case in record.cases}
    depth = depths.pop() if len(depths) == 1 else None
    mode, aligned = "linear" if opset >= _NEWER_WORDS else "bilinear", int(record.align_corners == 1)

    nodes = Nodes(names, record.output)
    add, row, (value, levels, locations, weights) = nodes.add, cache(nodes.row), record.values.values()
    of_value = add("Shape", value)
    heads, channels = add("Gather", of_value, row(2)), add("Gather", of_value, row(3))
    queries = add("Gather", add("Shape", locations), row(1))
    two, one = (add("Cast", nodes.constant(np.array(number, np.float32)), to=type_) for number in (2, 1))
    unit = add("Reshape", locations, row(0, 0, 0, *([-1] if points else [n_levels, -1]), r))
    grids = add("Sub", add("Mul", unit, two), one)
    samples, end, after, first = list[str](), "", 0, 0  # ``after`` is ``end`` as a number, where it is known
    for level, size in enumerate(sizes):
        if size is None:
            line = add("Cast", add("Gather", levels, nodes.constant(level)), to=onnx.TensorProto.INT64)
            lengths = add("Slice", line, row(bool(points)), row(bool(points) + r))
        else:
            lengths = row(*size)
        if not is_plugin:
            begin = end or row(0)
        elif starts is None:
            begin, after = add("Cast", add("Gather", node.input[2], row(level)), to=onnx.TensorProto.INT64), -1
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
    if ATTENTION_PLUGINS.get(node.op_type):
        by_query = add("Transpose", add("Reshape", total, wide), perm=[0, 2, 1])
        split = add("Concat", row(0), queries, heads, channels, axis=0)
        add("Reshape", by_query, split, output=record.output)
    else:
        add("Transpose", add("Reshape", total, wide), perm=[0, 2, 1], output=record.output)
    makers = (match.scope.makers.get(name, match.index) for name in node.input)
    return Replacement(nodes, fused=[match.index, *(at for at in makers if match.scope.op_types[at] == "Constant")])
