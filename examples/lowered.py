"""Lower a model for runtimes that have no GridSample.

``python examples/lowered.py`` draws lowered.png. The model swirls a picture. Its node is written in
the dialect of mmdeploy, at opset 13, which has no GridSample yet. Lowered to basic operators of
that opset, the model runs in onnxruntime alone, and in any other runtime with these operators.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from matplotlib import cbook
from matplotlib.figure import Figure
from PIL import Image

import ort_gridsample as ogs

SIDE = 224
model = onnx.parser.parse_model(
    """
    <ir_version: 8, opset_import: ["": 13, "mmdeploy": 1]>
    swirl (float[1, 3, 224, 224] image, float turns) => (float[1, 3, 224, 224] swirled)
    <float[1, 224, 224, 1] x, float[1, 224, 224, 1] y, float[1, 224, 224, 1] angle>
    {
        turned = Mul (angle, turns)
        cos = Cos (turned)
        sin = Sin (turned)
        x_cos = Mul (x, cos)
        y_sin = Mul (y, sin)
        x_sin = Mul (x, sin)
        y_cos = Mul (y, cos)
        new_x = Sub (x_cos, y_sin)
        new_y = Add (x_sin, y_cos)
        grid = Concat <axis = 3> (new_x, new_y)
        swirled = mmdeploy.grid_sampler
            <interpolation_mode = 0, padding_mode = 2, align_corners = 0> (image, grid)
    }
    """
)
y, x = (np.indices((SIDE, SIDE), np.float32) * 2 + 1)[..., None] / SIDE - 1
# A whole turn in the middle, and none at the edge.
angle = 2 * np.pi * np.clip(1 - np.hypot(x, y), 0, None)
for name, values in (("x", x), ("y", y), ("angle", angle)):
    tensor = onnx.numpy_helper.from_array(values[None].astype(np.float32), name)
    model.graph.initializer.append(tensor)

lowered = ogs.patch_model(model, target="primitives")
print(f"before: {dict(Counter(node.op_type for node in model.graph.node))}")
print(f"lowered: {dict(Counter(node.op_type for node in lowered.graph.node))}")

with Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as photo:
    square = photo.convert("RGB").crop((0, 60, 512, 572)).resize((SIDE, SIDE))
image = np.asarray(square, np.float32).transpose(2, 0, 1)[None] / 255
# The lowered model needs no op of this package.
plain = onnxruntime.InferenceSession(lowered.SerializeToString())
session = ogs.InferenceSession(model)
swirled = {}
for turns in (0.25, -0.5):
    feeds = {"image": image, "turns": np.array(turns, np.float32)}
    (swirled[turns],) = plain.run(None, feeds)
    (expected,) = session.run(None, feeds)
    difference = np.abs(swirled[turns] - expected).max()
    print(f"{turns} turns: at most {difference:.0e} from the model run by ort_gridsample")

figure = Figure(figsize=(9, 3.3), layout="constrained")
shown = {
    "picture": image,
    **{f"swirled by {turns} turns": result for turns, result in swirled.items()},
}
for axes, (title, result) in zip(figure.subplots(1, 3), shown.items(), strict=True):
    axes.imshow(result[0].transpose(1, 2, 0).clip(0, 1))
    axes.set(xticks=[], yticks=[], title=title)
path = Path(__file__).with_suffix(".png")
figure.savefig(path, dpi=80)
Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
