"""Small models written as text, with their inputs."""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ort_gridsample.graph.scope import scopes
from support.models import parsed
from support.paths import open_native

X = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)


GRID = np.random.default_rng(0).uniform(-1.3, 1.3, (2, 4, 5, 2)).astype(np.float32)


FEEDS = {"X": X, "G": GRID, "c": np.array(True)}


HEADER = '<ir_version: 9, opset_import: ["": 20, "local": 1]>'


SIGNATURE = "g (float[N,C,H,W] X, float[N,h,w,2] G, bool c) => (float[N,C,h,w] Y)"


LOCAL = '<domain: "local", opset_import: ["": 20]>'


WARP = f"{LOCAL} warp <ac> (A, B) => (C) {{ C = GridSample <align_corners: int = @ac> (A, B) }}"


FLOAT, SHAPES = TensorProto.FLOAT, "float[N,C,H,W] X, float[N,h,w,2] G"


MODELS = {
    "main graph": f'{HEADER} {SIGNATURE} {{ Y = GridSample <mode = "cubic"> (X, G) }}',
    "two in a row": f"{HEADER} {SIGNATURE} {{ A = GridSample (X, G) Y = GridSample <align_corners = 1> (A, G) }}",
    "If": f"""{HEADER} {SIGNATURE} {{
        Y = If (c) <then_branch = t () => (float[N,C,h,w] T) {{ T = GridSample (X, G) }},
                    else_branch = e () => (float[N,C,h,w] E) {{
                        A = GridSample <mode = "nearest"> (X, G)
                        E = If (c) <then_branch = tt () => (float[N,C,h,w] TT) {{ TT = Identity (A) }},
                                    else_branch = ee () => (float[N,C,h,w] EE) {{ EE = GridSample (A, G) }}> }}> }}""",
    "Loop": f"""{HEADER} {SIGNATURE} {{
        three = Constant <value_int = 3> () true = Constant <value = bool {{1}}> ()
        Y = Loop (three, true, X) <body = b (int64 i, bool on, float[N,C,h,w] before) => (bool go, float[N,C,h,w] after)
            {{ go = Identity (on) after = GridSample <padding_mode = "border"> (before, G) }}> }}""",
    "Scan": f"""{HEADER} {SIGNATURE} {{
        rows = Constant <value = int64[3] {{1, 2, 3}}> ()
        Y, _ = Scan <num_scan_inputs = 1, body = b (float[N,C,h,w] before, int64 i) => (float[N,C,h,w] after, int64 o)
            {{ o = Identity (i) after = GridSample <padding_mode = "reflection"> (before, G) }}> (X, rows) }}""",
    "function": f"{HEADER} {SIGNATURE} {{ Y = local.warp <ac = 1> (X, G) }} {WARP}",
    "function, attribute left out": f"{HEADER} {SIGNATURE} {{ Y = local.warp (X, G) }} {WARP}",
    "function in a function in an If": f"""{HEADER} {SIGNATURE} {{
        Y = If (c) <then_branch = t () => (float[N,C,h,w] T) {{ T = local.outer (X, G) }},
                    else_branch = e () => (float[N,C,h,w] E) {{ E = local.inner (X, G) }}> }}
        <domain: "local", opset_import: ["": 20, "local": 1]> outer (A, B) => (C) {{
            D = local.inner (A, B) C = Relu (D) }}
        {LOCAL} inner (A, B) => (C) {{ C = GridSample (A, B) }}""",
    "function with something behind": f"""{HEADER} {SIGNATURE} {{ Y = local.warp (X, G) }}
        {LOCAL} warp (A, B) => (C) {{ D = GridSample (A, B) C = Relu (D) }}""",
    "half in a function, full outside": f"""{HEADER} {SIGNATURE} {{
        H = Cast <to = 10> (X) I = local.warp (H, G) J = Cast <to = 1> (I) K = local.warp (X, G) Y = Add (J, K) }}
        {LOCAL} warp (A, B) => (C) {{ C = GridSample <mode = "nearest"> (A, B) }}""",
    "AffineGrid": f"""{HEADER} {SIGNATURE} {{
        theta = Constant <value = float[1,2,3] {{0.9, 0.1, 0.0, -0.1, 0.9, 0.2}}> ()
        two = Constant <value_ints = [2, 1, 1]> () thetas = Tile (theta, two)
        size = Constant <value_ints = [2, 3, 4, 5]> () B = AffineGrid (thetas, size) Y = GridSample (X, B) }}""",
}


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return (node for scope in scopes(model) for node in scope)


def is_standard(node: onnx.NodeProto) -> bool:
    return node.domain == "" and node.op_type in ("GridSample", "AffineGrid")


def one_node(
    X_type: int = FLOAT,
    grid_type: int = FLOAT,
    opset: int = 20,
    shapes: str = SHAPES,
    **attributes: object,
) -> onnx.ModelProto:
    model = parsed(f"g ({shapes}) => (float[N,C,h,w] Y) {{ Y = GridSample (X, G) }}", opset)
    model.graph.node[0].CopyFrom(
        helper.make_node("GridSample", ["X", "G"], ["Y"], "warp", **attributes)
    )
    for value, type_ in zip(
        (*model.graph.input, *model.graph.output), (X_type, grid_type, X_type), strict=True
    ):
        value.type.tensor_type.elem_type = type_
    return model


_ONE, _AT = (
    numpy_helper.from_array(np.ones(1, np.float32), "sparse"),
    numpy_helper.from_array(np.array([1])),
)


SPARSE = helper.make_sparse_tensor(_ONE, _AT, [3])


def assert_answers_agree(
    ours: onnx.ModelProto, other: onnx.ModelProto, feeds: dict[str, np.ndarray] = FEEDS
) -> None:
    for a, b in zip(*(open_native(model).run(None, feeds) for model in (ours, other)), strict=True):
        np.testing.assert_allclose(
            a, b, rtol=1e-5, atol=2e-5 * float(np.abs(b[np.isfinite(b)]).max(initial=0))
        )
