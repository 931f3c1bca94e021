"""Models of deformable attention in every form, with feeds: what exporters and packages write."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from ort_gridsample import spec
from support.attention_models import FORMS as EXPORTED
from support.attention_models import Arrays, form, form_feeds, operands
from support.cases import dtype_of
from support.forms import Form
from support.models import function_of, parsed
from support.oracle_evaluator import TENSORRT
from support.provider_nodes import in_both_branches

MMCV = "mmdeploy.MMCVMultiScaleDeformableAttention"
MICROSOFT = "com.microsoft.MultiScaleDeformableAttention"
OWN = "ort_gridsample.DeformableAttention"
COMPILED = "ort_gridsample.compiled.DeformableAttention"
BEVFORMER = ("MultiScaleDeformableAttnTRT", "bev.MultiScaleDeformableAttnTRT2")
#: The nodes of other packages.
FOREIGN = (TENSORRT, f"trt.plugins.{TENSORRT}", MMCV, MICROSOFT, *BEVFORMER)


# What PyTorch's exporters write


def exported(name: str, n: int = 2, q: int = 5) -> Form:
    return Form(form(name), form_feeds(name, n, q))


def with_nearest_level(name: str) -> Form:
    """Return an exported form whose second level is sampled in another mode."""
    model = form(name)
    _, nearest, _ = (node for node in model.graph.node if node.op_type == "GridSample")
    next(attribute for attribute in nearest.attribute if attribute.name == "mode").s = b"nearest"
    return Form(model, form_feeds(name))


def with_outputs(name: str, op_type: str, attentions: int) -> Form:
    """Return an exported form with the output of its last ``op_type`` as a further output."""
    model = form(name)
    output = [node.output[0] for node in model.graph.node if node.op_type == op_type][-1]
    model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, None))
    return Form(model, form_feeds(name), attentions)


def in_function(name: str) -> Form:
    model = form(name)
    names = [value.name for value in model.graph.input]
    node = helper.make_node("attend", names, [model.graph.output[0].name], domain="local")
    graph = helper.make_graph([node], "g", model.graph.input, model.graph.output)
    imports = [*model.opset_import, helper.make_opsetid("local", 1)]
    functions = [function_of(model, "local", "attend")]
    calling = helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions)
    return Form(calling, form_feeds(name))


def in_branch(name: str) -> Form:
    """Return a model of an If without the attention in its other branch."""
    model = form(name)
    inputs = [value.name for value in model.graph.input]
    other = parser.parse_graph(f"other () => (float[] Z) {{ Z = ReduceMax ({inputs[-1]}) }}")
    signature = [*model.graph.input]
    del model.graph.input[:]
    node = helper.make_node(
        "If", ["choice"], ["Y_of_if"], then_branch=model.graph, else_branch=other
    )
    choice = helper.make_tensor_value_info("choice", TensorProto.BOOL, [])
    Y = helper.make_tensor_value_info("Y_of_if", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "outer", [*signature, choice], [Y])
    outer = helper.make_model(graph, opset_imports=model.opset_import, ir_version=8)
    return Form(outer, form_feeds(name) | {"choice": np.array(True)})


def in_branches(name: str, condition: bool) -> Form:
    model = in_both_branches(form(name))
    return Form(model, form_feeds(name) | {"condition": np.array(condition)}, attentions=2)


# Variants of one model

#: The nodes of an attention. There are two batches, two levels of 2×3 and 2×2 pixels, two heads of
#: four channels, three queries and two points.
LINES = {
    "grids": "twice = Mul (locations, two) grids = Sub (twice, one)",
    "images": "v0, v1 = Split <axis = 1> (value, areas)",
    "flat": "f0 = Reshape (v0, flat0) f1 = Reshape (v1, flat1)",
    "turned": "t0 = Transpose <perm = [0, 2, 1]> (f0) t1 = Transpose <perm = [0, 2, 1]> (f1)",
    "X": "X0 = Reshape (t0, shape0) X1 = Reshape (t1, shape1)",
    "levels": "g0 = Gather <axis = 3> (grids, i0) g1 = Gather <axis = 3> (grids, i1)",
    "heads first": "u0 = Transpose <perm = [0, 2, 1, 3, 4]> (g0) "
    "u1 = Transpose <perm = [0, 2, 1, 3, 4]> (g1)",
    "G": "G0 = Reshape (u0, grid_shape) G1 = Reshape (u1, grid_shape)",
    "samples": "S0 = GridSample (X0, G0) S1 = GridSample (X1, G1)",
    "new axis": "E0 = Unsqueeze (S0, three) E1 = Unsqueeze (S1, three)",
    "stack": "E = Concat <axis = 3> (E0, E1) all = Reshape (E, all_shape)",
    "weights": "w = Transpose <perm = [0, 2, 1, 3, 4]> (weights) W = Reshape (w, W_shape)",
    "sum": "product = Mul (all, W) total = ReduceSum <keepdims = 0> (product, last)",
    "out": "wide = Reshape (total, wide_shape) Y = Transpose <perm = [0, 2, 1]> (wide)",
}
_INT64_CONSTANTS = {
    "areas": (6, 4),
    "flat0": (2, 6, 8),
    "flat1": (2, 4, 8),
    "shape0": (4, 4, 2, 3),
    "shape1": (4, 4, 2, 2),
    "grid_shape": (4, 3, 2, 2),
    "all_shape": (4, 4, 3, 4),
    "W_shape": (4, 1, 3, 4),
    "W_shape_one_level": (4, 1, 3, 2),
    "W_shape_one_query": (4, 1, 1, 4),
    "wide_shape": (2, 8, 3),
    "three": (3,),
    "last": (-1,),
    "c0": (0,),
    "c1": (1,),
    "c2": (2,),
    "c6": (6,),
    "c10": (10,),
    "minus4": (-4,),
}
_CONSTANTS = ", ".join(
    [
        "float two = {2}",
        "float one = {1}",
        "float other = {3}",
        "int64 i0 = {0}",
        "int64 i1 = {1}",
        *(
            f"int64[{len(row)}] {name} = {{{', '.join(map(str, row))}}}"
            for name, row in _INT64_CONSTANTS.items()
        ),
    ]
)
_OUTPUT = "float[2, 3, 8] Y"


def variant(
    changes: Mapping[str, str] | None = None,
    outputs: str = _OUTPUT,
    queries_of_weights: int = 3,
    kind: str = "float32",
    attentions: int = 1,
    value_shape: tuple[int, ...] = (2, 10, 2, 4),
) -> Form:
    """Return the model of ``LINES`` with some of them changed.

    Args:
        changes: the new text of some lines.
        outputs: the text of the model's outputs.
        queries_of_weights: 3, or 1 if all queries have the same weights.
        kind: the type of all floats.
        attentions: as of the form.
        value_shape: the shape of the value.
    """
    inputs = ", ".join(
        [
            f"float{[*value_shape]} value",
            "float[2, 3, 2, 2, 2, 2] locations",
            f"float[2, {queries_of_weights}, 2, 2, 2] weights",
        ]
    )
    nodes = " ".join({**LINES, **(changes or {})}.values())
    text = f"g ({inputs}) => ({outputs}) <{_CONSTANTS}> {{ {nodes} }}"
    written_kind = {"float32": "float", "float64": "double"}[kind]
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 20]> {text}'.replace("float", written_kind)
    )
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"  # onnxruntime 1.20 derives the names of new nodes from Slices'
    rng = np.random.default_rng(0)
    feeds = {
        "value": rng.normal(size=value_shape),
        "locations": rng.uniform(-0.2, 1.2, (2, 3, 2, 2, 2, 2)),
        "weights": rng.random((2, queries_of_weights, 2, 2, 2)),
    }
    feeds = {name: array.astype(kind) for name, array in feeds.items()}
    return Form(model, feeds, attentions, 1e-13 if kind == "float64" else 1e-5)


#: A sample of a grid that AffineGrid computes.
COMPUTED_GRID = {
    "samples": "z = Constant <value_ints = [4, 4, 3, 2]> () "
    "n = Constant <value_ints = [4, 2, 3]> () "
    "T = ConstantOfShape <value = float[1] {0.2}> (n) "
    "A0 = AffineGrid (T, z) "
    "S0 = GridSample (X0, A0) S1 = GridSample (X1, G1)"
}
_ONE_AXIS_MORE = "l0 = Unsqueeze (g0, c0) s0 = Squeeze (l0, c0) "
#: The name of a variant -> the lines that differ.
CHANGES: dict[str, dict[str, str]] = {
    "as exporters write it": {},
    "weights first": {"sum": LINES["sum"].replace("all, W", "W, all")},
    "slices": {"images": "v0 = Slice (value, c0, c6, c1) v1 = Slice (value, c6, c10, c1)"},
    "grids are an input": {"grids": "grids = Identity (locations)"},
    "Unsqueeze and Squeeze": {
        "heads first": _ONE_AXIS_MORE + LINES["heads first"].replace("g0", "s0")
    },
    "Squeeze without axes": {
        "heads first": _ONE_AXIS_MORE.replace("(l0, c0)", "(l0)")
        + LINES["heads first"].replace("g0", "s0")
    },
    "Gather that keeps the axis of levels": {
        "levels": "h0 = Gather <axis = 3> (grids, c0) h1 = Gather <axis = 3> (grids, c1) "
        "g0 = Squeeze (h0, three) g1 = Squeeze (h1, three)"
    },
    "Gather of heads": {"levels": LINES["levels"].replace("3", "2")},
    "Split of heads": {
        "levels": "h0, h1 = Split <axis = 2, num_outputs = 2> (grids) "
        "g0 = Squeeze (h0, c2) g1 = Squeeze (h1, c2)"
    },
    "slices from the end": {
        "images": "v0 = Slice (value, c0, c6, c1) v1 = Slice (value, minus4, c10, c1)"
    },
    "slices with steps": {
        "images": "v0 = Slice (value, c0, c6, c1, c1) v1 = Slice (value, c2, c10, c1, c2)"
    },
    "factor first": {"grids": "twice = Mul (two, locations) grids = Sub (twice, one)"},
    "negated grids": {"grids": "twice = Mul (locations, two) grids = Sub (one, twice)"},
    "another scale": {"grids": "twice = Mul (locations, other) grids = Sub (twice, one)"},
    "levels in another order": {"stack": LINES["stack"].replace("(E0, E1)", "(E1, E0)")},
    "computed images": {"X": "r = Relu (t0) X0 = Reshape (r, shape0) X1 = Reshape (t1, shape1)"},
    "computed weights": {"weights": LINES["weights"].replace("W =", "a =") + " W = Abs (a)"},
    "coordinates before points and levels": {
        "levels": LINES["levels"].replace("3", "5"),
        "heads first": LINES["heads first"].replace("3, 4", "4, 3"),
    },
    "one level": {
        "new axis": "",
        "stack": "all = Identity (S0)",
        "weights": "h = Gather <axis = 3> (weights, i0) "
        "w = Transpose <perm = [0, 2, 1, 3]> (h) W = Reshape (w, W_shape_one_level)",
    },
    "border": {
        "samples": 'S0 = GridSample <padding_mode = "border"> (X0, G0) S1 = GridSample (X1, G1)'
    },
    "two alignments": {
        "samples": "S0 = GridSample <align_corners = 1> (X0, G0) S1 = GridSample (X1, G1)"
    },
    "aligned": {
        "samples": LINES["samples"].replace("GridSample", "GridSample <align_corners = 1>")
    },
    "Relu of a sample": {"new axis": "r = Relu (S1) " + LINES["new axis"].replace("S1", "r")},
    "computed grid": COMPUTED_GRID,
    "sum over a positive axis": {"sum": LINES["sum"].replace("last", "three")},
}
_ONE_QUERY = {"weights": LINES["weights"].replace("W_shape", "W_shape_one_query")}
_BY_HEAD = {"out": "wide = Reshape (total, wide_shape) Y = Identity (wide)"}
_SEPARATE_HEADS = {
    "out": "h = Constant <value_ints = [2, 2, 4, 3]> () separate = Reshape (total, h) "
    "Y = Transpose <perm = [0, 3, 1, 2]> (separate)"
}
_NEAREST = {"samples": LINES["samples"].replace("GridSample", 'GridSample <mode = "nearest">')}
_MEAN = {"sum": LINES["sum"].replace("ReduceSum", "ReduceMean")}
#: Outputs besides Y that are operands of the attention, or computed from them.
_READ_OPERANDS = {
    "turned value": "float[2, 8, 6] t0",
    "rearranged weights": "float[4, 1, 3, 4] W",
    "grids": "float[2, 3, 2, 2, 2, 2] grids",
    "sum": "float[4, 4, 3] total",
}
#: Outputs besides Y that a single node does not compute.
_READ_PRODUCTS = {
    "stacked samples": "float[4, 4, 3, 2, 2] E",
    "products": "float[4, 4, 3, 4] product",
}


def of_two_types(elem_type: int) -> Form:
    """Return the variant with a second grid of another type."""
    lines = f"""
        G0 = Reshape (u0, grid_shape)
        uncast = Reshape (u1, grid_shape)
        G1 = Cast <to = {elem_type}> (uncast)"""
    tolerance = {TensorProto.FLOAT16: 2e-3, TensorProto.DOUBLE: 1e-5}[elem_type]
    model = variant({"G": lines})
    return Form(model.model, model.feeds, tolerance=tolerance)


def of_fed_image_shapes() -> Form:
    """Return the variant that reads the shapes of its images from inputs."""
    with_constants = variant()
    model, feeds = with_constants.model, dict(with_constants.feeds)
    for tensor in list(model.graph.initializer):
        if tensor.name in ("shape0", "shape1"):
            feeds[tensor.name] = numpy_helper.to_array(tensor)
            model.graph.initializer.remove(tensor)
            info = helper.make_tensor_value_info(tensor.name, TensorProto.INT64, tensor.dims)
            model.graph.input.append(info)
    return Form(model, feeds)


def of_images(batches: int, queries: int) -> Form:
    """Return an attention without a value of all levels, of any batch and number of queries."""
    model = parsed("""
        g (float[N, 4, H, W] X0, float[N, 4, h, w] X1, float[N, Q, 2, 2] G0, float[N, Q, 2, 2] G1,
           float[N, 1, Q, 4] weights) => (float[N, 4, Q] Y) {
            S0 = GridSample (X0, G0)
            S1 = GridSample (X1, G1)
            samples = Concat <axis = 3> (S0, S1)
            n = Shape <start = 0, end = 1> (X0)
            one = Constant <value_ints = [1]> ()
            q = Shape <start = 1, end = 2> (G0)
            four = Constant <value_ints = [4]> ()
            shape = Concat <axis = 0> (n, one, q, four)
            W = Reshape <allowzero = 1> (weights, shape)
            product = Mul (samples, W)
            last = Constant <value_ints = [-1]> ()
            Y = ReduceSum <keepdims = 0> (product, last)
        }""")
    rng = np.random.default_rng(0)
    shapes = {
        "X0": (batches, 4, 2, 3),
        "X1": (batches, 4, 2, 2),
        "G0": (batches, queries, 2, 2),
        "G1": (batches, queries, 2, 2),
        "weights": (batches, 1, queries, 4),
    }
    feeds = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    return Form(model, feeds)


#: B = 2, S = 20 + 6, H = 3, D = 4, Q = 7, and 3 points on each level.
_OF_GRIDS = """
    agraph (TYPE[2, 26, 12] value, GRID[6, 7, 3, 2] g0, GRID[6, 7, 3, 2] g1, TYPE[6, 1, QW, 6] w)
    => (TYPE[2, 7, 12] Y)
    <int64[2] ends = {20, 6}, int64[4] s0 = {6, 4, 4, 5}, int64[4] s1 = {6, 4, 2, 3},
     int64[3] flat = {2, 12, 7}, int64[1] last = {-1}> {
        V = Transpose <perm = [0, 2, 1]> (value)
        v0, v1 = Split <axis = 2> (V, ends)
        X0 = Reshape (v0, s0)
        X1 = Reshape (v1, s1)
        Z0 = GridSample (X0, g0)
        Z1 = GridSample (X1, g1)
        Z = Concat <axis = -1> (Z0, Z1)
        P = Mul (Z, w)
        S = ReduceSum <keepdims = 0> (P, last)
        F = Reshape (S, flat)
        Y = Transpose <perm = [0, 2, 1]> (F)
    }"""
_TEXT_TYPES = {"float32": "float", "float64": "double"}


def of_grids(value_type: str, grid_type: str, weighted_queries: int, tolerance: float) -> Form:
    """Return an attention that has grids, and weights (B·H, 1, Q, P) or those of one query."""
    text = _OF_GRIDS.replace("TYPE", _TEXT_TYPES.get(value_type, value_type))
    text = text.replace("GRID", _TEXT_TYPES.get(grid_type, grid_type))
    rng = np.random.default_rng(0)
    feeds = {
        "value": rng.normal(size=(2, 26, 12)).astype(dtype_of(value_type)),
        "g0": rng.uniform(-1.2, 1.2, (6, 7, 3, 2)).astype(dtype_of(grid_type)),
        "g1": rng.uniform(-1.2, 1.2, (6, 7, 3, 2)).astype(dtype_of(grid_type)),
        "w": rng.random((6, 1, weighted_queries, 6)).astype(dtype_of(value_type)),
    }
    model = parsed(text.replace("QW", str(weighted_queries)))
    return Form(model, feeds, tolerance=tolerance)


#: One level, the shape of whose image is computed in a run.
_COMPUTED_IMAGE_SHAPE = """
    agraph (float[2, S, 12] value, float[pixels] data, int64[rank] shape, int64[1] images,
            int64[1] channels, float[6, 7, 3, 2] grid, float[6, 1, 7, 3] w) => (float[2, 7, 12] Y)
    <int64[1] six = {6}, int64[1] four = {4}, int64[4] joined = {6, 4, 7, 3},
     int64[3] flat = {2, 12, 7}, int64[1] last = {-1}, float[1, 1, height, width] picture> {
        picture = Reshape (data, shape)
        lengths = Shape <start = 2> (picture)
        image_shape = Concat <axis = 0> (IMAGES, CHANNELS, lengths)
        V = Transpose <perm = [0, 2, 1]> (value)
        X = Reshape (V, image_shape)
        Z = GridSample (X, grid)
        R = Reshape (Z, joined)
        P = Mul (R, w)
        S = ReduceSum <keepdims = 0> (P, last)
        F = Reshape (S, flat)
        Y = Transpose <perm = [0, 2, 1]> (F)
    }"""


def of_computed_image_shape(images: str, channels: str, attentions: int) -> Form:
    """Return a model that reads the first two lengths of its image from these values.

    They are constants, ``six`` and ``four``, or inputs, ``images`` and ``channels``.
    """
    text = _COMPUTED_IMAGE_SHAPE.replace("IMAGES", images).replace("CHANNELS", channels)
    rng = np.random.default_rng(0)
    shapes = {"value": (2, 20, 12), "data": (20,), "grid": (6, 7, 3, 2), "w": (6, 1, 7, 3)}
    feeds = {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    feeds |= {"shape": np.array([1, 1, 4, 5]), "images": np.array([6]), "channels": np.array([4])}
    return Form(parsed(text), feeds, attentions)


def split_of_levels(name: str) -> tuple[onnx.ModelProto, onnx.NodeProto, onnx.TensorProto]:
    """Return an exported form, the Split of the pixels of all levels, and its constant lengths."""
    model = form(name)
    del model.graph.value_info[:]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = node.attribute[0].t
    for node in model.graph.node:
        if node.op_type == "Split" and len(node.input) > 1:
            tensor = constants[node.input[1]]
            if len({*numpy_helper.to_array(tensor).tolist()}) > 1:  # of pixels, not of points
                return model, node, tensor
    raise AssertionError(name)


def of_fed_split(name: str) -> Form:
    """Return an exported form whose Split of levels has lengths that are fed."""
    model, split, tensor = split_of_levels(name)
    lengths = numpy_helper.to_array(tensor)
    split.input[1] = "lengths"
    info = helper.make_tensor_value_info("lengths", TensorProto.INT64, lengths.shape)
    model.graph.input.append(info)
    return Form(model, form_feeds(name) | {"lengths": lengths})


# Nodes of other packages, and of this one


@dataclass(frozen=True)
class Node:
    """A model of one attention node.

    Attributes:
        op_type: its domain and operator.
        shapes: what the inputs declare: ``static`` shapes, ``dynamic`` ones, ``batch`` if only
            batches and queries are dynamic, or ``fed`` if the lengths of levels are inputs too.
        opset: that of the model.
        lengths: the lengths of the levels.
        starts: the first pixel of each level, by default after the level before.
        n: the number of batches.
        q: the number of queries.
        h: the number of heads.
        p: the number of points of a level.
        types: input name -> its type, by default float32.
        wrong: the name of an input and a shape that it has instead.
        integers: the type of lengths and starts, by default that of the package's own exporter.
    """

    op_type: str
    shapes: str = "static"
    opset: int = 17
    lengths: tuple[tuple[int, ...], ...] = ((4, 6), (2, 3))
    starts: tuple[int, ...] | None = None
    n: int = 2
    q: int = 5
    h: int = 4
    p: int = 4
    types: tuple[tuple[str, str], ...] = ()
    wrong: tuple[str, tuple[int, ...]] | None = None
    integers: str = ""

    @property
    def is_offset(self) -> bool:
        """Whether the node has offsets in pixels, as BEVFormer's."""
        return "AttnTRT" in self.op_type

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs besides the lengths."""
        if self.is_offset:
            return ("value", "reference_points", "sampling_offsets", "logits")
        return ("value", "sampling_locations", "attention_weights")

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        levels = len(self.lengths)
        axes = len(self.lengths[0]) if self.lengths else 2
        heads = (self.n, self.q, self.h)
        shapes = {
            "value": (self.n, sum(map(math.prod, self.lengths)), self.h, 3),
            "sampling_locations": (*heads, levels, self.p, axes),
            "attention_weights": (*heads, levels, self.p),
            "reference_points": (self.n, self.q, 1, 4),
            "sampling_offsets": (*heads, levels * self.p * 2),
            "logits": (*heads, levels * self.p),
        }
        shapes |= [self.wrong] if self.wrong else []
        return {name: shapes[name] for name in self.names}

    @property
    def level_arrays(self) -> Arrays:
        """The lengths of levels and their first pixels, as the node reads them."""
        integers = np.dtype(self.integers or ("int32" if "TRT" in self.op_type else "int64"))
        axes = len(self.lengths[0]) if self.lengths else 2
        lengths = np.array(self.lengths, integers).reshape(-1, axes)
        if self.op_type == OWN:
            return {"lengths": np.insert(lengths, 0, self.p, axis=1)}
        areas = lengths.prod(1)
        starts = np.cumsum(areas) - areas if self.starts is None else np.array(self.starts)
        arrays = {"lengths": lengths}
        return arrays if self.is_offset else arrays | {"starts": starts.astype(integers)}

    @property
    def feeds(self) -> Arrays:
        rng = np.random.default_rng(0)
        feeds = {name: rng.uniform(-0.2, 1.2, shape) for name, shape in self.input_shapes.items()}
        if "sampling_offsets" in feeds:
            feeds["sampling_offsets"] = feeds["sampling_offsets"] * 6 - 3
        types = dict(self.types)
        feeds = {
            name: array.astype(dtype_of(types.get(name, "float32")))
            for name, array in feeds.items()
        }
        return feeds | (self.level_arrays if self.shapes == "fed" else {})

    @property
    def model(self) -> onnx.ModelProto:
        types = dict(self.types)
        inputs = []
        for name, shape in self.input_shapes.items():
            known = {"static": range(6), "batch": range(2, 6)}.get(self.shapes, ())
            if self.shapes == "batch" and name == "value":
                known = range(1, 6)
            dims = ", ".join(
                str(length) if axis in known else f"{name}{axis}"
                for axis, length in enumerate(shape)
            )
            kind = types.get(name, "float32")
            inputs.append(f"{_TEXT_TYPES.get(kind, kind)}[{dims}] {name}")
        levels = self.level_arrays
        if self.shapes == "fed":
            inputs += [f"{array.dtype}{[*array.shape]} {name}" for name, array in levels.items()]
        domain, _, _ = self.op_type.rpartition(".")
        imports = f', "{domain}": 1' if domain else ""
        operands = ", ".join(["value", *levels, *self.names[1:]])
        kind = types.get("value", "float32")
        model = parser.parse_model(f"""
            <ir_version: 8, opset_import: ["": {self.opset}{imports}]>
            g ({", ".join(inputs)}) => ({_TEXT_TYPES.get(kind, kind)}[] Y) {{
                Y = {self.op_type} ({operands}) }}""")
        model.graph.node[0].name = "attention"
        if self.shapes != "fed":
            model.graph.initializer.extend(
                numpy_helper.from_array(array, name) for name, array in levels.items()
            )
        return model


def node_form(
    op_type: str,
    shapes: str = "static",
    opset: int = 17,
    tolerance: float = 1e-5,
    **properties: Any,
) -> Form:
    node = Node(op_type, shapes, opset, **properties)
    attentions = None if op_type == OWN else 1
    return Form(node.model, node.feeds, attentions, tolerance)


def changed_feeds(form: Form, **arrays: np.ndarray) -> Form:
    """Return the form with other inputs."""
    return Form(form.model, form.feeds | arrays, form.attentions, form.tolerance)


def reference_softmax() -> onnx.NodeProto:
    return helper.make_node("Softmax", ["logits"], ["weights"], axis=-1)


def behind_softmax() -> Form:
    """Return BEVFormer's node behind a Softmax, as releases before its own one wrote it."""
    node = Node(BEVFORMER[0])
    model = node.model
    before = parser.parse_graph("""
        g (float[2, 5, 4, 8] logits) => (float[2, 5, 4, 8] weights) {
            s = Softmax <axis = -1> (logits)
            f = Flatten (s)
            shape = Constant <value_ints = [2, 5, 4, 8]> ()
            weights = Reshape (f, shape) }""")
    attention = model.graph.node.pop()
    attention.input[4] = "weights"
    model.graph.node.extend([*before.node, attention])
    return Form(model, node.feeds)


