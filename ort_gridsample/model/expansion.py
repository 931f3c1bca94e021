"""Deformable attention that one node says, a plugin's or a compiled op, as the nodes that exporters write for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
from onnx import helper, parser

from ..errors import GridSampleError
from .dialects import ATTENTION_PLUGINS
from .element_types import elem_type
from .graphs import Names
from .matches import Match
from .targets import Replacement

#: The first opset with GridSample, that with its newer words, and the domain of onnxruntime's own before the first.
_GRID_SAMPLE, _NEWER_WORDS, BEFORE_GRID_SAMPLE = 16, 20, "com.microsoft"
#: The first opset in which ReduceSum reads its axes as an input.
_AXES_AS_INPUT = 13


def expanded(match: Match, names: Names) -> Replacement:
    """What the node of ``match`` stands for, named after its output.

    Raises:
        GridSampleError: the number of levels is not known.
    """
    record, node, opset = match.record, match.node, match.scope.opsets.get("", 0)
    is_plugin = node.op_type in ATTENTION_PLUGINS
    points = [int(n) for each in node.attribute if each.name == "points" for n in each.s.split()]
    table = match.scope.constant(record.values["levels"])
    if not is_plugin and table is not None:
        points = table[:, 0].tolist()
    rows = {(case[1].shape or (None,))[0] for case in record.cases} if table is None else {len(table)}
    count = len(points) or (rows.pop() if len(rows) == 1 else None)
    if not isinstance(count, int):
        raise GridSampleError(record.where, "spatial_shapes", "of an unknown number of rows", "one for each level")
    channels = {(case[0].shape or (None,))[-1] for case in record.cases}
    inputs = {"value": record.values["value"], "table": record.values["levels"]}
    inputs |= {"locations": record.values["sampling_locations"], "weights": record.values["attention_weights"]}
    firsts = None
    if is_plugin:
        inputs["starts"], firsts = node.input[2], match.scope.constant(node.input[2])
    text = _Text(
        lengths=[None] * count if table is None else [row[bool(points) :] for row in table.tolist()],
        starts=None if not is_plugin else [None] * count if firsts is None else firsts.tolist(),
        points=points,
        r=2 if is_plugin else (record.spatial_axes or (2,))[0],
        kind=elem_type(next(iter(record.types["sampling_locations"]), "float32")),
        channels=channels.pop() if len(channels) == 1 else None,
        opset=opset,
        align_corners=int(record.align_corners == 1),
    )
    result = "by_head" if ATTENTION_PLUGINS.get(node.op_type) else "by_query"
    called = {**inputs, result: record.output}
    signature = f'<domain: "text", opset_import: ["": {opset}]> f ({", ".join(inputs)}) => ({result})'
    nodes, read = list[onnx.NodeProto](), {result}
    for each in reversed(parser.parse_function(f"{signature} {{ {' '.join(text.lines)} }}").node):
        if not read.isdisjoint(each.output):
            read.update(each.input)
            nodes.insert(0, each)
    for each in nodes:
        sources = [called[name] for name in each.input]
        made = [called.setdefault(name, names.new(f"{record.output}_{name}")) for name in each.output]
        del each.input[:], each.output[:]
        each.input.extend(sources)
        each.output.extend(made)
        each.name = names.new(made[0])
        if each.op_type == "GridSample" and opset < _GRID_SAMPLE:
            each.domain = BEFORE_GRID_SAMPLE
        if each.op_type == "GridSample":  # whose rank onnx does not infer where its shape is computed
            kind = next(iter(record.types["value"]), "float32")
            shape = [None] * (2 + text.r)
            match.scope.container.value_info.append(helper.make_tensor_value_info(sources[0], elem_type(kind), shape))
    makers = (match.scope.makers.get(name, match.index) for name in node.input)
    return Replacement(nodes, fused=[match.index, *(at for at in makers if match.scope.op_types[at] == "Constant")])


class _Text:
    """Deformable attention as ``lines`` of nodes, with outputs ``by_query`` (B, Q, H·D) and ``by_head`` (B, Q, H, D).

    Args:
        lengths: those of each level; None: the row of the ``table`` has them.
        starts: the first pixels of levels, None: ``starts`` has them; None: each lies behind the one before.
        points: those of each level; none: as many on each.
        r: the spatial axes.
        kind: the element type of the locations.
        channels: D, if it is a known number.
        opset: that of the nodes.
        align_corners: the attribute.
    """

    def __init__(
        self, lengths: Sequence[Sequence[int] | None], starts: Sequence[int | None] | None, points: Sequence[int],
        r: int, kind: int, channels: int | str | None, opset: int, align_corners: int,
    ) -> None:  # fmt: skip
        self.lines, self.r = list[str](), r
        add, row, first, samples = self.lines.append, self._row, 0, []
        mode = "linear" if opset >= _NEWER_WORDS else "bilinear"
        split = "-1" if points else f"{len(lengths)}, -1"
        add("of_value = Shape (value) of_locations = Shape (locations) float_2 = Constant <value = float {2}> ()")
        add(f"heads = Gather (of_value, {row(2)}) channels = Gather (of_value, {row(3)})")
        add(f"queries = Gather (of_locations, {row(1)}) float_1 = Constant <value = float {{1}}> ()")
        add(f"two = Cast <to = {kind}> (float_2) one = Cast <to = {kind}> (float_1)")
        add(f"unit = Reshape (locations, {row(0, 0, 0, *map(int, split.split(', ')), r)})")
        add("doubled = Mul (unit, two) grids = Sub (doubled, one)")
        end, after = row(0), 0  # as a number, too, where it is known
        for level, size in enumerate(lengths):
            lengths_name = f"size{level}" if size is None else row(*size)
            if size is None:
                add(f"index{level} = Constant <value = int64 {{{level}}}> ()")
                add(f"line{level} = Gather (table, index{level}) all{level} = Cast <to = 7> (line{level})")
                add(f"size{level} = Slice (all{level}, {row(bool(points))}, {row(bool(points) + r)})")
                add(f"area{level} = ReduceProd <keepdims = 1> (size{level})")
            begin, known = end, after
            if starts is not None and starts[level] is None:
                add(f"at{level} = Gather (starts, {row(level)}) begin{level} = Cast <to = 7> (at{level})")
                begin, known = f"begin{level}", -1
            elif starts is not None:
                known = int(starts[level] or 0)
                begin = row(known)
            after = -1 if size is None or known < 0 else known + math.prod(size)
            if after < 0:
                area = f"area{level}" if size is None else row(math.prod(size))
                add(f"end{level} = Add ({begin}, {area})")
            end = f"end{level}" if after < 0 else row(after)
            add(f"image{level} = Slice (value, {begin}, {end}, {row(1)})")
            add(f"turned{level} = Transpose <perm = [0, 2, 3, 1]> (image{level})")
            shape = f"shape{level}"
            if isinstance(channels, int) and size is not None:  # of which all opsets' inference knows the rank
                shape = row(-1, channels, *size)
            else:
                add(f"shape{level} = Concat <axis = 0> ({row(-1)}, channels, {lengths_name})")
            add(f"X{level} = Reshape (turned{level}, {shape})")
            if points:
                add(f"some{level} = Slice (grids, {row(first)}, {row(first := first + points[level])}, {row(3)})")
            else:
                add(f"level{level} = Constant <value = int64 {{{level}}}> ()")
                add(f"some{level} = Gather <axis = 3> (grids, level{level})")
            add(f"flat{level} = Transpose <perm = [0, 2, 1, 3, 4]> (some{level}) of{level} = Shape (flat{level})")
            add(f"count{level} = Gather (of{level}, {row(3)}) both{level} = Mul (queries, count{level})")
            positions = [f"both{level}"] if r == 1 else ["queries", f"count{level}", *[row(1)] * (r - 2)]
            add(f"place{level} = Concat <axis = 0> ({', '.join([row(-1), *positions, row(r)])})")
            add(f"grid{level} = Reshape (flat{level}, place{level})")
            samples.append(f"sample{level}")
            sampled = samples[-1] if r == 2 else f"raw{level}"
            add(f'{sampled} = GridSample <mode = "{mode}", align_corners = {align_corners}> (X{level}, grid{level})')
            if r != 2:
                add(f"to{level} = Concat <axis = 0> ({row(0)}, {row(0)}, queries, count{level})")
                add(f"sample{level} = Reshape (raw{level}, to{level})")
        add(f"each = Reshape (weights, {row(0, 0, 0, -1)}) by = Transpose <perm = [0, 2, 1, 3]> (each)")
        add(f"of_by = Shape (by) ends = Gather (of_by, {row(2, 3)})")
        add(f"to = Concat <axis = 0> ({row(-1)}, {row(1)}, ends) weight = Reshape (by, to)")
        add(f"all_samples = Concat <axis = 3> ({', '.join(samples)}) product = Mul (all_samples, weight)")
        axes = "axes = [-1], " if opset < _AXES_AS_INPUT else ""
        add(f"total = ReduceSum <{axes}keepdims = 0> (product{'' if axes else f', {row(-1)}'})")
        add(f"width = Mul (heads, channels) wide = Concat <axis = 0> ({row(-1)}, width, queries)")
        add("whole = Reshape (total, wide) by_query = Transpose <perm = [0, 2, 1]> (whole)")
        add(f"split = Concat <axis = 0> ({row(0)}, queries, heads, channels) by_head = Reshape (by_query, split)")

    def _row(self, *numbers: int) -> str:
        """The name of a constant row of integers."""
        numbers = tuple(map(int, numbers))
        name = f"row_{'_'.join(map(str, numbers))}".replace("-", "m")
        line = f"{name} = Constant <value = int64[{len(numbers)}] {{{', '.join(map(str, numbers))}}}> ()"
        if line not in self.lines:
            self.lines.append(line)
        return name
