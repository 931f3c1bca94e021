"""Small models written as text, with their inputs."""

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.models import parsed
from support.paths import open_native

X = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
GRID = np.random.default_rng(0).uniform(-1.3, 1.3, (2, 4, 5, 2)).astype(np.float32)
FEEDS = {"X": X, "G": GRID, "c": np.array(True)}

INPUTS = "float[N,C,H,W] X, float[N,h,w,2] G"
HEADER = '<ir_version: 9, opset_import: ["": 20, "local": 1]>'
SIGNATURE = f"g ({INPUTS}, bool c) => (float[N,C,h,w] Y)"

_LOCAL = '<domain: "local", opset_import: ["": 20]>'
_WARP = f"{_LOCAL} warp <ac> (A, B) => (C) {{ C = GridSample <align_corners: int = @ac> (A, B) }}"

#: Models of one or two sampling nodes at every place where a node can be; FEEDS are their inputs.
MODELS = {
    "main graph": f'{HEADER} {SIGNATURE} {{ Y = GridSample <mode = "cubic"> (X, G) }}',
    "two in a row": f"""{HEADER} {SIGNATURE} {{
        A = GridSample (X, G)
        Y = GridSample <align_corners = 1> (A, G) }}""",
    "If": f"""{HEADER} {SIGNATURE} {{
        Y = If (c) <
            then_branch = t () => (float[N,C,h,w] T) {{ T = GridSample (X, G) }},
            else_branch = e () => (float[N,C,h,w] E) {{
                A = GridSample <mode = "nearest"> (X, G)
                E = If (c) <
                    then_branch = tt () => (float[N,C,h,w] TT) {{ TT = Identity (A) }},
                    else_branch = ee () => (float[N,C,h,w] EE) {{
                        EE = GridSample (A, G) }}> }}> }}""",
    "Loop": f"""{HEADER} {SIGNATURE} {{
        three = Constant <value_int = 3> ()
        true = Constant <value = bool {{1}}> ()
        Y = Loop (three, true, X) <
            body = b (int64 i, bool on, float[N,C,h,w] before)
                => (bool go, float[N,C,h,w] after) {{
                go = Identity (on)
                after = GridSample <padding_mode = "border"> (before, G) }}> }}""",
    "Scan": f"""{HEADER} {SIGNATURE} {{
        rows = Constant <value = int64[3] {{1, 2, 3}}> ()
        Y, _ = Scan <
            num_scan_inputs = 1,
            body = b (float[N,C,h,w] before, int64 i) => (float[N,C,h,w] after, int64 o) {{
                o = Identity (i)
                after = GridSample <padding_mode = "reflection"> (before, G) }}> (X, rows) }}""",
    "function": f"{HEADER} {SIGNATURE} {{ Y = local.warp <ac = 1> (X, G) }} {_WARP}",
    "function, attribute left out": f"{HEADER} {SIGNATURE} {{ Y = local.warp (X, G) }} {_WARP}",
    "function in a function in an If": f"""{HEADER} {SIGNATURE} {{
        Y = If (c) <
            then_branch = t () => (float[N,C,h,w] T) {{ T = local.outer (X, G) }},
            else_branch = e () => (float[N,C,h,w] E) {{ E = local.inner (X, G) }}> }}
        <domain: "local", opset_import: ["": 20, "local": 1]> outer (A, B) => (C) {{
            D = local.inner (A, B)
            C = Relu (D) }}
        {_LOCAL} inner (A, B) => (C) {{ C = GridSample (A, B) }}""",
    "function with something behind": f"""{HEADER} {SIGNATURE} {{ Y = local.warp (X, G) }}
        {_LOCAL} warp (A, B) => (C) {{
            D = GridSample (A, B)
            C = Relu (D) }}""",
    "half in a function, full outside": f"""{HEADER} {SIGNATURE} {{
        H = Cast <to = 10> (X)
        I = local.warp (H, G)
        J = Cast <to = 1> (I)
        K = local.warp (X, G)
        Y = Add (J, K) }}
        {_LOCAL} warp (A, B) => (C) {{ C = GridSample <mode = "nearest"> (A, B) }}""",
    "AffineGrid": f"""{HEADER} {SIGNATURE} {{
        theta = Constant <value = float[1,2,3] {{0.9, 0.1, 0.0, -0.1, 0.9, 0.2}}> ()
        two = Constant <value_ints = [2, 1, 1]> ()
        thetas = Tile (theta, two)
        size = Constant <value_ints = [2, 3, 4, 5]> ()
        B = AffineGrid (thetas, size)
        Y = GridSample (X, B) }}""",
}

_SPARSE_VALUES = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
_SPARSE_INDICES = numpy_helper.from_array(np.array([1]))
SPARSE_TENSOR = helper.make_sparse_tensor(_SPARSE_VALUES, _SPARSE_INDICES, [3])


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the main graph, the bodies and the functions."""
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        yield from _with_bodies(nodes)


def _with_bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _with_bodies(body.node)


def is_standard(node: onnx.NodeProto) -> bool:
    """Whether a node is a GridSample or an AffineGrid of ONNX's domain."""
    return node.domain == "" and node.op_type in ("GridSample", "AffineGrid")


def single_node_model(
    X_type: int = TensorProto.FLOAT,
    grid_type: int = TensorProto.FLOAT,
    opset: int = 20,
    inputs: str = INPUTS,
    **attributes: object,
) -> onnx.ModelProto:
    """Return an unchecked model of one GridSample, ``warp``, with these attributes and types."""
    model = parsed(f"g ({inputs}) => (float[N,C,h,w] Y) {{ Y = GridSample (X, G) }}", opset)
    node = helper.make_node("GridSample", ["X", "G"], ["Y"], "warp", **attributes)
    model.graph.node[0].CopyFrom(node)
    X, grid = model.graph.input
    (Y,) = model.graph.output
    X.type.tensor_type.elem_type = X_type
    grid.type.tensor_type.elem_type = grid_type
    Y.type.tensor_type.elem_type = X_type
    return model


def assert_same_outputs(
    model: onnx.ModelProto, reference: onnx.ModelProto, feeds: dict[str, np.ndarray] = FEEDS
) -> None:
    """Check that plain onnxruntime computes the same outputs of two models, up to rounding."""
    outputs = open_native(model).run(None, feeds)
    expected_outputs = open_native(reference).run(None, feeds)
    for output, expected in zip(outputs, expected_outputs, strict=True):
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=2e-5 * float(largest))