def in_if_behind_softmax() -> Form:
    """Return BEVFormer's node in an If, behind a Softmax of the main graph."""
    node = Node(BEVFORMER[0])
    model = node.model
    attention = model.graph.node.pop()
    attention.input[4] = "flat"
    attention.output[0] = "out"
    body = parser.parse_graph("body () => (float[] out) { flat = Identity (weights) }")
    body.node.append(attention)
    yes = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
    choose = helper.make_node("If", ["yes"], ["Y"], then_branch=body, else_branch=body)
    model.graph.node.extend([reference_softmax(), yes, choose])
    return Form(model, node.feeds, attentions=2)


def as_function(model: onnx.ModelProto) -> None:
    """Move the graph of a model of one node to the function ``local.attend``, in place."""
    graph = model.graph
    tensors = [helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer]
    inputs = [value.name for value in graph.input]
    nodes = [*tensors, *graph.node]
    function = helper.make_function("local", "attend", inputs, ["Y"], nodes, model.opset_import)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    del graph.node[:], graph.initializer[:]


def in_function_behind_softmax() -> Form:
    """Return BEVFormer's node in a function, behind a Softmax of its caller."""
    node = Node(BEVFORMER[0])
    model = node.model
    as_function(model)
    inputs = [value.name for value in model.graph.input]
    call = helper.make_node("attend", [*inputs[:-1], "weights"], ["Y"], domain="local")
    model.graph.node.extend([reference_softmax(), call])
    return Form(model, node.feeds)


