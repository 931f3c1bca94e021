"""Convert a model to float16, except for the coordinates at which it samples.

``python examples/half_precision.py`` needs SymPy (``pip install sympy``), which onnxruntime's
converter imports. A wide image is shifted by a flow of a few pixels. In float16 the coordinates
would be wrong by up to a pixel, so the nodes that compute with coordinates stay in float32. The
converted model is patched last, to basic operators.
"""

import copy

import numpy as np
import onnx
import onnxruntime
from onnxruntime.transformers.onnx_model import OnnxModel

import ort_gridsample as ogs

WIDTH = 4096
model = onnx.parser.parse_model(
    """
    <ir_version: 9, opset_import: ["": 20]>
    shift (float[1, 1, 4, 4096] image, float[1, 4, 4096, 2] flow)
        => (float[1, 1, 4, 4096] shifted)
    <float[1] gain = {0.7}, float[1, 4, 4096, 2] pixels, float[2] scale>
    {
        [darken] dark = Mul (image, gain)
        [move] moved = Add (pixels, flow)
        [normalize] grid = Mul (moved, scale)
        [sample] shifted = GridSample <padding_mode = "border"> (dark, grid)
    }
    """
)
y, x = np.indices((4, WIDTH), np.float32)
# From pixels, with their origin in the middle of the image, to normalized coordinates.
pixels = np.stack([x - (WIDTH - 1) / 2, y - 1.5], axis=-1)[None]
scale = np.array([2 / WIDTH, 2 / 4], np.float32)
for name, values in (("pixels", pixels), ("scale", scale)):
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))

generator = np.random.default_rng(0)
feeds = {
    "image": generator.uniform(size=(1, 1, 4, WIDTH)).astype(np.float32),
    "flow": generator.uniform(-3, 3, (1, 4, WIDTH, 2)).astype(np.float32),
}
(expected,) = ogs.InferenceSession(model).run(None, feeds)


def difference_in_float16(kept_nodes: list[str]) -> float:
    """Convert the model except for some nodes, and return how far its output is from float32's."""
    converted = OnnxModel(copy.deepcopy(model))
    converted.convert_float_to_float16(
        use_symbolic_shape_infer=False, keep_io_types=True, node_block_list=kept_nodes
    )
    # The patched model needs no op of this package.
    patched = ogs.patch_model(converted.model, target="primitives")
    session = onnxruntime.InferenceSession(
        patched.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (shifted,) = session.run(None, feeds)
    return float(np.abs(shifted - expected).max())


coordinate_nodes = ogs.coordinate_nodes(model)
print(f"nodes that compute with coordinates: {', '.join(coordinate_nodes)}")
everything = difference_in_float16([])
print(f"with all nodes in float16, pixels of 0 to 1 differ by up to {everything:.3f}")
without_coordinates = difference_in_float16(coordinate_nodes)
print(f"with these nodes in float32, they differ by up to {without_coordinates:.4f}")
assert without_coordinates < 0.001 < everything