def in_function_of_two_types(op_type: str) -> Form:
    """Return a node in a function that is called in single and in double precision."""
    node = Node(op_type)
    model = node.model
    as_function(model)
    inputs = [value.name for value in model.graph.input]
    wide = [helper.make_node("Cast", [i], [f"{i}_w"], to=TensorProto.DOUBLE) for i in inputs]
    calls = [
        helper.make_node("attend", inputs, ["Y"], domain="local"),
        helper.make_node("attend", [f"{name}_w" for name in inputs], ["Z"], domain="local"),
    ]
    model.graph.node.extend([*wide, *calls])
    model.graph.output.append(helper.make_tensor_value_info("Z", TensorProto.DOUBLE, None))
    return Form(model, node.feeds, attentions=2)


#: Signatures of two values, and the calls of a function that has an attention node.
_DIFFERENT_CALLS = {
    "types": """
        (float[1,16,2,4] v, int64[2,3] l, float[1,5,2,3,2] s, float[1,5,2,3] w,
         double[1,16,2,4] v2, int64[2,3] l2, double[1,5,2,3,2] s2, double[1,5,2,3] w2)
        => (float[1,5,8] y, double[1,5,8] z)""",
    "spatial axes": """
        (float[1,8,2,4] v, int64[2,3] l, float[1,5,2,3,2] s, float[1,5,2,3] w,
         float[1,26,2,4] v2, int64[2,4] l2, float[1,5,2,3,3] s2, float[1,5,2,3] w2)
        => (float[1,5,8] y, float[1,5,8] z)""",
}


def own_in_function_of_different_calls(difference: str) -> Form:
    model = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 20, "ort_gridsample": 1, "my": 1]>
        g {_DIFFERENT_CALLS[difference]} {{
            y = my.attend (v, l, s, w)
            z = my.attend (v2, l2, s2, w2) }}
        <domain: "my", opset_import: ["": 20, "ort_gridsample": 1]>
        attend (v, l, s, w) => (y) {{
            y = {OWN} <points = "2 1", align_corners = 0> (v, l, s, w) }}""")
    rng = np.random.default_rng(0)
    levels = np.array([[2, 3, 4, 2], [1, 2, 2, 1]])
    feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = rng.uniform(0, 1, shape).astype(dtype)
    feeds |= {name: levels[:, : feeds[name].shape[1]] for name in ("l", "l2")}
    for name in ("v", "v2"):
        rows = feeds["l" + name[1:]][:, 1:]
        feeds[name] = np.resize(feeds[name], (1, int(rows.prod(1).sum()), 2, 4))
    for value in model.graph.input:
        if value.name in ("v", "v2"):
            value.type.tensor_type.shape.dim[1].dim_value = feeds[value.name].shape[1]
    return Form(model, feeds, attentions=None)


def own(
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    are_ranks_known: bool = False,
    ranks: Mapping[str, int] | None = None,
    has_constant_levels: bool = True,
    queries_of_weights: int = 5,
    attributes: str = 'points = "4 4"',
    op_type: str = OWN,
) -> Form:
    """Return a model of this package's node, whose inputs have these shapes and known ranks."""
    node = Node(OWN)
    feeds = node.feeds
    feeds["attention_weights"] = feeds["attention_weights"][:, :queries_of_weights]
    levels = node.level_arrays["lengths"]
    feeds |= {name: feeds[name].reshape(shape) for name, shape in (shapes or {}).items()}
    values = ", ".join(map(str, levels.flat))
    constant = f"<int64[2,3] levels = {{{values}}}>" if has_constant_levels else ""
    levels_input = "" if has_constant_levels else "int64[2,3] levels, "
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17, "{op_type.rpartition(".")[0]}": 1]>
        g ({levels_input}float[] value, float[] sampling_locations, float[] attention_weights)
        => (float[] Y) {constant}
        {{ Y = {op_type} <{attributes}>
            (value, levels, sampling_locations, attention_weights) }}""")
    model.graph.node[0].name = "attention"
    for value in model.graph.input:
        tensor = value.type.tensor_type
        if value.name == "levels":
            continue
        tensor.ClearField("shape")
        known = {value.name: feeds[value.name].ndim} if are_ranks_known else ranks
        if known:
            for axis in range(known[value.name]):
                tensor.shape.dim.add(dim_param=f"{value.name}{axis}")
    if not has_constant_levels:
        feeds["levels"] = levels
    return Form(model, feeds, attentions=None)


def compiled_without_queries(layout: str) -> Form:
    """Return a model of a compiled op with this layout of its output, which has no elements."""
    attributes = f'points = "4 4", output_layout = "{layout}"'
    form = own(are_ranks_known=True, attributes=attributes, op_type=COMPILED)
    names = ("sampling_locations", "attention_weights")
    return changed_feeds(form, **{name: form.feeds[name][:, :0] for name in names})


#: The shapes of weights and locations that a node of this package accepts, too.
OWN_SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "as mmcv": {},
    "merged weights": {"attention_weights": (2, 5, 4, 8)},
    "merged locations": {"sampling_locations": (2, 5, 4, 8, 2)},
    "merged axes": {"sampling_locations": (2, 5, 4, 8, 2), "attention_weights": (2, 5, 4, 8)},
    "weights in other rows": {
        "sampling_locations": (2, 5, 4, 8, 2),
        "attention_weights": (2, 5, 4, 4, 2),
    },
}


def own_of_type(levels: str, kind: str, locations: str, align: bool, channels: int = 4) -> Form:
    """Return a node of this package with these types, and locations that are not finite."""
    rows = LEVELS_OF_ANY_RANK[levels]
    value, places, weights = operands(rows, kind, locations, d=channels)
    types = [_TEXT_TYPES.get(name, name) for name in (kind, locations, kind)]
    is_bfloat16 = "bfloat16" in types
    inputs, casts = [], []
    for name, type_, array in zip(
        ("value", "at", "by"), types, (value, places, weights), strict=True
    ):
        written = "float" if type_ == "bfloat16" else type_
        inputs.append(f"{written}{[*array.shape]} {name}")
        to = TensorProto.DataType.Value(type_.upper())
        casts.append(f"{name}_cast = Cast <to = {to}> ({name})")
    points = " ".join(map(str, rows[:, 0]))
    values = ", ".join(map(str, rows.flat))
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {22 if is_bfloat16 else 17}, "ort_gridsample": 1]>
        g ({", ".join(inputs)}) => (float[] Y) <int64{[*rows.shape]} levels = {{{values}}}> {{
            {" ".join(casts)}
            narrow = {OWN} <align_corners = {int(align)}, points = "{points}">
                (value_cast, levels, at_cast, by_cast)
            Y = Cast <to = {TensorProto.DOUBLE if kind == "float64" else 1}> (narrow) }}""")
    model.graph.output[0].type.tensor_type.elem_type = (
        TensorProto.DOUBLE if kind == "float64" else TensorProto.FLOAT
    )
    feeds = {"value": value, "at": places, "by": weights}
    feeds = {
        name: array.astype(np.float32) if array.dtype == dtype_of("bfloat16") else array
        for name, array in feeds.items()
    }
    relative = max(TOLERANCES[kind], 2e-5 if locations == "float32" else 0)
    return Form(model, feeds, None, tolerance=relative * 4)


#: The levels of :func:`own_of_type`.
LEVELS_OF_ANY_RANK = {
    "rows": np.array([[3, 6]]),
    "planes": np.array([[2, 5, 7], [3, 1, 4], [1, 3, 1]]),
    "volumes": np.array([[2, 4, 3, 5], [2, 1, 2, 2]]),
}
#: The rounding error of attention in each type, relative to the largest output, or to 1.
TOLERANCES = {"float32": 2e-6, "float64": 1e-13, "float16": 2e-3, "bfloat16": 2e-2}


def with_weight(form: Form, *weights: float) -> Form:
    """Return the form with weights that are not finite, at a point of the first levels."""
    weights_of_all = form.feeds["attention_weights"].copy()
    weights_of_all[0, 0, 0, : len(weights), 0] = weights
    return changed_feeds(form, attention_weights=weights_of_all)


Build = Callable[[], Form]

DYNAMIC = [name for name in EXPORTED if "static" not in name]
STACKED = [name for name in EXPORTED if name.startswith(("stacked", "concatenated"))]
#: A name for each exporter of the smallest model.
SMALL = "single/static-dynamo"
INNER = "concatenated/static-dynamo"

EXPORTED_FORMS: dict[str, Build] = {
    **{name: partial(exported, name) for name in EXPORTED},
    **{
        f"{name}, other lengths": partial(exported, name, 3, 8 if "queries" in name else 5)
        for name in DYNAMIC
    },
    **{f"{name}, nearest level": partial(with_nearest_level, name) for name in STACKED},
    **{
        f"{INNER}, {op_type} is an output": partial(with_outputs, INNER, op_type, attentions)
        for op_type, attentions in (("GridSample", 1), ("Concat", 0), ("ReduceSum", 1), ("Sub", 1))
    },
    "function": partial(in_function, "stacked/static-dynamo"),
    "branch": partial(in_branch, "stacked/static-dynamo"),
    "branches, then": partial(in_branches, "concatenated/queries-torchscript", True),
    "branches, else": partial(in_branches, SMALL, False),
    **{
        f"fed Split, {name}": partial(of_fed_split, name)
        for name in (
            "concatenated/batch-torchscript",
            "stacked/static-dynamo",
            "volumes/static-torchscript",
        )
    },
}
VARIANTS: dict[str, Build] = {
    **{name: partial(variant, changes) for name, changes in CHANGES.items()},
    "nearest": partial(variant, _NEAREST, attentions=0),
    "mean": partial(variant, _MEAN, attentions=0),
    "output by head": partial(variant, _BY_HEAD, "float[2, 8, 3] Y"),
    "output of separate heads": partial(variant, _SEPARATE_HEADS, "float[2, 3, 2, 4] Y"),
    "weights of one query": partial(variant, _ONE_QUERY, queries_of_weights=1),
    **{
        f"{n} are read": partial(variant, None, f"{_OUTPUT}, {v}")
        for n, v in _READ_OPERANDS.items()
    },
    **{
        f"{n} are read": partial(variant, None, f"{_OUTPUT}, {v}", attentions=0)
        for n, v in _READ_PRODUCTS.items()
    },
    "value of one axis of channels": partial(variant, value_shape=(2, 10, 8)),
    "value with other channels": partial(variant, value_shape=(2, 10, 4, 2)),
    "a sample is read": partial(variant, None, f"{_OUTPUT}, float[4, 4, 3, 2] S0"),
    "float64": partial(variant, None, kind="float64"),
    "float64, grids are an input": partial(variant, CHANGES["grids are an input"], kind="float64"),
    "float16 and float32 grids": partial(of_two_types, TensorProto.FLOAT16),
    "float64 and float32 grids": partial(of_two_types, TensorProto.DOUBLE),
    "fed shapes of images": of_fed_image_shapes,
    **{
        f"images, {batches} batches, {queries} queries": partial(of_images, batches, queries)
        for batches, queries in ((0, 3), (2, 0), (2, 3))
    },
    **{
        f"grids of {grid_type}, {value_type}, weights of {queries} queries": partial(
            of_grids, value_type, grid_type, queries, tolerance
        )
        for queries in (7, 1)
        for value_type, grid_type, tolerance in (
            ("float32", "float32", 2e-5),
            ("float64", "float64", 1e-12),
            ("float64", "float32", 1e-4),
            ("float32", "float64", 1e-5),
            ("float16", "float16", 2e-2),
        )
    },
    "computed lengths of an image": partial(of_computed_image_shape, "six", "four", 1),
    "fed batches of an image": partial(of_computed_image_shape, "images", "four", 1),
    "fed channels of an image": partial(of_computed_image_shape, "six", "channels", 1),
}
#: What the model states of its shapes, and the opset.
_NODE_MODELS = [
    ("static", 17),
    ("dynamic", 11),
    ("dynamic", 12),
    ("dynamic", 13),
    ("dynamic", 20),
    ("fed", 11),
    ("fed", 13),
    ("fed", 17),
    ("fed", 20),
]
_LEVELS_WITHOUT_PIXELS = {
    "last level": ((4, 6), (0, 0)),
    "first level": ((0, 6), (2, 3)),
    "all levels": ((0, 0), (3, 0)),
}
NODES: dict[str, Build] = {
    **{
        f"{op_type}, {shapes}, opset {opset}": partial(node_form, op_type, shapes, opset)
        for op_type, (shapes, opset) in itertools.product(FOREIGN, _NODE_MODELS)
    },
    **{
        f"{op_type}, {shapes}, no {axis}": partial(node_form, op_type, shapes, **{key: 0})
        for op_type, shapes, (axis, key) in itertools.product(
            (TENSORRT, MMCV, BEVFORMER[0]),
            ("static", "dynamic", "fed"),
            (("batches", "n"), ("queries", "q"), ("heads", "h"), ("points", "p")),
        )
    },
    **{
        f"{op_type}, {shapes}, opset {opset}, no points on {len(lengths)} levels": partial(
            node_form, op_type, shapes, opset, p=0, lengths=lengths
        )
        for op_type, (shapes, opset), lengths in itertools.product(
            (MMCV, BEVFORMER[0]),
            (("static", 13), ("batch", 13), ("batch", 17), ("dynamic", 12), ("dynamic", 13)),
            (((4, 6),), ((4, 6), (2, 3))),
        )
    },
    **{
        f"{op_type}, {shapes}, opset {opset}, {which} without pixels": partial(
            node_form, op_type, shapes, opset, lengths=lengths
        )
        for op_type, (shapes, opset), (which, lengths) in itertools.product(
            (OWN, MMCV),
            (("static", 17), ("dynamic", 17), ("dynamic", 12)),
            _LEVELS_WITHOUT_PIXELS.items(),
        )
    },
    **{
        f"{op_type}, {shapes}, no levels": partial(node_form, op_type, shapes, lengths=())
        for op_type, shapes in ((TENSORRT, "fed"), (MMCV, "fed"), (OWN, "static"), (OWN, "dynamic"))
    },
    f"{MMCV}, fed, levels of int32": partial(node_form, MMCV, "fed", integers="int32"),
    f"trt.plugins.{TENSORRT}, fed, levels of int64": partial(
        node_form, f"trt.plugins.{TENSORRT}", "fed", integers="int64"
    ),
    "mmcv's own domain": partial(node_form, "mmcv.MMCVMultiScaleDeformableAttention", "fed"),
    f"{MMCV}, other starts": partial(node_form, MMCV, starts=(6, 0)),
    "half values": partial(
        node_form,
        MMCV,
        tolerance=2e-3,
        types=(("value", "float16"), ("attention_weights", "float16")),
    ),
    "half locations": partial(
        node_form, MMCV, tolerance=2e-3, types=(("sampling_locations", "float16"),)
    ),
    "behind a Softmax": behind_softmax,
    "in an If behind a Softmax": in_if_behind_softmax,
    "in a function behind a Softmax": in_function_behind_softmax,
    **{
        f"{op_type} in a function of two types": partial(in_function_of_two_types, op_type)
        for op_type in (MMCV, BEVFORMER[0])
    },
    **{
        f"in a function of different {name}": partial(own_in_function_of_different_calls, name)
        for name in _DIFFERENT_CALLS
    },
    **{
        f"{OWN}, {name}, {ranks} ranks": partial(own, shapes, are_ranks_known=ranks == "known")
        for (name, shapes), ranks in itertools.product(OWN_SHAPES.items(), ("known", "unknown"))
    },
    f"{OWN}, aligned": partial(own, attributes='points = "4 4", align_corners = 1'),
    f"{OWN}, fed levels": partial(own, has_constant_levels=False),
    **{
        f"{COMPILED}, {layout}, {ranks} ranks": partial(
            own,
            are_ranks_known=ranks == "known",
            attributes=f'points = "4 4", output_layout = "{layout}"',
            op_type=COMPILED,
        )
        for layout, ranks in itertools.product(spec.OUTPUT_LAYOUTS, ("known", "unknown"))
    },
    **{
        f"{COMPILED}, {layout}, no queries": partial(compiled_without_queries, layout)
        for layout in spec.OUTPUT_LAYOUTS
    },
    **{
        f"{OWN}, weights of one query, {ranks} ranks": partial(
            own,
            {"attention_weights": (2, 1, 4, 8)},
            are_ranks_known=ranks == "known",
            queries_of_weights=1,
        )
        for ranks in ("known", "unknown")
    },
    **{
        f"{op_type}, dynamic, opset {opset}, a weight of NaN, first level without pixels": (
            lambda op_type=op_type, opset=opset: with_weight(
                node_form(op_type, "dynamic", opset, lengths=_LEVELS_WITHOUT_PIXELS["first level"]),
                math.nan,
            )
        )
        for op_type, opset in itertools.product((OWN, MMCV), (12, 17))
    },
    **{
        f"{OWN}, weights {weights}, {which} without pixels": lambda weights=weights, which=which: (
            with_weight(node_form(OWN, lengths=_LEVELS_WITHOUT_PIXELS[which]), *weights)
        )
        for weights, which in (
            ((math.inf, 1.0), "first level"),
            ((-math.inf, 1.0), "first level"),
            ((math.nan, 1.0), "first level"),
            ((1.0, math.nan), "first level"),
            ((math.nan, 1.0), "all levels"),
        )
    },
    **{
        f"{OWN} of {kind}, locations of {locations}, {levels}, {alignment}": partial(
            own_of_type, levels, kind, locations, alignment == "aligned"
        )
        for (kind, locations), levels, alignment in itertools.product(
            (
                ("float32", "float32"),
                ("float32", "float64"),
                ("float64", "float64"),
                ("float64", "float32"),
                ("float16", "float16"),
                ("bfloat16", "bfloat16"),
            ),
            LEVELS_OF_ANY_RANK,
            ("edges", "aligned"),
        )
    },
    **{
        f"{OWN} of {kind}, {channels} channels": partial(
            own_of_type, "planes", kind, kind, False, channels
        )
        for kind, channels in itertools.product(TOLERANCES, (1, 21, 64, 117))
    },
}
FORMS = {**EXPORTED_FORMS, **VARIANTS, **NODES}


@cache
def form_of(name: str) -> Form:
    """Return the form of this name."""
    return FORMS[name]()
